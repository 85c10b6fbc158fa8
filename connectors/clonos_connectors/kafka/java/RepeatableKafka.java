package clonos;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.UUID;
import org.apache.kafka.common.TopicPartition;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadAllAvailable;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.ReportsSourceMetrics;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeMode;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.kafka010.KafkaBatchInputPartition;
import org.apache.spark.sql.kafka010.KafkaBatchPartitionReader;
import org.apache.spark.sql.kafka010.KafkaMicroBatchStream;
import org.apache.spark.sql.kafka010.KafkaOffsetRange;
import org.apache.spark.sql.kafka010.KafkaSourceOffset;
import org.apache.spark.sql.kafka010.KafkaSourcePartitionOffset;
import org.apache.spark.sql.kafka010.KafkaSourceProvider;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Spark's Kafka source, with a fixed order of partitions, which waits at the broker while there is no input.
 *
 * <p>Spark's source returns the ranges of an epoch in the order of a hash map. That order may differ in a replay
 * (docs/adr/0023-ordered-partitions.md). This source sorts them by topic, partition and offset.
 *
 * <p>Spark asks a source without input for its newest offsets a hundred times a second (docs/adr/0021-long-polls.md has the
 * costs). This source answers as Spark's own does. The second of two consecutive questions without new input waits for a
 * record, by a long poll. The first does not wait, because Spark may then run an epoch without input, which closes windows.
 *
 * <p>A query with several sources asks them one after the other. It does not wait, because a record of another source
 * would have to wait too.
 *
 * <p>A topic of a pattern that was read to its end may be deleted: Spark's source would report lost data. The epoch after
 * the deletion ends without the topic.
 */
public final class RepeatableKafka implements TableProvider {
  /** Option of the source: the longest wait in milliseconds. */
  static final String WAIT_MS = "longpollms";

  private static final String GROUP = "group.id";

  /** With more unread records, a live query reads with as many tasks as it may have. */
  private static final long BACKLOG_RECORDS = 20_000;

  private final KafkaSourceProvider kafka = new KafkaSourceProvider();

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    return kafka.inferSchema(options);
  }

  @Override
  public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
    return new SourceTable((SupportsRead) kafka.getTable(schema, partitioning, properties));
  }

  private record SourceTable(SupportsRead kafka) implements SupportsRead {
    @Override
    public String name() {
      return kafka.name();
    }

    @Override
    public Column[] columns() {
      return kafka.columns();
    }

    @Override
    public Set<TableCapability> capabilities() {
      return Set.of(TableCapability.MICRO_BATCH_READ);
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
      return () -> new SourceScan(kafka.newScanBuilder(options).build(), options);
    }
  }

  private record SourceScan(Scan kafka, CaseInsensitiveStringMap options) implements Scan {
    @Override
    public StructType readSchema() {
      return kafka.readSchema();
    }

    @Override
    public String description() {
      return kafka.description();
    }

    @Override
    public CustomMetric[] supportedCustomMetrics() {
      return kafka.supportedCustomMetrics();
    }

    @Override
    public MicroBatchStream toMicroBatchStream(String location) {
      return new SourceStream((KafkaMicroBatchStream) kafka.toMicroBatchStream(location), options);
    }
  }

  /** Readers of the first attempts of an epoch's tasks only, which count the ages of records and check their topic. */
  private record GuardedReaders(PartitionReaderFactory kafka, RecordAges ages, long plannedAt)
      implements PartitionReaderFactory {
    @Override
    public PartitionReader<InternalRow> createReader(InputPartition partition) {
      EpochGuard.requireFirstAttempt();
      if (partition instanceof LiveReader.Slice slice) {
        return new LiveReader(slice);
      }
      PartitionReader<InternalRow> reader = kafka.createReader(partition);
      String topic = SourceStream.range(partition).topic();
      return new CountingReader(
          reader, TopicIds.Reading.of((KafkaBatchPartitionReader) reader, topic), ages, plannedAt);
    }
  }

  /** @param ids checks the topic that holds the records; null: it is not checked */
  private record CountingReader(
      PartitionReader<InternalRow> kafka, TopicIds.Reading ids, RecordAges ages, long plannedAt)
      implements PartitionReader<InternalRow> {
    /** The column `timestamp` of Spark's Kafka source, in microseconds. */
    private static final int TIMESTAMP = 5;

    @Override
    public boolean next() throws IOException {
      boolean more = kafka.next();
      if (ids != null) {
        ids.check();
      }
      return more;
    }

    @Override
    public InternalRow get() {
      InternalRow row = kafka.get();
      long timestamp = row.getLong(TIMESTAMP);
      if (timestamp >= 0) { // Kafka's -1: the record has none
        ages.count(plannedAt - timestamp);
      }
      return row;
    }

    @Override
    public CustomTaskMetric[] currentMetricsValues() {
      return kafka.currentMetricsValues();
    }

    @Override
    public void close() throws IOException {
      kafka.close();
    }
  }

  private static final class SourceStream extends RepeatableStream
      implements SupportsTriggerAvailableNow, SupportsRealTimeMode, ReportsSourceMetrics {
    private static final Comparator<InputPartition> ORDER =
        Comparator.<InputPartition, String>comparing(partition -> range(partition).topic())
            .thenComparing(partition -> range(partition).partition())
            .thenComparing(partition -> range(partition).fromOffset());

    private final KafkaMicroBatchStream kafka;
    private final LongPoll poll;
    private final boolean byPattern;
    private final Map<TopicPartition, Long> ends = new HashMap<>();
    private final boolean ownGroup;
    private Map<String, Object> consumerOptions;
    private volatile LiveReader.Slice[] slices = {};
    private boolean waits;
    private boolean wasIdle;

    SourceStream(KafkaMicroBatchStream kafka, CaseInsensitiveStringMap options) {
      this.kafka = kafka;
      poll = new LongPoll(options, options.getLong(WAIT_MS, 0));
      waits = options.getLong(WAIT_MS, 0) > 0 && !options.containsKey("minOffsetsPerTrigger");
      byPattern = options.containsKey("subscribePattern");
      // A topic of a pattern may be deleted and created again, and consumers keep records that they have fetched.
      ownGroup = byPattern || options.containsKey("kafka." + GROUP) || options.containsKey("groupIdPrefix");
      register();
    }

    @Override
    void wakeUp() {
      poll.wakeUp();
    }

    private ReadLimit bounded(ReadLimit limit) {
      Long bound = limit instanceof ReadAllAvailable ? bound() : null;
      return bound == null ? limit : ReadLimit.maxRows(bound);
    }

    @Override
    public Offset latestOffset(Offset start, ReadLimit limit) {
      Offset end = newest(start, limit);
      boolean idle = start != null && (end == null || end.equals(start));
      boolean again = idle && wasIdle;
      wasIdle = idle;
      if (!again || !waits || !mayWait() || !poll.await(start)) {
        return end;
      }
      Offset newest = newest(start, limit);
      wasIdle = newest == null || newest.equals(start);
      return newest;
    }

    private Offset newest(Offset start, ReadLimit limit) {
      Offset newest = kafka.latestOffset(start, bounded(limit));
      if (!byPattern) {
        return newest;
      }
      if (kafka.reportLatestOffset() instanceof KafkaSourceOffset latest) {
        ends.putAll(offsets(latest));
      }
      // Spark's source does not report that its last topic was deleted.
      boolean deleted = newest == null && start != null && !offsets(start).isEmpty();
      return deleted ? new KafkaSourceOffset(scala.collection.immutable.Map$.MODULE$.empty()) : newest;
    }

    private static Map<TopicPartition, Long> offsets(Offset offset) {
      Map<TopicPartition, Long> offsets = new HashMap<>();
      CollectionConverters.asJava(((KafkaSourceOffset) offset).partitionToOffsets())
          .forEach((partition, next) -> offsets.put(partition, (Long) next));
      return offsets;
    }

    /** The start of an epoch without the deleted topics that were read to their end. Kafka never deletes a partition alone. */
    private Offset withoutFinished(Offset start, Offset end) {
      scala.collection.immutable.Map<TopicPartition, Object> kept = ((KafkaSourceOffset) start).partitionToOffsets();
      Set<String> topics = new HashSet<>();
      offsets(end).keySet().forEach(partition -> topics.add(partition.topic()));
      Map<TopicPartition, Long> deleted = offsets(start);
      deleted.keySet().removeIf(partition -> topics.contains(partition.topic()));
      for (Map.Entry<TopicPartition, Long> partition : deleted.entrySet()) {
        Long newest = ends.get(partition.getKey());
        if (newest == null ? finished.contains(partition.getKey().topic()) : newest <= partition.getValue()) {
          kept = kept.removed(partition.getKey());
        }
      }
      return new KafkaSourceOffset(kept);
    }

    /** By topic: whether `end` is the newest end of all of its partitions. */
    private Map<String, Boolean> complete(Offset end) {
      Map<String, Boolean> complete = new HashMap<>();
      offsets(end).forEach(
          (partition, next) -> {
            Long newest = ends.get(partition);
            complete.merge(partition.topic(), newest != null && newest <= next, Boolean::logicalAnd);
          });
      return complete;
    }

    @Override
    public Offset latestOffset() {
      return kafka.latestOffset();
    }

    @Override
    public Offset reportLatestOffset() {
      return kafka.reportLatestOffset();
    }

    @Override
    public ReadLimit getDefaultReadLimit() {
      return kafka.getDefaultReadLimit();
    }

    @Override
    public void prepareForTriggerAvailableNow() {
      waits = false; // such a query ends when there is no more input
      kafka.prepareForTriggerAvailableNow();
    }

    @Override
    public Map<String, String> metrics(Optional<Offset> newestConsumed) {
      return kafka.metrics(newestConsumed);
    }

    @Override
    public void prepareForRealTimeMode() {
      waits = false;
      kafka.prepareForRealTimeMode();
    }

    /**
     * Plans the tasks of a live epoch: one, which reads all partitions with one fetch, on a cluster one for each executor, or
     * more while there is a backlog.
     */
    @Override
    public InputPartition[] planInputPartitions(Offset start) {
      InputPartition[] partitions = kafka.planInputPartitions(start);
      Arrays.sort(partitions, ORDER);
      starts = new HashMap<>();
      LiveReader.Slice[] slices = new LiveReader.Slice[liveTasks(offsets(start), partitions.length)];
      for (int number = 0; number < partitions.length; number++) {
        KafkaBatchInputPartition partition = (KafkaBatchInputPartition) partitions[number];
        int task = number % slices.length;
        if (slices[task] == null) {
          slices[task] =
              new LiveReader.Slice(
                  LivePublisher.keyOf(run, isLocal() ? -1 : task),
                  new HashMap<>(),
                  new HashMap<>(partition.executorKafkaParams()), partition.includeHeaders());
        }
        KafkaOffsetRange range = partition.offsetRange();
        slices[task].starts().put(range.topicPartition(), range.fromOffset());
        starts.put(range.topicPartition(), range.fromOffset());
      }
      this.slices = slices;
      LiveReader.forget(run, slices); // those of other tasks hold records and connections
      return slices;
    }

    @Override
    void connect() {
      if (!isLocal()) {
        return; // the executors do not have this JVM's consumers
      }
      for (LiveReader.Slice slice : slices) {
        LiveReader.connect(slice);
      }
    }

    /** Spark sends the slices to the tasks when these start. */
    @Override
    void move(Map<TopicPartition, Long> to) {
      for (LiveReader.Slice slice : slices) {
        slice.starts().replaceAll((partition, start) -> to.get(partition));
      }
      starts = to;
    }

    @Override
    boolean needsTasks() {
      return liveTasks(starts, starts.size()) > slices.length;
    }

    private int liveTasks(Map<TopicPartition, Long> from, int partitions) {
      long backlog = 0;
      Map<TopicPartition, Object> start = new HashMap<>(from);
      Offset known = new KafkaSourceOffset(scala.collection.immutable.Map$.MODULE$.from(CollectionConverters.asScala(start)));
      Offset latest = kafka.latestOffset(known, ReadLimit.allAvailable());
      for (Map.Entry<TopicPartition, Long> newest : offsets(latest).entrySet()) {
        backlog += newest.getValue() - Math.max(0, from.getOrDefault(newest.getKey(), 0L));
      }
      return Math.max(1, Math.min(partitions, backlog > BACKLOG_RECORDS ? mostLiveTasks : leastLiveTasks));
    }

    @Override
    public Offset mergeOffsets(PartitionOffset[] ends) {
      PartitionOffset[] merged =
          Arrays.stream(ends)
              .flatMap(end -> ((LiveReader.Ends) end).next().entrySet().stream())
              .map(next -> new KafkaSourcePartitionOffset(next.getKey(), next.getValue()))
              .toArray(PartitionOffset[]::new);
      return kafka.mergeOffsets(merged);
    }

    @Override
    public InputPartition[] planInputPartitions(Offset start, Offset end) {
      InputPartition[] partitions =
          kafka.planInputPartitions(byPattern ? withoutFinished(start, end) : start, end);
      if (byPattern) {
        planned = complete(end);
      }
      Arrays.sort(partitions, ORDER);
      if (!ownGroup) {
        Arrays.setAll(partitions, index -> withStableGroup((KafkaBatchInputPartition) partitions[index]));
      }
      return partitions;
    }

    /**
     * Spark keeps the consumers of tasks by group and partition, and names the group at random at each start of a query.
     * They belong to no group of the broker. With an equal group for equal options, a takeover uses the consumers of
     * rehearsals, which are connected. Groups do not show options, which may hold a password.
     */
    private KafkaBatchInputPartition withStableGroup(KafkaBatchInputPartition partition) {
      if (consumerOptions == null) {
        Map<String, Object> options = new HashMap<>(partition.executorKafkaParams());
        options.remove(GROUP);
        byte[] identity = (consumers() + new TreeMap<>(options)).getBytes(StandardCharsets.UTF_8);
        options.put(GROUP, "clonos-" + UUID.nameUUIDFromBytes(identity));
        consumerOptions = options;
      }
      return new KafkaBatchInputPartition(
          partition.offsetRange(),
          consumerOptions,
          partition.pollTimeoutMs(),
          partition.failOnDataLoss(),
          partition.includeHeaders());
    }

    private static KafkaOffsetRange range(InputPartition partition) {
      return ((KafkaBatchInputPartition) partition).offsetRange();
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
      plannedAt = micros();
      return new GuardedReaders(kafka.createReaderFactory(), ages, plannedAt);
    }

    @Override
    public Offset initialOffset() {
      return kafka.initialOffset();
    }

    @Override
    public Offset deserializeOffset(String json) {
      return kafka.deserializeOffset(json);
    }

    @Override
    public void commit(Offset end) {
      kafka.commit(end);
    }

    @Override
    public void stop() {
      super.stop();
      LiveReader.forget(run);
      try {
        poll.close();
      } finally {
        kafka.stop();
      }
    }

    @Override
    public String toString() {
      return kafka.toString();
    }
  }
}
