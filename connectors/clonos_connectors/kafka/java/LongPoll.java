package clonos;

import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InterruptException;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.kafka010.KafkaSourceOffset;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Waits at the broker until a partition has a record: one fetch request instead of repeated questions for offsets. */
final class LongPoll implements AutoCloseable {
  private static final Logger LOG = LoggerFactory.getLogger(LongPoll.class);
  private static final String PREFIX = "kafka.";
  private static final long REQUEST_MS = 30_000;
  private static final long PAUSE_NS = TimeUnit.MINUTES.toNanos(1);

  private final Properties properties = new Properties();
  private final Duration timeout;
  private volatile KafkaConsumer<byte[], byte[]> consumer; // null: not needed yet, or failed
  private volatile boolean woken;
  private boolean failed;
  private long failedAt;

  /**
   * @param options options of Spark's Kafka source
   * @param timeoutMs longest wait
   */
  LongPoll(CaseInsensitiveStringMap options, long timeoutMs) {
    options.forEach(
        (name, value) -> {
          if (name.startsWith(PREFIX)) {
            properties.put(name.substring(PREFIX.length()), value);
          }
        });
    properties.put("enable.auto.commit", "false");
    properties.put("auto.offset.reset", "latest"); // never used for data: Spark's source reports lost records
    properties.put("allow.auto.create.topics", "false");
    properties.put("fetch.max.wait.ms", Long.toString(timeoutMs));
    properties.put("fetch.min.bytes", "1");
    // The broker returns one batch at least, of any size; the records are not used.
    properties.put("fetch.max.bytes", "1");
    properties.put("max.partition.fetch.bytes", "1");
    properties.put("max.poll.records", "1");
    properties.put("enable.metrics.push", "false");
    properties.put("request.timeout.ms", Long.toString(timeoutMs + REQUEST_MS));
    timeout = Duration.ofMillis(timeoutMs);
  }

  /**
   * Waits until a partition has a record at or after its offset in `start`, at most the timeout.
   *
   * <p>Kafka's errors are left to Spark's source, which asks for the same partitions: this only stops waiting for a
   * minute.
   *
   * @return whether there may be such a record
   * @throws InterruptedException (undeclared, as Spark expects it of a source) Spark stops the query
   */
  boolean await(Offset start) {
    if (failed && System.nanoTime() - failedAt < PAUSE_NS) {
      return false;
    }
    try {
      Map<TopicPartition, Long> offsets = new HashMap<>();
      KafkaSourceOffset parsed = KafkaSourceOffset.apply(start);
      scala.jdk.javaapi.CollectionConverters.asJava(parsed.partitionToOffsets())
          .forEach((partition, offset) -> offsets.put(partition, (Long) offset));
      if (offsets.isEmpty()) {
        return false; // no topic matches the pattern yet
      }
      if (consumer == null) {
        consumer = new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        failed = false;
      }
      if (!consumer.assignment().equals(offsets.keySet())) {
        consumer.assign(offsets.keySet());
        offsets.forEach(consumer::seek);
      }
      offsets.forEach(
          (partition, offset) -> {
            if (consumer.position(partition) != offset) {
              consumer.seek(partition, offset);
            }
          });
      return !woken && !consumer.poll(timeout).isEmpty();
    } catch (WakeupException stopping) {
      return false;
    } catch (InterruptException stopped) {
      Thread.interrupted(); // Spark closes the source in this thread
      throw LongPoll.<RuntimeException>undeclared(new InterruptedException(stopped.getMessage()));
    } catch (KafkaException failure) {
      LOG.warn("No long poll for a minute; the source asks for offsets instead: {}", failure.toString());
      close();
      failed = true;
      failedAt = System.nanoTime();
      return false;
    }
  }

  /** Ends a wait in progress, and every later one at once. Any thread may call this. */
  void wakeUp() {
    woken = true;
    KafkaConsumer<byte[], byte[]> waiting = consumer;
    if (waiting != null) {
      waiting.wakeup();
    }
  }

  @SuppressWarnings("unchecked")
  private static <T extends Throwable> T undeclared(Throwable failure) throws T {
    throw (T) failure;
  }

  @Override
  public void close() {
    KafkaConsumer<byte[], byte[]> closing = consumer;
    consumer = null;
    if (closing != null) {
      try {
        closing.close(CloseOptions.timeout(Duration.ZERO));
      } catch (KafkaException failure) {
        LOG.warn("The consumer of a long poll was not closed cleanly: {}", failure.toString());
      }
    }
  }
}
