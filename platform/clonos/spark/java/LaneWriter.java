package clonos;

import java.io.IOException;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.WriterCommitMessage;

/**
 * One task of an epoch: checks its rows and spools them as Kafka records, until all of them are computed.
 *
 * <p>So a transaction is open only while rows are sent, not while the job's code computes them or calls services.
 */
final class LaneWriter implements DataWriter<InternalRow> {
  private final RecordColumns columns;
  private final RecordCheck check;
  private final Spool spool;
  private final Ending ending;
  private final RecordDigest digest = new RecordDigest();

  /**
   * @param check null: the rows are not checked here
   * @param spool null: the rows are only counted and compared
   */
  LaneWriter(RecordColumns columns, RecordCheck check, Spool spool, Ending ending) {
    this.columns = columns;
    this.check = check;
    this.spool = spool;
    this.ending = ending;
  }

  /** Takes the rows of a task that has computed all of them. */
  interface Ending {
    /** Ends a task whose state is committed, and closes the spool, now or later; null: there is none. */
    WriterCommitMessage end(Spool rows, RecordDigest digest, long deadLetters);
  }

  @Override
  public void write(InternalRow row) throws IOException {
    ProducerRecord<byte[], byte[]> record = columns.record(row);
    digest.add(record);
    if (check != null) {
      check.check(record);
    }
    if (spool != null) {
      spool.add(record);
    }
  }

  /** Spark calls this after the last row, when the task's state is committed. */
  @Override
  public WriterCommitMessage commit() {
    return ending.end(spool, digest, columns.deadLetters());
  }

  @Override
  public void abort() {
    if (spool != null) {
      spool.close();
    }
  }

  @Override
  public void close() {
    // The rows are deleted once they are published.
  }
}
