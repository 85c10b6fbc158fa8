package clonos;

import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeTransactionsResult;
import org.apache.kafka.clients.admin.FinalizedVersionRange;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.TopicAuthorizationException;
import org.apache.kafka.common.errors.TransactionalIdNotFoundException;
import org.apache.kafka.common.utils.AppInfoParser;

/** What lanes read from a Kafka cluster. This JVM keeps one admin client for each cluster and user. */
public final class ClusterAdmin {
  private static final Map<Map<String, String>, ClusterAdmin> CLUSTERS = new ConcurrentHashMap<>();

  private final Admin admin;

  private ClusterAdmin(Map<String, String> options) {
    Properties properties = new Properties();
    properties.putAll(options);
    admin = Admin.create(properties);
  }

  /** @param options Kafka's options of an admin client */
  public static ClusterAdmin of(Map<String, String> options) {
    return CLUSTERS.computeIfAbsent(Map.copyOf(options), ClusterAdmin::new);
  }

  /**
   * Returns the version of Kafka's transactions that cluster and client use. From version 2 on, each transaction raises
   * the epoch of its producer (KIP-890), if the client is Kafka's version 4 or later.
   */
  public int transactionVersion() throws ExecutionException, InterruptedException {
    if (Integer.parseInt(AppInfoParser.getVersion().split("\\.")[0]) < 4) {
      return 0;
    }
    FinalizedVersionRange version =
        admin.describeFeatures().featureMetadata().get().finalizedFeatures().get("transaction.version");
    return version == null ? 0 : version.maxVersionLevel();
  }

  /** Returns the newest producer of each transactional id (KIP-664); {@link NewestProducer#NONE} if Kafka knows none. */
  public Map<String, NewestProducer> newestProducers(Collection<String> transactionalIds)
      throws ExecutionException, InterruptedException {
    DescribeTransactionsResult described = admin.describeTransactions(transactionalIds);
    Map<String, NewestProducer> producers = new HashMap<>();
    for (String id : transactionalIds) {
      try {
        TransactionDescription state = described.description(id).get();
        producers.put(id, new NewestProducer(state.producerId(), state.producerEpoch()));
      } catch (ExecutionException failure) {
        if (!(failure.getCause() instanceof TransactionalIdNotFoundException)) {
          throw failure;
        }
        producers.put(id, NewestProducer.NONE); // not used for a week (`transactional.id.expiration.ms`)
      }
    }
    return producers;
  }

  /** Reads what a topic accepts; this does not create the topic. */
  Topic describe(String topic) throws ExecutionException, InterruptedException {
    ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
    KafkaFuture<Config> settings = admin.describeConfigs(List.of(resource)).values().get(resource); // both at once
    int partitions = admin.describeTopics(List.of(topic)).topicNameValues().get(topic).get().partitions().size();
    try {
      Config described = settings.get();
      boolean ownTimes = "LogAppendTime".equals(text(described, "message.timestamp.type"));
      return new Topic(
          partitions,
          (int) number(described, "max.message.bytes", Integer.MAX_VALUE),
          ownTimes ? Long.MAX_VALUE : number(described, "message.timestamp.before.max.ms", Long.MAX_VALUE),
          ownTimes ? Long.MAX_VALUE : number(described, "message.timestamp.after.max.ms", Long.MAX_VALUE));
    } catch (ExecutionException failure) {
      if (failure.getCause() instanceof TopicAuthorizationException) {
        // A client may write without the right to describe; the broker refuses what it does not accept.
        return new Topic(partitions, Integer.MAX_VALUE, Long.MAX_VALUE, Long.MAX_VALUE);
      }
      throw failure;
    }
  }

  private static long number(Config settings, String name, long otherwise) {
    String value = text(settings, name);
    return value == null ? otherwise : Long.parseLong(value);
  }

  private static String text(Config settings, String name) {
    ConfigEntry entry = settings.get(name);
    return entry == null ? null : entry.value();
  }

  /**
   * What a topic accepts.
   *
   * @param pastMillis how far a record's timestamp may be before the broker's clock
   * @param futureMillis how far it may be after that
   */
  record Topic(int partitions, int maxMessageBytes, long pastMillis, long futureMillis) {}

  /** Id and epoch of the newest producer of a transactional id. */
  public record NewestProducer(long producer, int epoch) {
    static final NewestProducer NONE = new NewestProducer(-1, -1);
    private static final int LAST_EPOCH = Short.MAX_VALUE - 1;

    /** Whether the next init after this producer opened the other one. Kafka starts with a new id after the last epoch. */
    public boolean isFollowedBy(NewestProducer next) {
      if (equals(NONE) || epoch >= LAST_EPOCH) {
        return next.epoch == 0;
      }
      return next.producer == producer && next.epoch == epoch + 1;
    }
  }
}
