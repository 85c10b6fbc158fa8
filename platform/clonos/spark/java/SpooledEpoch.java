package clonos;

import java.nio.file.Path;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * The rows of one attempt at one epoch, spooled by its tasks until all of them are computed.
 *
 * <p>A late task of a failed attempt cannot write into the next transaction: it can only add to its own closed epoch.
 */
public final class SpooledEpoch implements AutoCloseable {
  private final long number;
  private final Path folder;
  private final TopicLimits limits;
  private final Spool[] spools;
  private final RecordDigest digest = new RecordDigest();
  private long records;
  private long deadLetters;
  private int computed;
  private boolean closed;

  SpooledEpoch(long number, int partitions, Path folder, TopicLimits limits) {
    this.number = number;
    this.folder = folder;
    this.limits = limits;
    spools = new Spool[partitions];
  }

  long number() {
    return number;
  }

  TopicLimits limits() {
    return limits;
  }

  Spool newSpool() {
    return new Spool(folder);
  }

  /** Takes the rows of a task that has computed all of them. */
  synchronized void add(int partition, Spool spool, RecordDigest spooled, long letters) {
    if (closed || spools[partition] != null) {
      spool.close();
      throw new IllegalStateException("partition " + partition + " of epoch " + number + " came too late, or twice");
    }
    spools[partition] = spool;
    computed++;
    digest.addAll(spooled);
    records += spooled.records();
    deadLetters += letters;
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
    if (closed || computed != spools.length) {
      throw new IllegalStateException(computed + " of " + spools.length + " tasks of epoch " + number + " reported");
    }
    for (Spool spool : spools) {
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
