package clonos;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeRead;
import org.apache.spark.sql.kafka010.KafkaRecordToRowConverter;

/**
 * Reads several partitions of a topic in one task of a live query, until the epoch is cut or its time is over.
 *
 * <p>Spark asks for the next record when the operators have handed over all rows of the last one. So the rows that a task has
 * produced by then come from whole records: the reader hands them to the {@link LivePublisher}.
 *
 * <p>Records that arrive close together share a fetch: at high rates a fetch for each record costs the broker more than the
 * records do. A lone record does not wait.
 */
final class LiveReader implements SupportsRealTimeRead<InternalRow> {
  private static final long LONGEST_POLL_NANOS = 100_000_000L; // a cut is noticed within this time
  private static final long LONGEST_GAP_NANOS = 1_000_000_000L;
  private static final int EXPECTED_RECORDS = 3; // if it expects these in a pause of the publisher, a fetch waits
  private static final int MANY_RECORDS = 500; // after a fetch of these, the next one does not wait: they are a backlog
  private static final int MOST_RECORDS = 5_000; // of a fetch
  private static final long LEAD_NANOS = 2_000_000L; // a fetch that waits ends this time before the next step
  private static final long COUNTED_NANOS = 1_000_000_000L; // partitions are counted this often
  private static final int MISSING_LOOKS = 3; // a broker that starts may not know a topic for a moment
  private static final long MISSING_NANOS = 100_000_000L; // between two fetches then: each fails at once, and is logged
  private static final int SMOOTHING = 8; // of the moving average

  /** Consumers between two epochs. */
  private static final Map<Key, Kept> KEPT = new ConcurrentHashMap<>();

  private final Slice slice;
  private final Map<TopicPartition, Long> next;
  private final scala.Function1<ConsumerRecord<byte[], byte[]>, UnsafeRow> toRow;
  private final LivePublisher publisher;
  private final List<TopicIds.Reading> topics = new ArrayList<>();
  private Kept kept;
  private UnsafeRow row;
  private ConsumerRecord<byte[], byte[]> unfinished;
  private boolean failed;

  LiveReader(Slice slice) {
    this.slice = slice;
    next = new HashMap<>(slice.starts());
    toRow = new KafkaRecordToRowConverter().toUnsafeRowProjector(slice.headers());
    publisher = LivePublisher.find(slice.publisher());
    publisher.atEnd(LiveReader.class, () -> forget(slice.publisher()));
    kept = KEPT.remove(slice.key());
    if (kept == null) {
      kept = new Kept(open(slice));
    }
    if (!kept.next.equals(next)) {
      kept.seek(next);
    }
    next.keySet().stream().map(TopicPartition::topic).distinct().forEach(
        topic -> {
          TopicIds.Reading reading = TopicIds.Reading.of(kept.consumer, topic);
          if (reading != null) {
            topics.add(reading);
          }
        });
  }

  private record Key(String publisher, Set<TopicPartition> partitions) {}

  /**
   * What a task reads.
   *
   * @param publisher key of the {@link LivePublisher} that publishes its rows
   * @param starts the first offset of each partition
   * @param options Kafka's options of a consumer
   * @param headers whether rows have a column of headers
   */
  record Slice(
      String publisher, HashMap<TopicPartition, Long> starts, HashMap<String, Object> options, boolean headers)
      implements InputPartition {
    private Key key() {
      return new Key(publisher, Set.copyOf(starts.keySet()));
    }
  }

  /** The next offset of each partition that a task has read. */
  record Ends(HashMap<TopicPartition, Long> next) implements PartitionOffset {}

  /** A consumer, and what it has fetched that no task has read. */
  private static final class Kept {
    final KafkaConsumer<byte[], byte[]> consumer;
    Map<TopicPartition, Long> next = Map.of();
    Iterator<ConsumerRecord<byte[], byte[]>> fetched = Collections.emptyIterator();
    long fetchedAt;
    int count; // of the records that it fetched last
    long gapNanos = LONGEST_GAP_NANOS; // between two records: moving average
    final Map<String, Integer> partitions = new HashMap<>(); // the number of each topic
    long countedAt = System.nanoTime() - COUNTED_NANOS;
    int missing; // number of looks in a row that found a topic missing

    Kept(KafkaConsumer<byte[], byte[]> consumer) {
      this.consumer = consumer;
    }

    void seek(Map<TopicPartition, Long> starts) {
      consumer.assign(starts.keySet());
      starts.replaceAll(
          (partition, start) -> {
            if (start >= 0) {
              consumer.seek(partition, start);
              return start;
            }
            consumer.seekToBeginning(List.of(partition));
            return consumer.position(partition);
          });
      fetched = Collections.emptyIterator();
    }

    void fetch(long longestNanos) {
      ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofNanos(longestNanos));
      count = records.count();
      if (!records.isEmpty()) {
        long now = System.nanoTime();
        long gap = Math.min((now - fetchedAt) / count, LONGEST_GAP_NANOS);
        gapNanos += (gap - gapNanos) / SMOOTHING;
        fetchedAt = now;
      }
      fetched = records.iterator();
    }

    /**
     * Whether a topic has more partitions than before, or was missing in some looks in a row, by the client's metadata: the
     * plan of the next epoch reads the new partitions, or reports the deleted topic.
     */
    boolean hasChanged() {
      if (System.nanoTime() - countedAt < COUNTED_NANOS) {
        return false;
      }
      countedAt = System.nanoTime();
      boolean grown = false;
      boolean lacks = false;
      for (TopicPartition read : consumer.assignment()) {
        try {
          int number = consumer.partitionsFor(read.topic(), Duration.ZERO).size();
          Integer before = partitions.put(read.topic(), number);
          grown |= before != null && number > before;
        } catch (TimeoutException unknown) { // it does not wait: a deleted topic must not block a stop
          lacks = true;
        }
      }
      missing = lacks ? missing + 1 : 0;
      return grown || missing == MISSING_LOOKS;
    }
  }

  /** Connects the consumer of a task that is not started, or keeps it connected; it reads no record. */
  static void connect(Slice slice) {
    Kept known = KEPT.remove(slice.key()); // a task that starts in between opens another one
    Kept kept = known == null ? new Kept(open(slice)) : known;
    try {
      kept.consumer.endOffsets(slice.starts().keySet());
      for (TopicPartition read : slice.starts().keySet()) { // the task notices later ones
        kept.partitions.computeIfAbsent(read.topic(), topic -> kept.consumer.partitionsFor(topic).size());
      }
    } catch (RuntimeException away) {
      kept.consumer.close(CloseOptions.timeout(Duration.ZERO));
      throw away;
    }
    keep(slice.key(), kept);
  }

  private static void keep(Key key, Kept kept) {
    Kept other = KEPT.put(key, kept);
    if (other != null) {
      other.consumer.close(CloseOptions.timeout(Duration.ZERO));
    }
  }

  private static KafkaConsumer<byte[], byte[]> open(Slice slice) {
    Map<String, Object> options = new HashMap<>(slice.options());
    options.put("key.deserializer", ByteArrayDeserializer.class.getName());
    options.put("value.deserializer", ByteArrayDeserializer.class.getName());
    options.remove("group.id");
    options.put("enable.auto.commit", "false");
    options.put("auto.offset.reset", "none");
    options.put("enable.metrics.push", "false");
    options.putIfAbsent("metadata.max.age.ms", "10000"); // new partitions are noticed within this time
    options.putIfAbsent("max.poll.records", Integer.toString(MOST_RECORDS));
    options.put("fetch.max.wait.ms", "500"); // a record ends it; an idle topic costs two fetches a second
    return new KafkaConsumer<>(options);
  }

  @Override
  public RecordStatus nextWithTimeout(Long startedAt, Long timeoutMs) {
    return nextWithTimeout(timeoutMs);
  }

  @Override
  public RecordStatus nextWithTimeout(Long timeoutMs) {
    finish();
    long until = System.nanoTime() + timeoutMs * 1_000_000L;
    try {
      while (!kept.fetched.hasNext() || publisher.isCut()) {
        long left = until - System.nanoTime();
        if (left <= 0 || publisher.isCut()) {
          return RecordStatus.newStatusWithoutArrivalTime(false);
        }
        long pause = publisher.pauseNanos();
        boolean shares = kept.gapNanos * EXPECTED_RECORDS < pause && kept.count < MANY_RECORDS;
        long sharedAt = Math.max(kept.fetchedAt + pause, publisher.dueNanos() - LEAD_NANOS);
        long early = kept.missing > 0 ? MISSING_NANOS : shares ? sharedAt - System.nanoTime() : 0;
        if (early > 0) {
          LockSupport.parkNanos(Math.min(Math.min(early, left), LONGEST_POLL_NANOS));
          if (early > LONGEST_POLL_NANOS) {
            continue;
          }
        }
        kept.fetch(kept.missing > 0 ? 0 : Math.min(left, LONGEST_POLL_NANOS));
        if (kept.count > 0) {
          topics.forEach(TopicIds.Reading::check);
        }
        if (kept.hasChanged()) {
          publisher.cut();
        }
      }
    } catch (RuntimeException failure) {
      failed = true;
      throw failure;
    }
    unfinished = kept.fetched.next();
    row = toRow.apply(unfinished);
    return RecordStatus.newStatusWithoutArrivalTime(true);
  }

  /** All rows of the last record have left the operators of this task. */
  private void finish() {
    if (unfinished == null) {
      return;
    }
    TopicPartition partition = new TopicPartition(unfinished.topic(), unfinished.partition());
    next.put(partition, unfinished.offset() + 1);
    LiveRows.finish(
        List.of(new LiveRows.Finished(slice.publisher(), partition, unfinished.offset() + 1, unfinished.timestamp())));
    unfinished = null;
  }

  @Override
  public PartitionOffset getOffset() {
    finish(); // at the end of the epoch's time Spark asks for no further record
    return new Ends(new HashMap<>(next));
  }

  @Override
  public boolean next() {
    throw new UnsupportedOperationException("a live query reads with a time limit");
  }

  @Override
  public InternalRow get() {
    return row;
  }

  @Override
  public void close() {
    Kept consumer = kept;
    kept = null;
    if (consumer == null) {
      return;
    }
    if (!failed && unfinished == null && !publisher.isClosed()) {
      consumer.next = new HashMap<>(next);
      keep(slice.key(), consumer);
    } else {
      consumer.consumer.close(CloseOptions.timeout(Duration.ZERO));
    }
  }

  /** Closes the consumers of a publisher's tasks, except those of the tasks of its next epoch. */
  static void forget(String publisher, Slice... except) {
    Set<Key> next = Arrays.stream(except).map(Slice::key).collect(Collectors.toSet());
    KEPT.entrySet().removeIf(
        entry -> {
          boolean ended = entry.getKey().publisher().equals(publisher) && !next.contains(entry.getKey());
          if (ended) {
            entry.getValue().consumer.close(CloseOptions.timeout(Duration.ZERO));
          }
          return ended;
        });
  }
}
