package clonos;

import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.FinalizedVersionRange;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Kafka's producer for the lane of one query, with the failure of a record that Kafka reports later.
 *
 * <p>Python calls it, one epoch after the other, and decides what an exception means.
 */
public final class LaneProducer implements AutoCloseable {
  private final KafkaProducer<byte[], byte[]> producer;
  private volatile Exception failure;

  /** @param options Kafka's options of a producer; with {@code transactional.id}, {@link #init} must be called */
  public LaneProducer(Map<String, String> options) {
    Properties properties = new Properties();
    properties.putAll(options);
    producer = new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer());
  }

  /**
   * Returns the version of Kafka's transactions that the cluster uses. From version 2 on, each transaction raises the
   * epoch of its producer (KIP-890).
   *
   * @param options Kafka's options of an admin client
   */
  public static int transactionVersion(Map<String, String> options) throws Exception {
    Properties properties = new Properties();
    properties.putAll(options);
    try (Admin admin = Admin.create(properties)) {
      FinalizedVersionRange version =
          admin.describeFeatures().featureMetadata().get().finalizedFeatures().get("transaction.version");
      return version == null ? 0 : version.maxVersionLevel();
    }
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

  void send(ProducerRecord<byte[], byte[]> record) {
    producer.send(
        record,
        (metadata, error) -> {
          if (error != null && failure == null) {
            failure = error;
          }
        });
  }

  /**
   * Sends the marker and commits the transaction.
   *
   * @return the marker's offset
   */
  public long commit(String logTopic, int logPartition, byte[] marker) throws Exception {
    Future<RecordMetadata> sent =
        producer.send(new ProducerRecord<>(logTopic, logPartition, System.currentTimeMillis(), null, marker));
    commitAgain();
    return sent.get().offset();
  }

  /**
   * Commits the transaction; after a timeout this may be called again.
   *
   * @throws RecordFailed Kafka refused a record, so the commit was not sent
   */
  public void commitAgain() throws RecordFailed {
    try {
      producer.commitTransaction();
    } catch (RuntimeException refused) {
      raise();
      throw refused;
    }
  }

  /** Waits until Kafka has every record, outside of transactions. */
  public void flush() throws RecordFailed {
    producer.flush();
    raise();
  }

  private void raise() throws RecordFailed {
    if (failure != null) {
      throw new RecordFailed(failure);
    }
  }

  /** Aborts the transaction. */
  public void abort() {
    producer.abortTransaction();
  }

  /** Kafka did not accept a record; the cause is Kafka's own exception. */
  public static final class RecordFailed extends Exception {
    private static final long serialVersionUID = 1;

    RecordFailed(Exception cause) {
      super(cause.getMessage(), cause);
    }
  }

  /** Closes the producer without waiting; the next {@link #init} of the same id aborts an open transaction. */
  @Override
  public void close() {
    producer.close(Duration.ZERO);
  }
}
