package clonos;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Publishes the rows of one run of a live query while its tasks compute them. A sink extends it; the tasks and the source
 * find it by the run.
 */
public abstract class LivePublisher implements AutoCloseable {
  /** By run id of their query. */
  private static final Map<String, LivePublisher> RUNNING = new ConcurrentHashMap<>();

  private final String run;
  private final Map<Object, Runnable> atEnd = new LinkedHashMap<>();

  /** @param run run id of the query */
  LivePublisher(String run) {
    this.run = run;
    RUNNING.put(run, this);
  }

  static LivePublisher find(String run) {
    LivePublisher publisher = RUNNING.get(run);
    if (publisher == null) {
      throw new IllegalStateException("this run of the query has ended");
    }
    return publisher;
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
    RUNNING.remove(run, this);
    List<Runnable> actions;
    synchronized (atEnd) {
      actions = new ArrayList<>(atEnd.values());
      atEnd.clear();
    }
    actions.forEach(Runnable::run);
  }
}
