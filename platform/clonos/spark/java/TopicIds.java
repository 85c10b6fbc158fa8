package clonos;

import java.lang.reflect.Field;
import java.util.HashMap;
import java.util.Map;
import java.util.function.Supplier;
import org.apache.kafka.clients.Metadata;
import org.apache.kafka.clients.MetadataSnapshot;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.Uuid;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.kafka010.KafkaBatchPartitionReader;
import org.apache.spark.sql.kafka010.consumer.InternalKafkaConsumer;
import scala.Option;

/**
 * Compares the ids of topics in a plan with those that Kafka's clients send with their requests (KIP-516).
 *
 * <p>A broker refuses a request with the id of a deleted topic. The client then requests the metadata again and continues in
 * the new topic with the same name, at the same offset. So the ids in the client's metadata, after the records were read or
 * acknowledged, are those of the topics that held them. They cost no request. The clients do not offer their metadata: it
 * is read by reflection.
 */
final class TopicIds {
  /** Spark's local property with the ids of the plan's source topics, as {@link #parse} reads them. */
  private static final String PLANNED = "clonos.topicIds";

  private TopicIds() {}

  /** Parses {@code topic=id}, separated by commas. */
  static Map<String, String> parse(String text) {
    Map<String, String> ids = new HashMap<>();
    for (String entry : text.split(",")) {
      int end = entry.indexOf('=');
      if (end > 0) {
        ids.put(entry.substring(0, end), entry.substring(end + 1));
      }
    }
    return ids;
  }

  /** Checks after the records of a transaction were acknowledged, before its commit is sent. */
  static void check(KafkaProducer<byte[], byte[]> producer, Map<String, String> planned) throws CreatedAgain {
    if (planned.isEmpty()) {
      return;
    }
    Map<String, Uuid> sent = ((Metadata) value(KafkaProducer.class, producer, "metadata")).topicIds();
    for (Map.Entry<String, String> topic : planned.entrySet()) {
      if (differs(topic.getValue(), sent.get(topic.getKey()))) {
        throw new CreatedAgain(topic.getKey());
      }
    }
  }

  /**
   * Whether a topic has another id now.
   *
   * @param planned in librdkafka's spelling, which is another alphabet of base64
   * @param now null or zero: the topic was deleted, or the broker does not know ids
   */
  private static boolean differs(String planned, Uuid now) {
    return now != null
        && !now.equals(Uuid.ZERO_UUID)
        && !now.toString().equals(planned.replace('+', '-').replace('/', '_'));
  }

  private static Object value(Class<?> type, Object object, String name) {
    try {
      Field field = type.getDeclaredField(name);
      field.setAccessible(true);
      return field.get(object);
    } catch (ReflectiveOperationException changed) {
      throw new IllegalStateException("Kafka's or Spark's client has no " + name, changed);
    }
  }

  /** A topic has another id than in the plan: it was deleted and created again. */
  static final class CreatedAgain extends Exception {
    private static final long serialVersionUID = 1;
    final String topic;

    CreatedAgain(String topic) {
      super("the topic " + topic + " was deleted and created again");
      this.topic = topic;
    }
  }

  /** Checks the records that a task reads from one topic. A record costs two comparisons of references. */
  static final class Reading {
    private final Supplier<?> consumers;
    private final String topic;
    private final String planned;
    private final boolean strict;
    private Object consumer;
    private Metadata metadata;
    private MetadataSnapshot checked;

    private Reading(Supplier<?> consumers, String topic, String planned, boolean strict) {
      this.consumers = consumers;
      this.topic = topic;
      this.planned = planned;
      this.strict = strict;
    }

    /** Returns null if the task belongs to no epoch with a plan, or the plan has no id of the topic. */
    static Reading of(KafkaBatchPartitionReader reader, String topic) {
      return of(
          () -> {
            Option<InternalKafkaConsumer> option =
                reader.org$apache$spark$sql$kafka010$KafkaBatchPartitionReader$$consumer()._consumer();
            return option.isEmpty() ? null : option.get();
          },
          topic,
          false);
    }

    /**
     * As above, for a consumer that the task keeps for a long time. Without an id in its metadata, while the topic is missing,
     * the client requests records by the topic's name, and may get those of a new topic.
     */
    static Reading of(KafkaConsumer<?, ?> consumer, String topic) {
      return of(() -> consumer, topic, true);
    }

    private static Reading of(Supplier<?> consumers, String topic, boolean strict) {
      TaskContext task = TaskContext.get();
      String ids = task == null ? null : task.getLocalProperty(PLANNED);
      String planned = ids == null ? null : parse(ids).get(topic);
      return planned == null ? null : new Reading(consumers, topic, planned, strict);
    }

    /** Fails the task if the record that was read last may be one of another topic than the plan's. */
    void check() {
      Object now = consumers.get();
      if (now != consumer) { // Spark replaces its consumer after an error
        consumer = now;
        checked = null;
        if (now != null) {
          Object kafka = now instanceof InternalKafkaConsumer ? value(InternalKafkaConsumer.class, now, "consumer") : now;
          Object delegate = value(KafkaConsumer.class, kafka, "delegate");
          metadata = (Metadata) value(delegate.getClass(), delegate, "metadata");
        }
      }
      if (consumer == null) {
        return;
      }
      MetadataSnapshot snapshot = metadata.fetchMetadataSnapshot();
      if (snapshot != checked) {
        Uuid id = metadata.topicIds().get(topic);
        if (differs(planned, id)) {
          throw new CarriedError(
              "SourceOffsetsExpired",
              "The source topic " + topic + " was deleted and created again: its id was " + planned + ", and is " + id + " now.",
              "no record of the new topic was published.",
              "");
        }
        if (strict && id == null) {
          throw new CarriedError(
              "EpochFailed", "Kafka's client read records of " + topic + " while it did not know the topic's id.", "", "");
        }
        checked = snapshot;
      }
    }
  }
}
