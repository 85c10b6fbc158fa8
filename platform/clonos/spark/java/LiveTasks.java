package clonos;

import com.fasterxml.jackson.core.JsonProcessingException;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.spark.SparkContext;
import scala.jdk.javaapi.CollectionConverters;

/**
 * In the driver: the tasks of a live query on a cluster, each of which publishes its own steps.
 *
 * <p>Each task reports several times a second, and learns from the answer whether its epoch ends. The last report of a task is
 * part of its end. So the driver knows all that was published when Spark commits the epoch.
 */
public final class LiveTasks implements AutoCloseable {
  /** A task that reports later than this is lost. Spark itself waits for the heartbeats of its executor, two minutes. */
  private static final long SILENT_NANOS = TimeUnit.SECONDS.toNanos(10);

  private static final String CUT = "cut";

  /** By run id of their query. */
  private static final Map<String, LiveTasks> RUNNING = new ConcurrentHashMap<>();

  /** A task that begins later than this has no slot. */
  private static final long STARVING_NANOS = TimeUnit.SECONDS.toNanos(20);

  /** An executor that was silent may be back after this time. Spark removes one that does not answer, in two minutes. */
  private static final long AWAY_NANOS = TimeUnit.SECONDS.toNanos(150);

  /** The executors whose tasks were silent, and did not report since: when the driver noticed it. */
  private static final Map<String, Long> SILENT = new ConcurrentHashMap<>();

  private final String run;
  private final Map<Integer, Report> reports = new TreeMap<>(); // the newest of each task
  private final Map<Integer, Long> reportedAt = new TreeMap<>();
  private LiveFigures figures = LiveFigures.NONE;
  private int tasks;
  private long beganAt;
  private volatile boolean cut;

  /** @param run run id of the query */
  public LiveTasks(String run) {
    this.run = run;
    RUNNING.put(run, this);
  }

  /**
   * What a task reports.
   *
   * @param figures since its last report
   * @param newestMarkers offset of the newest marker of each of its lanes; -1: it wrote none in this epoch
   * @param cut whether the task asks for the end of the epoch
   * @param ended whether this is its last report
   */
  record Report(
      String run,
      int task,
      String executor,
      LiveFigures figures,
      ArrayList<Long> newestMarkers,
      boolean cut,
      boolean ended)
      implements Serializable {
    /** Sends the report; returns whether the epoch ends. */
    boolean send() throws Exception {
      Object answer = RowTransfer.ask(this);
      if (!CUT.equals(answer) && !"".equals(answer)) {
        throw new IllegalStateException("the driver refuses a report: " + answer);
      }
      return CUT.equals(answer);
    }
  }

  /** Begins an epoch. */
  public synchronized void begin(int tasks) {
    this.tasks = tasks;
    reports.clear();
    reportedAt.clear();
    figures = LiveFigures.NONE;
    beganAt = System.nanoTime();
    cut = false;
  }

  /** Lets the tasks of the epoch end. */
  public void cut() {
    cut = true;
  }

  static String receive(Report report) {
    LiveTasks query = RUNNING.get(report.run());
    if (query == null) {
      throw new IllegalStateException("this run of the query has ended");
    }
    SILENT.remove(report.executor());
    return query.take(report);
  }

  private synchronized String take(Report report) {
    reports.put(report.task(), report);
    reportedAt.put(report.task(), System.nanoTime());
    figures = figures.plus(report.figures());
    cut |= report.cut();
    return cut ? CUT : "";
  }

  /** Returns what was published since the last call, as JSON. */
  public synchronized String take() throws JsonProcessingException {
    LiveFigures taken = figures;
    figures = LiveFigures.NONE;
    return taken.json();
  }

  /** The offset of the newest marker of each lane, by task; -1: it wrote none in this epoch. All tasks have ended. */
  public synchronized List<Long> newestMarkers() {
    List<Long> newest = new ArrayList<>();
    for (int task = 0; task < tasks; task++) {
      Report report = reports.get(task);
      if (report == null || !report.ended()) {
        throw new IllegalStateException("task " + task + " has not reported its end");
      }
      newest.addAll(report.newestMarkers());
    }
    return newest;
  }

  /** Returns which task is lost with its executor; empty: none is. */
  public synchronized String lost() {
    Set<String> registered =
        new HashSet<>(CollectionConverters.asJava(SparkContext.getOrCreate().getExecutorIds()));
    for (Report report : reports.values()) {
      if (report.ended()) {
        continue;
      }
      if (!registered.contains(report.executor())) {
        return "Task " + report.task() + " was lost with executor " + report.executor();
      }
      long silent = System.nanoTime() - reportedAt.get(report.task());
      if (silent > SILENT_NANOS) {
        SILENT.put(report.executor(), System.nanoTime());
        return "Task " + report.task() + " on executor " + report.executor() + " did not report for "
            + TimeUnit.NANOSECONDS.toSeconds(silent) + " s";
      }
    }
    return "";
  }

  /** Returns how many tasks have not begun in time: there are fewer free slots than tasks. Nobody reads their partitions. */
  public synchronized int waiting() {
    return System.nanoTime() - beganAt > STARVING_NANOS ? tasks - reports.size() : 0;
  }

  /** Spark's ids of the executors whose tasks were silent a short time ago, and did not report since. */
  public static List<String> silentExecutors() {
    SILENT.values().removeIf(since -> System.nanoTime() - since > AWAY_NANOS);
    return new ArrayList<>(SILENT.keySet());
  }

  /** Refuses further reports. */
  @Override
  public void close() {
    RUNNING.remove(run, this);
  }
}
