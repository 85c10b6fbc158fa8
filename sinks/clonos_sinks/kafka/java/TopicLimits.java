package clonos;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/**
 * The limits of the topics to which an epoch or one of its lanes writes. Each is looked up at its first record, and again by
 * the records of a live epoch, which lasts minutes: Kafka's producer would wait 30 s for a topic that was deleted.
 */
final class TopicLimits {
  /** The buffer follows the default topic. */
  private static final String BUFFER = "max.message.bytes of the sink's default topic";

  private static final long VALID_NANOS = 5_000_000_000L;

  private final ClusterAdmin cluster;
  private final String defaultTopic;
  private final int requestBytes;
  private final int bufferBytes;
  private final Map<String, Limits> limits = new ConcurrentHashMap<>();

  /**
   * @param defaultTopic the topic that existed when the query started, or null
   * @param requestBytes the largest batch that fits into a request
   * @param bufferBytes the largest batch that fits into the producer's buffer
   */
  TopicLimits(ClusterAdmin cluster, String defaultTopic, int requestBytes, int bufferBytes) {
    this.cluster = cluster;
    this.defaultTopic = defaultTopic;
    this.requestBytes = requestBytes;
    this.bufferBytes = bufferBytes;
  }

  Limits of(String topic) {
    Limits known = limits.get(topic);
    return known != null && System.nanoTime() - known.readAt() < VALID_NANOS ? known : newest(topic);
  }

  /** Reads the limits again: a user may have raised them since. */
  Limits newest(String topic) {
    return limits.compute(topic, (name, old) -> read(name));
  }

  private Limits read(String topic) {
    long now = System.nanoTime();
    try {
      ClusterAdmin.Topic described = cluster.describe(topic);
      int bytes = Math.min(described.maxMessageBytes(), Math.min(requestBytes, bufferBytes));
      String setting = "the topic's max.message.bytes";
      if (bytes < described.maxMessageBytes()) {
        setting = bytes < bufferBytes ? "the brokers' socket.request.max.bytes" : BUFFER;
      }
      return new Limits(described.partitions(), bytes, setting, described.pastMillis(), described.futureMillis(), now);
    } catch (InterruptedException stopped) {
      Thread.currentThread().interrupt();
      throw new CarriedError("EpochFailed", "The epoch was stopped.", "", "");
    } catch (ExecutionException failure) {
      if (!(failure.getCause() instanceof UnknownTopicOrPartitionException)) {
        throw KafkaFailure.typed("Kafka did not describe the topic " + topic, failure, "BrokerUnavailable");
      }
      if (topic.equals(defaultTopic)) {
        throw new CarriedError(
            "SinkTopicDeleted",
            "The sink topic '" + topic + "' existed when the job started, and was deleted.",
            "",
            "create it again: `clonos kafka create " + topic + "`; the job continues with the first unpublished epoch.");
      }
      throw new CarriedError(
          "TopicMissing",
          "The sink topic '" + topic + "' does not exist.",
          "the record was not published; its epoch is replayed when the job runs again.",
          "create it: `clonos kafka create " + topic + "`, or fix the name in the job.");
    }
  }

  /**
   * What a topic accepts.
   *
   * @param partitions number of its partitions
   * @param batchBytes largest size of a batch with one record
   * @param setting what limits that size
   * @param pastMillis how far a record's timestamp may be before the broker's clock
   * @param futureMillis how far it may be after that
   * @param readAt when it was read, in the time of {@link System#nanoTime}
   */
  record Limits(int partitions, int batchBytes, String setting, long pastMillis, long futureMillis, long readAt) {}
}
