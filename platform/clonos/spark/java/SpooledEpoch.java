package clonos;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Collections;
import java.util.Iterator;
import java.util.Objects;
import java.util.function.Consumer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.spark.sql.connector.write.WriterCommitMessage;

/**
 * One attempt at one epoch: what its tasks did with their rows, and the rows that the driver got, spooled in its JVM until
 * all of them are computed.
 *
 * <p>A late task of a failed attempt cannot write into the next transaction: it can only add to its own closed epoch.
 */
public final class SpooledEpoch implements AutoCloseable {
  private static final ObjectMapper JSON = new ObjectMapper();

  private final long number;
  private final TaskPlan plan;
  private final Path folder;
  private final RecordCheck check;
  private final Spool[] spools; // by partition; null: the driver has no rows of it
  private final Outcome[] outcomes; // by partition; null: its task has not ended
  private final RecordDigest digest = new RecordDigest();
  private boolean closed;

  /** @param check null: the rows are not checked */
  SpooledEpoch(long number, TaskPlan plan, Path folder, RecordCheck check) {
    this.number = number;
    this.plan = plan;
    this.folder = folder;
    this.check = check;
    spools = new Spool[plan.rows().size()];
    outcomes = new Outcome[plan.rows().size()];
  }

  long number() {
    return number;
  }

  TaskPlan plan() {
    return plan;
  }

  RecordCheck check() {
    return check;
  }

  Spool newSpool() {
    return new Spool(folder);
  }

  /** How a task of this JVM ends. */
  LaneWriter.Ending ending(int partition) {
    return (rows, spooled, letters) -> {
      add(partition, rows, spooled, letters);
      return new Spooled();
    };
  }

  /**
   * Takes the rows of a task that has computed all of them.
   *
   * @param rows null: they were only counted
   */
  private synchronized void add(int partition, Spool rows, RecordDigest spooled, long letters) {
    if (closed || outcomes[partition] != null) {
      if (rows != null) {
        rows.close();
      }
      throw new IllegalStateException("partition " + partition + " of epoch " + number + " came too late, or twice");
    }
    spools[partition] = rows;
    end(partition, spooled, letters, rows == null ? 0 : rows.bytes(), -1);
  }

  private void end(int partition, RecordDigest computed, long letters, long size, long markerOffset) {
    outcomes[partition] =
        new Outcome(partition, computed.records(), computed.value(), letters, size, markerOffset);
    digest.addAll(computed);
  }

  /** Takes the outcome of a task that has published its lane. */
  synchronized void addPublished(TaskPlan.Published task) {
    end(task.task(), task.digest(), task.deadLetters(), 0, task.markerOffset());
  }

  /** Takes a part of the rows of a task that a cluster's executor sends ({@link RowTransfer}). */
  synchronized void receive(int partition, byte[] part) {
    if (closed || outcomes[partition] != null) {
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

  /** The outcomes of all tasks as a JSON array of objects ({@code clonos.spark.lane_sink.TaskOutcome}). */
  public synchronized String outcomes() throws JsonProcessingException {
    requireEnded();
    return JSON.writeValueAsString(outcomes);
  }

  /** The multiset digest of the records of all tasks, 16 bytes. */
  public synchronized byte[] digest() {
    return digest.value();
  }

  /** Hands over the records of a task; with task -1 those of all, in the order of their partitions. */
  synchronized void forEach(int task, Consumer<ProducerRecord<byte[], byte[]>> receiver) {
    requireEnded();
    for (int partition = 0; partition < spools.length; partition++) {
      if (spools[partition] == null || (task >= 0 && task != partition)) {
        continue; // a task without rows, or another one
      }
      spools[partition].forEach(receiver);
    }
  }

  /** The values of a task's records, in order. */
  public synchronized Iterator<byte[]> values(int task) {
    requireEnded();
    Iterator<ProducerRecord<byte[], byte[]>> records =
        spools[task] == null ? Collections.emptyIterator() : spools[task].records();
    return new Iterator<>() {
      @Override
      public boolean hasNext() {
        return records.hasNext();
      }

      @Override
      public byte[] next() {
        return records.next().value();
      }
    };
  }

  private void requireEnded() {
    long ended = Arrays.stream(outcomes).filter(Objects::nonNull).count();
    if (closed || ended != outcomes.length) {
      throw new IllegalStateException(ended + " of " + outcomes.length + " tasks of epoch " + number + " reported");
    }
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

  /**
   * What a task did.
   *
   * @param size bytes of the rows that the driver got
   * @param markerOffset offset of its lane's marker; -1: it wrote none
   */
  private record Outcome(
      int task, long records, byte[] digest, long deadLetters, long size, long markerOffset) {}

  private static final class Spooled implements WriterCommitMessage {
    private static final long serialVersionUID = 1;
  }
}
