package clonos;

import java.io.BufferedInputStream;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Consumer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;

/** The records of one task, in memory; beyond the epoch's share of memory in a file. */
final class Spool implements AutoCloseable {
  private static final int NULL = -1;
  private static final int STEP_BYTES = 64 * 1024; // memory is reserved in such steps

  private final Path folder;
  private final AtomicLong freeBytes;
  private final Memory memory = new Memory();
  private final DataOutputStream out = new DataOutputStream(memory);
  private final List<String> topics = new ArrayList<>();
  private long reservedBytes;
  private Path file;
  private OutputStream spilled;

  Spool(Path folder, AtomicLong freeBytes) {
    this.folder = folder;
    this.freeBytes = freeBytes;
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
    if (memory.size() > reservedBytes && !reserve(memory.size())) {
      spill();
    }
  }

  private int numberOf(String topic) {
    int last = topics.size() - 1;
    if (last >= 0 && topics.get(last).equals(topic)) {
      return last; // most jobs have one topic
    }
    int number = topics.indexOf(topic);
    if (number < 0) {
      topics.add(topic);
      number = topics.size() - 1;
    }
    return number;
  }

  private void write(byte[] data) throws IOException {
    if (data == null) {
      out.writeInt(NULL);
    } else {
      out.writeInt(data.length);
      out.write(data, 0, data.length);
    }
  }

  private boolean reserve(long bytes) {
    long more = Math.max(bytes - reservedBytes, STEP_BYTES);
    if (freeBytes.addAndGet(-more) < 0) {
      freeBytes.addAndGet(more);
      return false;
    }
    reservedBytes += more;
    return true;
  }

  private void spill() throws IOException {
    if (spilled == null) {
      file = Files.createTempFile(folder, "rows-", ".spool");
      spilled = Files.newOutputStream(file);
    }
    memory.writeTo(spilled);
    memory.reset();
  }

  /** Calls {@code send} for each record, in the order in which they were added. */
  void forEach(Consumer<ProducerRecord<byte[], byte[]>> send) {
    try {
      if (spilled != null) {
        spilled.close();
        try (InputStream stored = new BufferedInputStream(Files.newInputStream(file), STEP_BYTES)) {
          read(new DataInputStream(stored), Files.size(file), send);
        }
      }
      read(new DataInputStream(memory.input()), memory.size(), send);
    } catch (IOException failure) {
      throw new UncheckedIOException(failure);
    }
  }

  private void read(DataInputStream in, long bytes, Consumer<ProducerRecord<byte[], byte[]>> send)
      throws IOException {
    long left = bytes;
    while (left > 0) {
      String topic = topics.get(in.readInt());
      int partition = in.readInt();
      long timestamp = in.readLong();
      byte[] key = read(in);
      byte[] value = read(in);
      left -= 3L * Integer.BYTES + Long.BYTES + stored(key) + stored(value);
      int count = in.readInt();
      List<Header> headers = new ArrayList<>(count);
      for (int index = 0; index < count; index++) {
        byte[] name = read(in);
        byte[] content = read(in);
        left -= stored(name) + stored(content);
        headers.add(new RecordHeader(new String(name, StandardCharsets.UTF_8), content));
      }
      send.accept(
          new ProducerRecord<>(
              topic,
              partition == NULL ? null : partition,
              timestamp == NULL ? null : timestamp,
              key,
              value,
              headers));
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
    freeBytes.addAndGet(reservedBytes);
    reservedBytes = 0;
    memory.free();
    if (file == null) {
      return;
    }
    try {
      spilled.close();
      Files.deleteIfExists(file);
    } catch (IOException failure) {
      file.toFile().deleteOnExit(); // the folder is removed with the session
    }
  }

  /** A byte array stream that can be read without a copy. */
  private static final class Memory extends ByteArrayOutputStream {
    InputStream input() {
      return new ByteArrayInputStream(buf, 0, count);
    }

    void free() {
      buf = new byte[0];
      count = 0;
    }
  }
}
