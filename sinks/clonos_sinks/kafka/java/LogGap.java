package clonos;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ConcurrentModificationException;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Reads the records between the end of a lane's partition of the causal log, as the driver has read it, and the marker that
 * was written since.
 *
 * <p>One thread at a time checks; any thread may close.
 */
final class LogGap implements AutoCloseable {
  /** Msgpack: the first key of a record, "type", and its value. The format's version and the map's header come before. */
  private static final byte[] DETERMINANTS = "\u0000type\u0000determinants".getBytes(StandardCharsets.US_ASCII);

  private static final int HEAD = 2;
  private static final Duration POLL = Duration.ofMillis(100);
  private static final long TIMEOUT_NANOS = TimeUnit.SECONDS.toNanos(15);

  static {
    DETERMINANTS[0] = (byte) (0xa0 | "type".length());
    DETERMINANTS[1 + "type".length()] = (byte) (0xa0 | "determinants".length());
  }

  private final Map<String, String> options;
  private KafkaConsumer<byte[], byte[]> consumer;
  private volatile boolean closed;

  /** @param options the lane's options of a producer, which include the connection's */
  LogGap(Map<String, String> options) {
    this.options = options;
  }

  /**
   * Reads a range of offsets.
   *
   * @throws LaneClaimed it holds a record other than determinants, or was lost
   * @throws TimeoutException Kafka did not answer
   */
  void check(String topic, int partition, long from, long until) {
    TopicPartition log = new TopicPartition(topic, partition);
    if (until < from) {
      throw new LaneClaimed(log + " has lost records: its end was " + from + ", and the marker is at " + until);
    }
    if (consumer == null) {
      consumer = open();
    }
    try {
      consumer.assign(List.of(log));
      consumer.seek(log, from);
      long position = from;
      long movedAt = System.nanoTime();
      while (position < until) {
        for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
          if (record.offset() < until && !isDeterminants(record.value())) {
            throw new LaneClaimed("the driver has not read the claim in " + log + " at offset " + record.offset());
          }
        }
        if (consumer.position(log) > position) { // a slow cluster is not a failure
          position = consumer.position(log);
          movedAt = System.nanoTime();
        }
        if (closed || System.nanoTime() - movedAt > TIMEOUT_NANOS) {
          throw new TimeoutException(log + " was not read up to its marker at " + until);
        }
      }
    } finally {
      if (closed) {
        consumer.close(CloseOptions.timeout(Duration.ZERO));
      }
    }
  }

  private KafkaConsumer<byte[], byte[]> open() {
    Properties properties = new Properties();
    options.forEach(
        (name, value) -> {
          if (ConsumerConfig.configNames().contains(name)) {
            properties.put(name, value);
          }
        });
    properties.put("isolation.level", "read_uncommitted"); // the marker's transaction is open
    properties.put("auto.offset.reset", "none");
    properties.put("enable.auto.commit", "false");
    properties.put("allow.auto.create.topics", "false");
    properties.put("fetch.max.wait.ms", "5");
    return new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
  }

  private static boolean isDeterminants(byte[] value) {
    if (value == null || value.length < HEAD + DETERMINANTS.length) {
      return false;
    }
    for (int index = 0; index < DETERMINANTS.length; index++) {
      if (value[HEAD + index] != DETERMINANTS[index]) {
        return false;
      }
    }
    return true;
  }

  @Override
  public void close() {
    closed = true;
    KafkaConsumer<byte[], byte[]> open = consumer;
    if (open != null) {
      try {
        open.close(CloseOptions.timeout(Duration.ZERO));
      } catch (ConcurrentModificationException checking) {
        // The thread that checks closes it.
      }
    }
  }

  /** Another record than determinants precedes the marker: a claim of another driver. */
  static final class LaneClaimed extends RuntimeException {
    private static final long serialVersionUID = 1;

    LaneClaimed(String message) {
      super(message);
    }
  }
}
