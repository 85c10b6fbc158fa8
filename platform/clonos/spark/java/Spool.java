package clonos;

import static java.nio.file.StandardOpenOption.READ;
import static java.nio.file.StandardOpenOption.WRITE;

import java.io.BufferedInputStream;
import java.io.ByteArrayInputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.FilterInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.SequenceInputStream;
import java.io.UncheckedIOException;
import java.nio.channels.Channels;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Consumer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.spark.SparkEnv;
import org.apache.spark.util.Utils;

/** The records of one task, in memory; in a file as soon as the JVM's memory for rows is used up. */
final class Spool implements AutoCloseable {
  private static final int NULL = -1;

  /** Free memory for the rows of all tasks and queries of this JVM. */
  private static final AtomicLong FREE_BYTES = new AtomicLong(Runtime.getRuntime().maxMemory() / 16);

  private final Path folder;
  private final Chunks memory;
  private final DataOutputStream out;
  private final List<String> topics = new ArrayList<>();
  private final Map<String, Integer> numbers = new HashMap<>();
  private FileChannel file;

  /** @param folder directory for rows that do not fit into memory; null: Spark's own directory */
  Spool(Path folder) {
    this.folder = folder;
    memory = new Chunks();
    out = new DataOutputStream(memory);
  }

  /** The topics of the records, by the numbers that {@link #content()} has. */
  String[] topics() {
    return topics.toArray(String[]::new);
  }

  /** All records, in this class's own format. */
  InputStream content() {
    if (file == null) {
      return memory.input();
    }
    try {
      file.position(0);
      return new SequenceInputStream(new Unclosed(Channels.newInputStream(file)), memory.input());
    } catch (IOException failure) {
      throw new UncheckedIOException(failure);
    }
  }

  /** Adds a part of the {@link #content()} of another spool, of another JVM. */
  void append(byte[] part) {
    try {
      out.write(part, 0, part.length);
      if (memory.isFull()) {
        spill();
      }
    } catch (IOException failure) {
      throw new UncheckedIOException(failure);
    }
  }

  /** Sets the {@link #topics()} of the records that were appended. */
  void setTopics(String[] names) {
    topics.clear();
    topics.addAll(List.of(names));
  }

  /** Adds bytes to the memory for rows, or removes them, for tests; returns what is free. */
  static long addMemory(long bytes) {
    return FREE_BYTES.addAndGet(bytes);
  }

  void add(ProducerRecord<byte[], byte[]> record) throws IOException {
    out.writeInt(numberOf(record.topic()));
    out.writeInt(record.partition() == null ? NULL : record.partition());
    out.writeLong(record.timestamp() == null ? NULL : record.timestamp());
    write(record.key());
    write(record.value());
    Header[] headers = record.headers().toArray();
    out.writeInt(headers.length);
    for (Header header : headers) {
      write(header.key().getBytes(StandardCharsets.UTF_8));
      write(header.value());
    }
    if (memory.isFull()) {
      spill();
    }
  }

  private int numberOf(String topic) {
    return numbers.computeIfAbsent(
        topic,
        name -> {
          topics.add(name);
          return topics.size() - 1;
        });
  }

  private void write(byte[] data) throws IOException {
    if (data == null) {
      out.writeInt(NULL);
    } else {
      out.writeInt(data.length);
      out.write(data, 0, data.length);
    }
  }

  private void spill() throws IOException {
    if (file == null) {
      // Only this user can read it. The name goes at once, so that no crash leaves the file behind.
      Path path = Files.createTempFile(folder == null ? sparkFolder() : folder, "clonos-rows-", ".spool");
      file = FileChannel.open(path, READ, WRITE);
      Files.delete(path);
    }
    file.position(file.size()); // a read may have moved it
    memory.moveTo(Channels.newOutputStream(file));
  }

  private static Path sparkFolder() {
    return Path.of(Utils.getLocalDir(SparkEnv.get().conf()));
  }

  /** The size of all records. */
  long bytes() {
    try {
      return memory.size() + (file == null ? 0 : file.size());
    } catch (IOException failure) {
      throw new UncheckedIOException(failure);
    }
  }

  /** Calls {@code send} for each record, in the order in which they were added. */
  void forEach(Consumer<ProducerRecord<byte[], byte[]>> send) {
    records().forEachRemaining(send);
  }

  /** The records, in the order in which they were added. */
  Iterator<ProducerRecord<byte[], byte[]>> records() {
    // As one stream: of rows that were appended in parts, a record may begin in the file and end in memory.
    InputStream rows = file == null ? memory.input() : new BufferedInputStream(content(), Chunks.BYTES);
    return new Records(new DataInputStream(rows), bytes());
  }

  private final class Records implements Iterator<ProducerRecord<byte[], byte[]>> {
    private final DataInputStream in;
    private long left;

    Records(DataInputStream in, long bytes) {
      this.in = in;
      left = bytes;
    }

    @Override
    public boolean hasNext() {
      return left > 0;
    }

    @Override
    public ProducerRecord<byte[], byte[]> next() {
      try {
        return read();
      } catch (IOException failure) {
        throw new UncheckedIOException(failure);
      }
    }

    private ProducerRecord<byte[], byte[]> read() throws IOException {
      String topic = topics.get(in.readInt());
      int partition = in.readInt();
      long timestamp = in.readLong();
      byte[] key = Spool.read(in);
      byte[] value = Spool.read(in);
      left -= 3L * Integer.BYTES + Long.BYTES + stored(key) + stored(value);
      int count = in.readInt();
      List<Header> headers = new ArrayList<>(count);
      for (int index = 0; index < count; index++) {
        byte[] name = Spool.read(in);
        byte[] content = Spool.read(in);
        left -= stored(name) + stored(content);
        headers.add(new RecordHeader(new String(name, StandardCharsets.UTF_8), content));
      }
      return new ProducerRecord<>(
          topic,
          partition == NULL ? null : partition,
          timestamp == NULL ? null : timestamp,
          key,
          value,
          headers);
    }
  }

  private static byte[] read(DataInputStream in) throws IOException {
    int length = in.readInt();
    if (length == NULL) {
      return null;
    }
    byte[] data = new byte[length];
    in.readFully(data);
    return data;
  }

  private static long stored(byte[] data) {
    return Integer.BYTES + (data == null ? 0 : data.length);
  }

  @Override
  public void close() {
    memory.free();
    try {
      if (file != null) {
        file.close();
      }
    } catch (IOException ignored) {
      // The file has no name; its space is free when the JVM exits, at the latest.
    }
  }

  /** A stream of a file that stays open. */
  private static final class Unclosed extends FilterInputStream {
    Unclosed(InputStream file) {
      super(file);
    }

    @Override
    public void close() {
      // The spool closes its file.
    }
  }

  /** Bytes in chunks of equal size. The first one is free; more are reserved from the memory for rows. */
  private static final class Chunks extends OutputStream {
    static final int BYTES = 64 * 1024;

    private final List<byte[]> chunks = new ArrayList<>();
    private long size;
    private long reserved;
    private boolean full;

    /** Whether the last record needed memory that was not free. */
    boolean isFull() {
      return full;
    }

    long size() {
      return size;
    }

    @Override
    public void write(int one) {
      write(new byte[] {(byte) one}, 0, 1);
    }

    @Override
    public void write(byte[] data, int offset, int length) {
      int done = 0;
      while (done < length) {
        if (size == (long) chunks.size() * BYTES) {
          addChunk();
        }
        int used = (int) (size - (chunks.size() - 1L) * BYTES);
        int count = Math.min(BYTES - used, length - done);
        System.arraycopy(data, offset + done, chunks.get(chunks.size() - 1), used, count);
        done += count;
        size += count;
      }
    }

    private void addChunk() {
      if (!chunks.isEmpty()) {
        full |= FREE_BYTES.addAndGet(-BYTES) < 0;
        reserved += BYTES;
      }
      chunks.add(new byte[BYTES]);
    }

    InputStream input() {
      List<InputStream> streams = new ArrayList<>();
      for (int index = 0; index < chunks.size(); index++) {
        int count = (int) Math.min(BYTES, size - (long) index * BYTES);
        streams.add(new ByteArrayInputStream(chunks.get(index), 0, count));
      }
      return new SequenceInputStream(Collections.enumeration(streams));
    }

    void moveTo(OutputStream target) throws IOException {
      input().transferTo(target);
      free();
    }

    void free() {
      FREE_BYTES.addAndGet(reserved);
      reserved = 0;
      size = 0;
      full = false;
      if (chunks.size() > 1) {
        chunks.subList(1, chunks.size()).clear();
      }
    }
  }
}
