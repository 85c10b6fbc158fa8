package clonos;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.errors.InterruptException;

/**
 * Publishes the rows of a live query while its tasks compute them: on a local master those of all tasks of a run, on a cluster
 * those of one task. A sink extends it; the tasks and the source find it by its key.
 */
public abstract class LivePublisher implements AutoCloseable {
  /** By key. */
  private static final Map<String, LivePublisher> RUNNING = new ConcurrentHashMap<>();

  private static final long OPEN_NANOS = TimeUnit.SECONDS.toNanos(60); // Kafka has 30 s to open a producer

  private final String key;
  private final Map<Object, Runnable> atEnd = new LinkedHashMap<>();

  /** @param key as {@link #keyOf} returns it */
  LivePublisher(String key) {
    this.key = key;
  }

  /** Lets the tasks and the source find the publisher. */
  public final void open() {
    synchronized (RUNNING) {
      RUNNING.put(key, this);
      RUNNING.notifyAll();
    }
  }

  /**
   * The key of a task's publisher.
   *
   * @param run run id of the query
   * @param task Spark's partition index; -1: all tasks share a JVM and a publisher
   */
  static String keyOf(String run, int task) {
    return task < 0 ? run : run + "/" + task;
  }

  /** Returns a running publisher. That of a task may open only after the task's source has begun to read. */
  static LivePublisher find(String key) {
    LivePublisher publisher = RUNNING.get(key);
    if (publisher == null && key.indexOf('/') > 0) {
      publisher = await(key);
    }
    if (publisher == null) {
      throw new IllegalStateException("this run of the query has ended");
    }
    return publisher;
  }

  private static LivePublisher await(String key) {
    long until = System.nanoTime() + OPEN_NANOS;
    synchronized (RUNNING) {
      while (!RUNNING.containsKey(key) && System.nanoTime() < until) {
        try {
          TimeUnit.NANOSECONDS.timedWait(RUNNING, until - System.nanoTime());
        } catch (InterruptedException stopped) {
          throw new InterruptException(stopped);
        }
      }
      return RUNNING.get(key);
    }
  }

  /** Takes the rows that a task has computed from records, and the next offsets after these records. */
  abstract void add(LiveRows computed, List<LiveRows.Finished> finished);

  /** Ends the reading of the epoch's tasks. Any thread may call this. */
  public abstract void cut();

  /** Whether the epoch's tasks must end; fails if rows could not be published. */
  abstract boolean isCut();

  /** How long rows wait at most before they are published, now: a source may wait as long for further records. */
  abstract long pauseNanos();

  /** When waiting rows are published next, in the time of {@link System#nanoTime}; estimated while rows are published. */
  abstract long dueNanos();

  abstract boolean isClosed();

  /** @param query receives the points of the protocol, in tests; null: none is reported */
  abstract void reportPointsTo(SpooledQuery query);

  /** Calls `action` once when the publisher has ended; a later action with the same key replaces it. */
  final void atEnd(Object key, Runnable action) {
    synchronized (atEnd) {
      atEnd.put(key, action);
    }
  }

  /** Ends the publisher. */
  @Override
  public void close() {
    RUNNING.remove(key, this);
    List<Runnable> actions;
    synchronized (atEnd) {
      actions = new ArrayList<>(atEnd.values());
      atEnd.clear();
    }
    actions.forEach(Runnable::run);
  }
}
