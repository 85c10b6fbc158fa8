package clonos;

import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.WriterCommitMessage;

/** The rows of a live task that come from the records which it computes: they are published together. */
public final class LiveRows {
  private static final ThreadLocal<LiveRows> OF_THREAD = ThreadLocal.withInitial(LiveRows::new);
  private static final ThreadLocal<Consumer<List<Finished>>> RECEIVERS = new ThreadLocal<>();

  final List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
  long deadLetters;

  /**
   * All records of a source partition before an offset have been computed.
   *
   * @param publisher key of the {@link LivePublisher}
   * @param timestampMillis of the last of them; -1: it has none
   */
  public record Finished(String publisher, TopicPartition partition, long offset, long timestampMillis) {}

  /** The rows of the task that this thread runs. */
  static LiveRows ofThread() {
    return OF_THREAD.get();
  }

  /** Lets an operator take the news of finished records in this thread, which reads its input. */
  public static void handOver(Consumer<List<Finished>> receiver) {
    RECEIVERS.set(receiver);
  }

  /** What takes the news of finished records in this thread; null: the publisher does. */
  public static Consumer<List<Finished>> receiver() {
    return RECEIVERS.get();
  }

  /** All that was computed from these records has left the operators of the calling thread. */
  public static void finish(List<Finished> finished) {
    finish(finished, RECEIVERS.get());
  }

  /** As above, for the thread of `receiver`, which has no rows of these records. */
  public static void finish(List<Finished> finished, Consumer<List<Finished>> receiver) {
    if (receiver != null) {
      receiver.accept(finished);
    } else {
      LivePublisher.find(finished.get(0).publisher()).add(ofThread(), finished);
    }
  }

  void clear() {
    records.clear();
    deadLetters = 0;
  }

  /** Collects the rows of one task; {@link LiveReader} hands them to the publisher. */
  static final class Writer implements DataWriter<InternalRow> {
    private final RecordColumns columns;
    private final RecordCheck check;
    private final Publishing publishing;
    private final LiveRows rows = ofThread();
    private long deadLetters;

    /**
     * @param check null: the rows are not checked
     * @param publishing the publisher of this task alone; null: all tasks share one
     */
    Writer(RecordColumns columns, RecordCheck check, Publishing publishing) {
      this.columns = columns;
      this.check = check;
      this.publishing = publishing;
      rows.clear(); // of a task that failed in this thread
      RECEIVERS.remove();
    }

    @Override
    public void write(InternalRow row) {
      ProducerRecord<byte[], byte[]> record = columns.record(row);
      if (check != null) {
        check.check(record);
      }
      rows.records.add(record);
      rows.deadLetters += columns.deadLetters() - deadLetters;
      deadLetters = columns.deadLetters();
    }

    @Override
    public WriterCommitMessage commit() {
      if (!rows.records.isEmpty()) {
        throw new IllegalStateException(rows.records.size() + " rows come from a record that is not finished");
      }
      if (publishing != null) {
        publishing.end();
      }
      return new Ended();
    }

    @Override
    public void abort() {
      rows.clear();
    }

    @Override
    public void close() {
      if (publishing != null) {
        publishing.close();
      }
    }
  }

  /** The publisher of one task. */
  interface Publishing extends AutoCloseable {
    /** Waits until all rows of the task are published, and reports to the driver. */
    void end();

    @Override
    void close();
  }

  private static final class Ended implements WriterCommitMessage {
    private static final long serialVersionUID = 1;
  }
}
