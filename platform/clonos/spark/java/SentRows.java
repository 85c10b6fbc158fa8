package clonos;

import java.io.IOException;
import java.io.UncheckedIOException;
import org.apache.spark.sql.connector.write.WriterCommitMessage;

/** The last message of a cluster's task that has sent its rows to the driver. Few rows are in the message. */
final class SentRows implements WriterCommitMessage {
  private static final long serialVersionUID = 1;

  /** The driver holds the messages of all tasks until the last one has ended. */
  private static final int MOST_BYTES = 64 * 1024;

  private final int partition;
  private final String[] topics;
  private final long bytes;
  private final RecordDigest digest;
  private final long deadLetters;
  private byte[] rows;

  private SentRows(
      int partition, String[] topics, long bytes, byte[] rows, RecordDigest digest, long deadLetters) {
    this.partition = partition;
    this.topics = topics;
    this.bytes = bytes;
    this.rows = rows;
    this.digest = digest;
    this.deadLetters = deadLetters;
  }

  /**
   * Sends the rows of a task that has computed all of them.
   *
   * @param query the key of one start of the query
   * @param rows null: the rows were only counted
   */
  static SentRows of(String query, long epoch, int partition, Spool rows, RecordDigest digest, long deadLetters) {
    if (rows == null) {
      return new SentRows(partition, new String[0], 0, new byte[0], digest, deadLetters);
    }
    try (rows) {
      long bytes = rows.bytes();
      byte[] few = new byte[0];
      if (bytes <= MOST_BYTES) {
        few = rows.content().readAllBytes();
      } else {
        RowTransfer.send(query, epoch, partition, rows.content());
      }
      return new SentRows(partition, rows.topics(), bytes, few, digest, deadLetters);
    } catch (IOException failure) {
      throw new UncheckedIOException(failure);
    } catch (RuntimeException failure) {
      throw failure;
    } catch (Exception failure) {
      throw new IllegalStateException("the rows were not sent to the driver", failure);
    }
  }

  int partition() {
    return partition;
  }

  /** The topics of the records, as {@link Spool#topics()}. */
  String[] topics() {
    return topics;
  }

  /** The size of all rows of the task. */
  long bytes() {
    return bytes;
  }

  /** Returns the rows, if they are few, and forgets them; else empty. */
  byte[] takeRows() {
    byte[] few = rows;
    rows = null;
    return few;
  }

  RecordDigest digest() {
    return digest;
  }

  long deadLetters() {
    return deadLetters;
  }
}
