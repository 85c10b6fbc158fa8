package clonos;

import java.nio.file.Path;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * The rows of one attempt at one epoch, spooled in the driver's JVM until all of them are computed.
 *
 * <p>A late task of a failed attempt cannot write into the next transaction: it can only add to its own closed epoch.
 */
public final class SpooledEpoch implements AutoCloseable {
  private final long number;
  private final Path folder;
  private final boolean publishes;
  private final RecordCheck check;
  private final Spool[] spools; // by partition; null: no rows have arrived
  private final boolean[] ended;
  private final RecordDigest digest = new RecordDigest();
  private long records;
  private long deadLetters;
  private int computed;
  private boolean closed;

  /**
   * @param publishes false: the rows are only counted and compared
   * @param check null: the rows are not checked
   */
  SpooledEpoch(long number, int partitions, Path folder, boolean publishes, RecordCheck check) {
    this.number = number;
    this.folder = folder;
    this.publishes = publishes;
    this.check = check;
    spools = new Spool[partitions];
    ended = new boolean[partitions];
  }

  long number() {
    return number;
  }

  boolean publishes() {
    return publishes;
  }

  RecordCheck check() {
    return check;
  }

  Spool newSpool() {
    return new Spool(folder);
  }

  /**
   * Takes the rows of a task that has computed all of them.
   *
   * @param rows null: they were only counted
   */
  synchronized void add(int partition, Spool rows, RecordDigest spooled, long letters) {
    if (closed || ended[partition]) {
      if (rows != null) {
        rows.close();
      }
      throw new IllegalStateException("partition " + partition + " of epoch " + number + " came too late, or twice");
    }
    ended[partition] = true;
    spools[partition] = rows;
    computed++;
    digest.addAll(spooled);
    records += spooled.records();
    deadLetters += letters;
  }

  /** Takes a part of the rows of a task that a cluster's executor sends ({@link RowTransfer}). */
  synchronized void receive(int partition, byte[] part) {
    if (closed || ended[partition]) {
      throw new IllegalStateException("rows of partition " + partition + " of epoch " + number + " came too late");
    }
    if (spools[partition] == null) {
      spools[partition] = newSpool();
    }
    spools[partition].append(part);
  }

  /** Ends a task whose rows an executor has sent, and checks them. */
  synchronized void add(SentRows sent) {
    int partition = sent.partition();
    byte[] few = sent.takeRows();
    if (few.length > 0) {
      receive(partition, few);
    }
    Spool rows = spools[partition];
    if (rows == null && sent.bytes() > 0) {
      throw new IllegalStateException("no rows of task " + partition + " of epoch " + number + " arrived");
    }
    if (rows != null) {
      rows.setTopics(sent.topics());
      if (rows.bytes() != sent.bytes()) {
        throw new IllegalStateException(
            "task " + partition + " of epoch " + number + " sent " + sent.bytes() + " bytes, and "
                + rows.bytes() + " arrived");
      }
      if (check != null) {
        rows.forEach(check::check);
      }
    }
    add(partition, spools[partition], sent.digest(), sent.deadLetters());
  }

  /** Number of records of all tasks. */
  public synchronized long records() {
    return records;
  }

  /** The size of the records of all tasks. */
  public synchronized long bytes() {
    long bytes = 0;
    for (Spool spool : spools) {
      bytes += spool == null ? 0 : spool.bytes();
    }
    return bytes;
  }

  /** Number of poison records among them. */
  public synchronized long deadLetters() {
    return deadLetters;
  }

  /** The multiset digest of the records, 16 bytes. */
  public synchronized byte[] digest() {
    return digest.value();
  }

  /**
   * Queues all records at the producer, in the order of their partitions.
   *
   * @param topic replaces the topics and partitions of the records; null: they keep their own
   */
  public synchronized void sendTo(LaneProducer producer, String topic) {
    if (closed || !publishes || computed != spools.length) {
      throw new IllegalStateException(computed + " of " + spools.length + " tasks of epoch " + number + " reported");
    }
    for (Spool spool : spools) {
      if (spool == null) { // a task without rows
        continue;
      }
      spool.forEach(record -> producer.send(topic == null ? record : moved(record, topic)));
    }
  }

  private static ProducerRecord<byte[], byte[]> moved(ProducerRecord<byte[], byte[]> record, String topic) {
    return new ProducerRecord<>(topic, null, record.timestamp(), record.key(), record.value(), record.headers());
  }

  /** Deletes the rows. */
  @Override
  public synchronized void close() {
    closed = true;
    for (int index = 0; index < spools.length; index++) {
      if (spools[index] != null) {
        spools[index].close();
        spools[index] = null;
      }
    }
  }
}
