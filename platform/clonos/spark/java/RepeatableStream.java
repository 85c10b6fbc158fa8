package clonos;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.core.type.TypeReference;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.UUID;
import java.util.WeakHashMap;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.common.TopicPartition;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;

/**
 * A source of one start of a query that reads the same records in a replay. A connector extends it; the driver sets and
 * reads what concerns all sources of a run ({@code clonos.spark.source_streams}).
 */
public abstract class RepeatableStream implements MicroBatchStream {
  /** Spark's local property with the run id of the query whose thread this is. */
  private static final String RUN = "spark.jobGroup.id";

  /** Spark's local property with the number of records that each source of a new query reads in its first epoch. */
  private static final String BOUND = "clonos.epochBound";

  /**
   * Spark's local property with the tasks of an epoch of a live query that starts: without and with a backlog, separated by a
   * comma. With fewer slots than tasks, the partitions of the tasks that wait would never be read.
   */
  private static final String LIVE_TASKS = "clonos.liveTasks";

  /** Spark's local property with deleted topics that were read to their end, separated by commas. */
  private static final String FINISHED = "clonos.finishedTopics";

  /** The sources of each running query, by its run id; weak, because Spark may not stop each of them. */
  private static final Map<String, Set<RepeatableStream>> RUNS = new ConcurrentHashMap<>();

  /** By run: the maximum number of records that each source without a limit of its own reads in an epoch. */
  private static final Map<String, Long> BOUNDS = new ConcurrentHashMap<>();

  /** The runs whose sources do not wait any more. */
  private static final Set<String> STOPPED = ConcurrentHashMap.newKeySet();

  private static volatile String consumers = UUID.randomUUID().toString();

  final String run;
  private final boolean isLocal;
  volatile int leastLiveTasks = 1;
  volatile int mostLiveTasks = 1;
  final Set<String> finished; // topics

  /** Ages of the records that tasks have read, at `plannedAt`. */
  final RecordAges ages = new RecordAges();

  /** When the newest epoch was planned, in microseconds since 1970. */
  volatile long plannedAt;

  /** The topics that may be deleted: whether the newest planned epoch reads each to its end. */
  volatile Map<String, Boolean> planned = Map.of();

  /** The first offsets of the newest live epoch. */
  volatile Map<TopicPartition, Long> starts = Map.of();

  private final Set<RepeatableStream> sources;

  RepeatableStream() {
    SparkContext context = SparkContext.getOrCreate();
    String group = context.getLocalProperty(RUN);
    run = group == null ? "" : group;
    sources =
        RUNS.computeIfAbsent(run, id -> Collections.synchronizedSet(Collections.newSetFromMap(new WeakHashMap<>())));
    context.register(ages);
    String topics = context.getLocalProperty(FINISHED);
    finished = topics == null ? Set.of() : Set.copyOf(Arrays.asList(topics.split(",")));
    String tasks = context.getLocalProperty(LIVE_TASKS);
    if (tasks != null) {
      int comma = tasks.indexOf(',');
      leastLiveTasks = Integer.parseInt(tasks.substring(0, comma));
      mostLiveTasks = Integer.parseInt(tasks.substring(comma + 1));
    }
    isLocal = context.isLocal();
    String bound = context.getLocalProperty(BOUND);
    if (bound != null) {
      BOUNDS.putIfAbsent(run, Long.valueOf(bound));
    }
  }

  /** Lets the driver find the source; the last statement of a subclass's constructor. */
  final void register() {
    sources.add(this);
  }

  /** Whether the tasks run in this JVM. */
  final boolean isLocal() {
    return isLocal;
  }

  /** Ends a wait for records. Any thread may call this. */
  abstract void wakeUp();

  /** Connects what reads a live epoch whose tasks are not started, or keeps it connected. */
  abstract void connect();

  /**
   * Lets a live epoch whose tasks are not started begin at other offsets.
   *
   * @param to the offset of each of its partitions
   */
  abstract void move(Map<TopicPartition, Long> to);

  /** Whether a live epoch that began where the newest one did would have more tasks now. Any thread may call this. */
  abstract boolean needsTasks();

  /** Whether the source may wait for records: no other one would have to wait too. */
  final boolean mayWait() {
    return !run.isEmpty() && !STOPPED.contains(run) && sources.size() == 1;
  }

  /** The most records of the next epoch; null: there is no bound. */
  final Long bound() {
    return BOUNDS.get(run);
  }

  /** Names the consumers that a query may use which starts now. */
  static String consumers() {
    return consumers;
  }

  static long micros() {
    return ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now());
  }

  /** Forgets the source; a subclass closes what it has opened. */
  @Override
  public void stop() {
    sources.remove(this);
    RUNS.computeIfPresent(run, (id, left) -> left.isEmpty() ? null : left);
    STOPPED.remove(run);
    if (!RUNS.containsKey(run)) {
      BOUNDS.remove(run);
    }
  }

  private static RepeatableStream[] of(String run) {
    return RUNS.getOrDefault(run, Set.of()).toArray(new RepeatableStream[0]);
  }

  /** Bounds the next epochs of a running query: the number of records that each of its sources reads. */
  public static void setBound(String run, long records) {
    BOUNDS.computeIfPresent(run, (id, before) -> records);
  }

  /** The topics, separated by commas, that the newest planned epoch of a query reads to the end. */
  public static String finishedTopics(String run) {
    Set<String> finished = new TreeSet<>();
    Set<String> unfinished = new HashSet<>();
    for (RepeatableStream source : of(run)) {
      source.planned.forEach((topic, complete) -> (complete ? finished : unfinished).add(topic));
    }
    finished.removeAll(unfinished);
    return String.join(",", finished);
  }

  /**
   * The latencies of the records that a query's tasks have read since the previous call: the time from a record's timestamp
   * until now. As text: the class of a latency, a colon, the number of records; separated by commas.
   */
  public static String takeLatencies(String run) {
    Map<Integer, Long> latencies = new HashMap<>();
    for (RepeatableStream source : of(run)) {
      source.ages.addLatencies(micros() - source.plannedAt, latencies);
      source.ages.reset();
    }
    return RecordAges.text(latencies);
  }

  /** The first offsets of the newest epoch of a live query, as JSON: topic, partition, offset; for its only source. */
  public static String liveStarts(String run) throws JsonProcessingException {
    Map<String, Map<Integer, Long>> starts = new TreeMap<>();
    for (RepeatableStream source : of(run)) {
      source.starts.forEach(
          (partition, start) ->
              starts.computeIfAbsent(partition.topic(), topic -> new TreeMap<>()).put(partition.partition(), start));
    }
    return new ObjectMapper().writeValueAsString(starts);
  }

  /** Connects what reads a live epoch whose tasks are not started, or keeps it connected. */
  public static void connectLive(String run) {
    for (RepeatableStream source : of(run)) {
      source.connect();
    }
  }

  /**
   * Lets the live epoch of a query, whose tasks are not started, begin at other offsets.
   *
   * @param to as JSON: topic, partition, offset, for all partitions of the epoch
   * @param least tasks of each later epoch without a backlog
   * @param most tasks of each later epoch with a backlog
   */
  public static void moveLive(String run, String to, int least, int most) throws JsonProcessingException {
    Map<String, Map<Integer, Long>> offsets = new ObjectMapper().readValue(to, new TypeReference<>() {});
    setLiveTasks(run, least, most);
    for (RepeatableStream source : of(run)) {
      Map<TopicPartition, Long> moved = new HashMap<>(source.starts);
      moved.replaceAll((partition, start) -> offsets.get(partition.topic()).get(partition.partition()));
      source.move(moved);
    }
  }

  /** Whether the newest live epoch of a query would have more tasks if it began now. */
  public static boolean needsLiveTasks(String run) {
    return Arrays.stream(of(run)).anyMatch(RepeatableStream::needsTasks);
  }

  /** Sets the tasks of each later epoch of a live query: without and with a backlog. */
  public static void setLiveTasks(String run, int least, int most) {
    for (RepeatableStream source : of(run)) {
      source.leastLiveTasks = least;
      source.mostLiveTasks = most;
    }
  }

  /** Lets queries that start later use new consumers: earlier ones may keep records of a topic that was deleted. */
  public static void forgetConsumers() {
    consumers = UUID.randomUUID().toString();
  }

  /** Ends the wait of a query's sources, and lets none of them wait again. Any thread may call this. */
  public static void stopWaiting(String run) {
    STOPPED.add(run);
    for (RepeatableStream source : of(run)) {
      source.wakeUp();
    }
  }
}
