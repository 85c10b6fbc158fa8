package clonos;

import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.WriterCommitMessage;

/** The rows of a live task that come from the record which it computes: they are published together. */
final class LiveRows {
  private static final ThreadLocal<LiveRows> OF_THREAD = ThreadLocal.withInitial(LiveRows::new);

  final List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
  long deadLetters;

  /** The rows of the task that this thread runs. */
  static LiveRows ofThread() {
    return OF_THREAD.get();
  }

  void clear() {
    records.clear();
    deadLetters = 0;
  }

  /** Collects the rows of one task; {@link LiveReader} hands them to the publisher. */
  static final class Writer implements DataWriter<InternalRow> {
    private final RecordColumns columns;
    private final RecordCheck check;
    private final LiveRows rows = ofThread();
    private long deadLetters;

    /** @param check null: the rows are not checked */
    Writer(RecordColumns columns, RecordCheck check) {
      this.columns = columns;
      this.check = check;
      rows.clear(); // of a task that failed in this thread
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
      return new Ended();
    }

    @Override
    public void abort() {
      rows.clear();
    }

    @Override
    public void close() {
      // The publisher has the rows.
    }
  }

  private static final class Ended implements WriterCommitMessage {
    private static final long serialVersionUID = 1;
  }
}
