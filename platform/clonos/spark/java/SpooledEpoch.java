package clonos;

import java.nio.file.Path;
import java.util.concurrent.atomic.AtomicLong;

/**
 * The rows of one attempt at one epoch, spooled by its tasks until all of them are computed.
 *
 * <p>So a transaction is open only while rows are sent, not while the job's code computes them or calls services; and a
 * late task of a failed attempt cannot write into the next transaction: it has only its closed spool.
 */
public final class SpooledEpoch implements AutoCloseable {
  private final long number;
  private final Path folder;
  private final AtomicLong freeBytes;
  private final Part[] parts;
  private final RecordDigest digest = new RecordDigest();
  private long records;
  private long deadLetters;
  private int computed;
  private boolean closed;

  SpooledEpoch(long number, int partitions, Path folder, long memoryBytes) {
    this.number = number;
    this.folder = folder;
    freeBytes = new AtomicLong(memoryBytes);
    parts = new Part[partitions];
  }

  long number() {
    return number;
  }

  Spool newSpool() {
    return new Spool(folder, freeBytes);
  }

  /** Takes the rows of a task that has computed all of them. */
  synchronized void add(int partition, Spool spool, RecordDigest spooled, long letters) {
    if (closed || parts[partition] != null) {
      spool.close();
      throw new IllegalStateException("partition " + partition + " of epoch " + number + " came too late, or twice");
    }
    parts[partition] = new Part(spool);
    computed++;
    digest.addAll(spooled);
    records += spooled.records();
    deadLetters += letters;
  }

  /** Number of records of all tasks. */
  public synchronized long records() {
    return records;
  }

  /** Number of poison records among them. */
  public synchronized long deadLetters() {
    return deadLetters;
  }

  /** The multiset digest of the records, 16 bytes. */
  public synchronized byte[] digest() {
    return digest.value();
  }

  /** Queues all records at the producer, in the order of their partitions. */
  public synchronized void sendTo(LaneProducer producer) {
    if (closed || computed != parts.length) {
      throw new IllegalStateException(computed + " of " + parts.length + " tasks of epoch " + number + " reported");
    }
    for (Part part : parts) {
      part.spool().forEach(producer::send);
    }
  }

  /** Deletes the rows. */
  @Override
  public synchronized void close() {
    closed = true;
    for (int index = 0; index < parts.length; index++) {
      if (parts[index] != null) {
        parts[index].spool().close();
        parts[index] = null;
      }
    }
  }

  private record Part(Spool spool) {}
}
