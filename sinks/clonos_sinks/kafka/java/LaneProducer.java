package clonos;

import clonos.KafkaFailure.RecordFailed;
import clonos.KafkaFailure.TransactionTooSlow;
import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.Metric;
import org.apache.kafka.common.errors.InterruptException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Kafka's producer for one lane. It keeps the first failure of a record, which Kafka reports later.
 *
 * <p>A slow cluster, such as one that throttles its clients, is not a failure: the producer waits while Kafka acknowledges
 * records, until the transaction times out.
 *
 * <p>Before it sends a commit, it compares the marker's offset with the end of the partition that the driver has read. Records
 * in between are determinants. A claim among them means that the driver has read from a leader that Kafka had already
 * replaced, and another driver owns the lane (docs/adr/0026-marker-offset.md).
 *
 * <p>One thread at a time uses it.
 */
public final class LaneProducer implements AutoCloseable {
  /** What Kafka's client says if it refuses a call because of an earlier failure. */
  private static final String ERROR_STATE = "Cannot execute transactional method because we are in an error state";

  /** Records beyond this are not queued: they would wait longer than a batch may, in a slow cluster. */
  private static final long WINDOW_BYTES = 16L << 20;

  /** The memory in use is read each time that this many bytes were queued, and after the marker. */
  private static final long SAMPLED_BYTES = WINDOW_BYTES / 64;

  /** Without an acknowledgement for this time, Kafka does not make progress. */
  private static final long STALLED_NANOS = TimeUnit.SECONDS.toNanos(60);

  /** After an acknowledgement that is not older, Kafka takes records. */
  private static final long RECENT_NANOS = TimeUnit.SECONDS.toNanos(30);

  private static final long POLL_MS = 100; // a failure and a stop are noticed within this time
  private static final String TIMEOUT_MS = "transaction.timeout.ms";

  private final KafkaProducer<byte[], byte[]> producer;
  private final long timeoutNanos;
  private final boolean lingers; // if not, Kafka's client sends records without a flush
  private final AtomicLong acknowledgedBytes;
  private final AtomicLong queuedBytes = new AtomicLong();
  private final Object room = new Object();
  private volatile long awaited = -1; // the number of queued bytes that a thread waits for; -1: none waits
  private volatile boolean closed;
  private volatile long acknowledgedAt;
  private volatile Exception failure;
  private long begunAt;
  private Future<RecordMetadata> marker;
  private final LogGap gap;
  private long unsampledBytes;
  private long bufferBytes;

  /** @param options Kafka's options of a producer; with {@code transactional.id}, {@link #init} must be called */
  public LaneProducer(Map<String, String> options) {
    Properties properties = new Properties();
    properties.putAll(options);
    String timeout = options.get(TIMEOUT_MS);
    timeoutNanos = timeout == null ? Long.MAX_VALUE : TimeUnit.MILLISECONDS.toNanos(Long.parseLong(timeout));
    lingers = !"0".equals(options.get("linger.ms"));
    producer = new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer());
    gap = new LogGap(options);
    acknowledgedBytes = TaskProgress.acknowledgedBytes(options.getOrDefault("client.id", ""));
  }

  /** Connects to the brokers of a topic, or keeps connected, before {@link #init}: this fences no producer. */
  public void connect(String topic) {
    producer.partitionsFor(topic);
  }

  /** Fences every earlier producer of the transactional id, and aborts its open transaction. */
  public void init() {
    producer.initTransactions();
  }

  /**
   * Returns the most memory that its buffers have had in use, in bytes. Kafka's client keeps the memory of batches for
   * later ones; each output partition has a batch.
   */
  public long bufferBytes() {
    return bufferBytes;
  }

  private void sampleBuffers() {
    unsampledBytes = 0;
    bufferBytes = Math.max(bufferBytes, metric("buffer-total-bytes") - metric("buffer-available-bytes"));
  }

  private long metric(String name) {
    for (Metric metric : producer.metrics().values()) {
      if (metric.metricName().name().equals(name)) {
        return ((Number) metric.metricValue()).longValue();
      }
    }
    throw new IllegalStateException("Kafka's producer has no metric " + name);
  }

  /** Begins a transaction. */
  public void begin() {
    failure = null;
    begunAt = System.nanoTime();
    acknowledgedAt = begunAt;
    producer.beginTransaction();
  }

  Future<RecordMetadata> send(ProducerRecord<byte[], byte[]> record) {
    long bytes = bytes(record);
    awaitRoom(Math.max(0, WINDOW_BYTES - bytes));
    queuedBytes.addAndGet(bytes);
    unsampledBytes += bytes;
    if (unsampledBytes >= SAMPLED_BYTES) {
      sampleBuffers();
    }
    try {
      return producer.send(
          record,
          (metadata, error) -> {
            if (error != null && failure == null) {
              failure = error;
            }
            release(bytes, error != null);
          });
    } catch (RuntimeException refused) {
      queuedBytes.addAndGet(-bytes);
      raise(); // Kafka's client refuses every record after the first failure, without its cause
      throw new RecordFailed(refused);
    }
  }

  /**
   * Queues the records of a task of an epoch; with task -1 those of all, in the order of their partitions.
   *
   * @param topic replaces the topics and partitions of the records; null: they keep their own
   */
  public void send(SpooledEpoch epoch, int task, String topic) {
    epoch.forEach(task, record -> send(topic == null ? record : moved(record, topic)));
  }

  private static ProducerRecord<byte[], byte[]> moved(ProducerRecord<byte[], byte[]> record, String topic) {
    return new ProducerRecord<>(topic, null, record.timestamp(), record.key(), record.value(), record.headers());
  }

  private void release(long bytes, boolean error) {
    if (!error) {
      acknowledgedAt = System.nanoTime();
      acknowledgedBytes.addAndGet(bytes);
    }
    if (queuedBytes.addAndGet(-bytes) <= awaited || error) {
      synchronized (room) {
        room.notifyAll();
      }
    }
  }

  /** Waits until at most this many bytes are queued. */
  private void awaitRoom(long most) {
    if (queuedBytes.get() <= most) {
      return;
    }
    synchronized (room) {
      awaited = most;
      try {
        long began = System.nanoTime();
        while (queuedBytes.get() > most && failure == null && !closed) {
          if (isTooSlow()) {
            throw new RecordFailed(new TransactionTooSlow(queuedBytes.get(), timeoutNanos));
          }
          if (isTimedOut() || System.nanoTime() - Math.max(began, acknowledgedAt) > STALLED_NANOS) {
            throw new RecordFailed(new TimeoutException(queuedBytes + " bytes are not acknowledged in time"));
          }
          room.wait(POLL_MS);
        }
      } catch (InterruptedException stopped) {
        throw new InterruptException(stopped);
      } finally {
        awaited = -1;
      }
    }
  }

  private boolean isTimedOut() {
    return System.nanoTime() - begunAt > timeoutNanos;
  }

  /** Whether the transaction has timed out although Kafka takes records: then it is too large, and no broker is away. */
  private boolean isTooSlow() {
    long since = System.nanoTime() - acknowledgedAt;
    return isTimedOut() && acknowledgedAt - begunAt > 0 && since < RECENT_NANOS;
  }

  /** The bytes of a record's key, value and headers. */
  static long bytes(ProducerRecord<byte[], byte[]> record) {
    long bytes = length(record.key()) + length(record.value());
    for (Header header : record.headers()) {
      bytes += header.key().length() + length(header.value());
    }
    return bytes;
  }

  private static long length(byte[] data) {
    return data == null ? 0 : data.length;
  }

  /** Queues the marker, the last record of the transaction. */
  public void mark(String logTopic, int logPartition, byte[] value) {
    marker = send(new ProducerRecord<>(logTopic, logPartition, null, value));
    sampleBuffers();
  }

  /**
   * Commits the transaction, unless another driver has claimed the lane, or a topic was deleted and created again.
   *
   * @param end the end of the marker's partition when the driver checked that it owns the lane; -1: it is not compared
   * @param topicIds the ids of the topics that may have records of the transaction, as far as they are known
   * @return the marker's offset
   * @throws RecordFailed Kafka refused a record, another driver claimed the lane, or a topic has another id, so the commit
   *     was not sent
   */
  public long commit(long end, Map<String, String> topicIds) throws Exception {
    if (end >= 0) {
      check(end, topicIds);
    }
    while (true) {
      long queued = queuedBytes.get();
      try {
        producer.commitTransaction(); // sends what is queued, then the commit
        return marker.get().offset();
      } catch (RuntimeException refused) {
        raise(); // a record failed, so the client did not send the commit
        if (String.valueOf(refused.getMessage()).startsWith(ERROR_STATE)) {
          throw new RecordFailed(refused); // an earlier failure without a record: the client sent no commit either
        }
        boolean progress = queuedBytes.get() < queued;
        if (refused instanceof TimeoutException && isTooSlow() && queuedBytes.get() > 0) {
          throw new RecordFailed(new TransactionTooSlow(queuedBytes.get(), timeoutNanos)); // the commit was not sent
        }
        if (!(refused instanceof TimeoutException) || !progress || closed) {
          throw refused;
        }
      }
    }
  }

  private void check(long end, Map<String, String> topicIds) throws Exception {
    if (lingers) {
      Thread flushing = new Thread(this::flushQuietly, "clonos-lane-flush"); // Kafka's call has no limit for no progress
      flushing.setDaemon(true);
      flushing.start();
    }
    try {
      awaitRoom(0);
      raise();
      RecordMetadata written = marker.get();
      if (written.offset() != end) {
        gap.check(written.topic(), written.partition(), end, written.offset());
      }
      TopicIds.check(producer, topicIds);
    } catch (RecordFailed failure) {
      throw failure;
    } catch (Exception failure) { // also an interrupt: the commit was not sent, so the transaction can be aborted
      throw new RecordFailed(failure);
    }
  }

  private void flushQuietly() {
    try {
      producer.flush();
    } catch (RuntimeException ended) {
      // The producer was closed, or the records fail one by one.
    }
  }

  /** Waits until Kafka has every record, outside of transactions. */
  public void flush() {
    awaitRoom(WINDOW_BYTES / 16); // with a limit for no progress, which Kafka's own call does not have
    producer.flush();
    raise();
  }

  private void raise() {
    Exception reported = failure;
    if (reported != null && isTooSlow()) { // a record waited behind others, or the broker has aborted the transaction
      reported = new TransactionTooSlow(queuedBytes.get(), timeoutNanos);
    }
    if (reported != null) {
      throw new RecordFailed(reported);
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
      // The reported failure is the one that aborts the transaction.
    } finally {
      if (interrupted) {
        Thread.currentThread().interrupt();
      }
    }
  }

  /** Closes the producer without waiting; the next {@link #init} of the same id aborts an open transaction. */
  @Override
  public void close() {
    closed = true;
    gap.close();
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
