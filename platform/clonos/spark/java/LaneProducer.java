package clonos;

import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Kafka's producer for one lane. It keeps the first failure of a record, which Kafka reports later.
 *
 * <p>One thread at a time uses it.
 */
public final class LaneProducer implements AutoCloseable {
  /** What Kafka's client says if it refuses a call because of an earlier failure. */
  private static final String ERROR_STATE = "Cannot execute transactional method because we are in an error state";

  private final KafkaProducer<byte[], byte[]> producer;
  private volatile Exception failure;
  private Future<RecordMetadata> marker;

  /** @param options Kafka's options of a producer; with {@code transactional.id}, {@link #init} must be called */
  public LaneProducer(Map<String, String> options) {
    Properties properties = new Properties();
    properties.putAll(options);
    producer = new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer());
  }

  /** Fences every earlier producer of the transactional id, and aborts its open transaction. */
  public void init() {
    producer.initTransactions();
  }

  /** Begins a transaction. */
  public void begin() {
    failure = null;
    producer.beginTransaction();
  }

  Future<RecordMetadata> send(ProducerRecord<byte[], byte[]> record) {
    try {
      return producer.send(
          record,
          (metadata, error) -> {
            if (error != null && failure == null) {
              failure = error;
            }
          });
    } catch (RuntimeException refused) {
      raise(); // Kafka's client refuses every record after the first failure, without its cause
      throw new RecordFailed(refused);
    }
  }

  /** Queues the marker, the last record of the transaction. */
  public void mark(String logTopic, int logPartition, byte[] value) {
    marker = send(new ProducerRecord<>(logTopic, logPartition, null, value));
  }

  /**
   * Commits the transaction.
   *
   * @return the marker's offset
   * @throws RecordFailed Kafka refused a record, so the commit was not sent
   */
  public long commit() throws Exception {
    try {
      producer.commitTransaction();
    } catch (RuntimeException refused) {
      raise(); // the failure of a record, because of which the client did not send the commit
      if (String.valueOf(refused.getMessage()).startsWith(ERROR_STATE)) {
        throw new RecordFailed(refused); // an earlier failure without a record: the client sent no commit either
      }
      throw refused;
    }
    return marker.get().offset();
  }

  /** Waits until Kafka has every record, outside of transactions. */
  public void flush() {
    producer.flush();
    raise();
  }

  private void raise() {
    if (failure != null) {
      throw new RecordFailed(failure);
    }
  }

  /** Aborts the transaction. */
  public void abort() {
    producer.abortTransaction();
  }

  /**
   * Aborts the transaction if that is possible; if not, the next {@link #init} of the same id aborts it.
   *
   * <p>Spark interrupts the tasks of a failed epoch. Kafka's client gives up in an interrupted thread, and readers of the
   * output would wait until the transaction times out.
   */
  void abortQuietly() {
    boolean interrupted = Thread.interrupted();
    try {
      abort();
    } catch (RuntimeException ignored) {
      // The failure because of which the transaction is aborted is reported.
    } finally {
      if (interrupted) {
        Thread.currentThread().interrupt();
      }
    }
  }

  /** Kafka did not accept a record; the cause is Kafka's own exception. */
  public static final class RecordFailed extends RuntimeException {
    private static final long serialVersionUID = 1;

    RecordFailed(Exception cause) {
      super(cause.getMessage(), cause);
    }
  }

  /** Closes the producer without waiting; the next {@link #init} of the same id aborts an open transaction. */
  @Override
  public void close() {
    boolean interrupted = Thread.interrupted(); // in an interrupted thread it would throw, and close nothing
    try {
      producer.close(Duration.ZERO);
    } finally {
      if (interrupted) {
        Thread.currentThread().interrupt();
      }
    }
  }
}
