package clonos;

import clonos.KafkaFailure.RecordFailed;
import com.fasterxml.jackson.core.JsonProcessingException;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.InterruptException;

/**
 * Publishes the output of a live query in steps: small transactions with the rows of whole records and, as the last record, a
 * marker with the next offset of each source partition.
 *
 * <p>A step takes all rows that wait, and the next one begins after its commit has returned. So the committed steps are a
 * prefix of the output: a restart continues at the greatest marker, and computes nothing again. The steps use several lanes in
 * turn, because a transaction right after a commit waits at the broker until that commit is complete.
 *
 * <p>On a cluster each task has its own publisher, whose markers hold the partitions of that task ({@link StepTask}).
 *
 * <p>A short pause follows each step: without it, the broker would have a transaction for nearly each record. After a step of
 * more than a few records, the pause follows from how long steps take: the busier the broker, the fewer and larger they are.
 * A record that comes after the pause does not wait.
 */
public final class StepPublisher extends LivePublisher implements Runnable {
  private static final long WAITING_BYTES = 16L << 20; // then tasks wait
  private static final int ROW_BYTES = 100; // of memory, besides its key and value
  private static final int COMMIT_OFFSETS = 2; // a marker and the end of its transaction, in the log
  private static final int SMOOTHING = 8; // of the moving average
  private static final int PAUSE_PER_STEP = 2; // the pause, in durations of a step
  private static final int FEW_RECORDS = 4; // after a step of these, a longer pause adds more latency than it saves CPU time
  private static final long PAUSE_NANOS = 5_000_000L; // after a step of a few records
  private static final long BURST_NANOS = 1_000_000L; // under load, the first row waits for those of the same fetch
  private static final long LONGEST_PAUSE_NANOS = 30_000_000L;
  private static final long LONGEST_WAIT_NANOS = 100_000_000L; // a cut ends a pause within this time
  private static final long FIRST_STEP_NANOS = 3_000_000L; // the assumed duration

  private final String name;
  private final long shortestPauseNanos;
  private final Thread thread;
  private List<LaneProducer> producers = List.of();
  private StepMarkers markers;
  private Map<String, String> topicIds = Map.of();
  private SpooledQuery points;

  // What waits for the next step.
  private List<ProducerRecord<byte[], byte[]>> rows = new ArrayList<>();
  private RecordAges ages = new RecordAges();
  private long agesSince;
  private long waitingBytes;
  private long waitingRecords;
  private long waitingLetters;

  /** The latencies of records without rows that no row was waiting for, since the last report. */
  private RecordAges withoutRows = new RecordAges();

  /** The next offset of each source partition: all records before it are in a step, or wait for one. */
  private final TreeMap<String, TreeMap<Integer, Long>> next = new TreeMap<>();

  /** As `next`, for the rows that are published. */
  private TreeMap<String, TreeMap<Integer, Long>> published = new TreeMap<>();

  private volatile boolean cut;
  private volatile long pauseNanos;
  private volatile long dueNanos = System.nanoTime();
  private boolean publishing;
  private boolean closed;
  private volatile CarriedError failure;
  private LiveFigures figures = LiveFigures.NONE;

  /**
   * @param key as {@link #keyOf} returns it
   * @param name for messages
   * @param intervalMillis the shortest pause after a step; 0: the default
   */
  public StepPublisher(String key, String name, int intervalMillis) {
    super(key);
    this.name = name;
    shortestPauseNanos = intervalMillis > 0 ? intervalMillis * 1_000_000L : PAUSE_NANOS;
    thread = new Thread(this, "clonos-steps");
    thread.setDaemon(true);
    thread.start();
  }

  /**
   * Begins an epoch; no row waits.
   *
   * @param producers open producers, one for each lane
   * @param lanes as JSON: {@link StepMarkers.Lanes}
   */
  public void begin(List<LaneProducer> producers, String lanes) throws JsonProcessingException {
    long beganNanos = System.nanoTime();
    begin(producers, StepMarkers.Lanes.parse(lanes), beganNanos);
  }

  /** As above; `beganNanos` is when the epoch began, by the JVM's monotonic clock. */
  synchronized void begin(List<LaneProducer> producers, StepMarkers.Lanes lanes, long beganNanos) {
    check();
    this.producers = List.copyOf(producers);
    markers = new StepMarkers(lanes, beganNanos);
    topicIds = lanes.topicIds();
    next.clear();
    published = new TreeMap<>();
    cut = false;
  }

  @Override
  synchronized void reportPointsTo(SpooledQuery query) {
    points = query;
  }

  @Override
  void add(LiveRows computed, List<LiveRows.Finished> finished) {
    synchronized (this) {
      check();
      while (waitingBytes > WAITING_BYTES) {
        await();
        check();
      }
      long now = micros();
      boolean waits = !rows.isEmpty() || !computed.records.isEmpty();
      if (waits && waitingRecords == 0) {
        agesSince = now;
      }
      for (LiveRows.Finished record : finished) {
        next.computeIfAbsent(record.partition().topic(), topic -> new TreeMap<>())
            .merge(record.partition().partition(), record.offset(), Math::max);
        if (record.timestampMillis() >= 0) {
          (waits ? ages : withoutRows).count((waits ? agesSince : now) - record.timestampMillis() * 1000);
        }
      }
      waitingRecords += waits ? finished.size() : 0;
      boolean wake = rows.isEmpty() && !computed.records.isEmpty();
      for (ProducerRecord<byte[], byte[]> row : computed.records) {
        rows.add(row);
        waitingBytes += ROW_BYTES + LaneProducer.bytes(row);
      }
      waitingLetters += computed.deadLetters;
      if (wake) {
        notifyAll();
      }
    }
    computed.clear();
  }

  @Override
  public void cut() {
    cut = true;
  }

  /** Whether the epoch's tasks must end, also after a failure. */
  boolean wantsCut() {
    return cut;
  }

  @Override
  boolean isCut() {
    CarriedError failed = failure;
    if (failed != null) {
      throw failed;
    }
    return cut;
  }

  @Override
  long pauseNanos() {
    return pauseNanos;
  }

  @Override
  long dueNanos() {
    return dueNanos;
  }

  /** Waits until all rows are published. */
  public synchronized void drain() {
    while (failure == null && !closed && (publishing || !rows.isEmpty())) {
      await();
    }
    check();
  }

  /** The offset of the newest marker of each lane; -1: it wrote none in this epoch. */
  public synchronized List<Long> newestMarkers() {
    return markers.newest();
  }

  /** Returns what was published since the last call, as JSON. */
  public String take() throws JsonProcessingException {
    return takeFigures().json();
  }

  /** Returns what was published since the last call. */
  synchronized LiveFigures takeFigures() {
    TreeMap<Integer, Long> latencies = new TreeMap<>();
    withoutRows.addLatencies(0, latencies);
    withoutRows = new RecordAges();
    TreeMap<String, TreeMap<Integer, Long>> read =
        LiveFigures.copy(rows.isEmpty() && !publishing ? next : published);
    LiveFigures taken = figures.plus(new LiveFigures(0, 0, 0, 0, latencies, read, 0));
    figures = LiveFigures.NONE;
    return taken;
  }

  @Override
  synchronized boolean isClosed() {
    return closed;
  }

  private void check() {
    if (failure != null) {
      throw failure;
    }
    if (closed) {
      throw new IllegalStateException("this run of the query has ended");
    }
  }

  private void await() {
    try {
      wait();
    } catch (InterruptedException stopped) {
      throw new InterruptException(stopped);
    }
  }

  private static long micros() {
    return ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now());
  }

  @Override
  public void run() {
    long typical = FIRST_STEP_NANOS;
    try {
      while (true) {
        Step step = awaitStep();
        if (step == null) {
          return;
        }
        long began = System.nanoTime();
        dueNanos = began + typical + pauseNanos;
        publish(step);
        long endedAt = System.nanoTime();
        typical += (endedAt - began - typical) / SMOOTHING;
        long pace = step.inputRecords() > FEW_RECORDS ? Math.min(PAUSE_PER_STEP * typical, LONGEST_PAUSE_NANOS) : 0;
        pauseNanos = Math.max(shortestPauseNanos, pace);
        dueNanos = endedAt + pauseNanos;
        finish(step, endedAt - began);
      }
    } catch (Throwable failed) {
      fail(failed);
    }
  }

  /**
   * The rows of one step.
   *
   * @param next the source offsets that its marker holds
   */
  private record Step(
      List<ProducerRecord<byte[], byte[]>> rows,
      TreeMap<String, TreeMap<Integer, Long>> next,
      RecordAges ages,
      long agesSince,
      long inputRecords,
      long deadLetters) {}

  private synchronized Step awaitStep() throws InterruptedException {
    long due = dueNanos;
    while (rows.isEmpty() && !closed) {
      wait();
      due = Math.max(dueNanos, System.nanoTime() + (pauseNanos > shortestPauseNanos ? BURST_NANOS : 0));
    }
    for (long early = due - System.nanoTime(); early > 0 && !closed && !cut; early = due - System.nanoTime()) {
      long nanos = Math.min(early, LONGEST_WAIT_NANOS);
      wait(nanos / 1_000_000, (int) (nanos % 1_000_000));
    }
    if (closed) {
      return null;
    }
    Step step = new Step(rows, LiveFigures.copy(next), ages, agesSince, waitingRecords, waitingLetters);
    rows = new ArrayList<>();
    ages = new RecordAges();
    waitingBytes = 0;
    waitingRecords = 0;
    waitingLetters = 0;
    publishing = true;
    notifyAll();
    return step;
  }

  private void publish(Step step) throws Exception {
    int lane = markers.nextLane();
    LaneProducer producer = producers.get(lane);
    boolean sent = false;
    try {
      RecordDigest digest = new RecordDigest();
      producer.begin();
      reach("step-begun", lane);
      for (ProducerRecord<byte[], byte[]> row : step.rows()) {
        digest.add(row);
        producer.send(row);
      }
      reach("step-produced", lane);
      producer.mark(markers.logTopic(), markers.partition(lane), markers.value(lane, digest, step.next()));
      reach("step-marked", lane);
      sent = true;
      long offset = producer.commit(markers.end(lane), topicIds);
      markers.committed(lane, offset, offset + COMMIT_OFFSETS, digest.records());
      reach("step-committed", lane);
    } catch (Exception failed) { // a commit of unknown outcome: the next claim reads the markers
      if (!sent || failed instanceof RecordFailed) {
        producer.abortQuietly();
      }
      throw failed;
    }
  }

  private synchronized void finish(Step step, long nanos) {
    TreeMap<Integer, Long> latencies = new TreeMap<>();
    step.ages().addLatencies(micros() - step.agesSince(), latencies);
    long letters = step.deadLetters();
    figures =
        figures.plus(
            new LiveFigures(1, step.rows().size(), letters, nanos / 1000, latencies, new TreeMap<>(), markers.time()));
    published = step.next();
    publishing = false;
    notifyAll();
  }

  private synchronized void fail(Throwable failed) {
    if (!closed) {
      failure = KafkaFailure.typed(name, failed, "EpochFailed");
    }
    publishing = false;
    notifyAll();
  }

  private void reach(String point, int lane) {
    SpooledQuery query = points;
    if (query != null) {
      query.reach(point, lane);
    }
  }

  /** Ends the publisher; the next owner of the lanes aborts a step in progress. */
  @Override
  public void close() {
    synchronized (this) {
      closed = true;
      cut = true;
      notifyAll();
    }
    super.close();
    producers.forEach(LaneProducer::close);
  }
}
