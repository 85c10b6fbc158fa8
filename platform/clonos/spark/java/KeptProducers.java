package clonos;

import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * The producers that the tasks of this JVM keep from one epoch to the next.
 *
 * <p>A lane may keep its producer if the newest claim or marker in the lane's partition of the causal log is the marker
 * that this producer committed: then no later init of this driver has fenced it. One by a successor makes Kafka refuse
 * the next transaction.
 */
final class KeptProducers {
  /** Each one holds buffers and connections; lanes that move to another executor leave theirs behind. */
  private static final int MOST = Math.max(4, 2 * Runtime.getRuntime().availableProcessors());

  private static final Map<String, Kept> KEPT = new LinkedHashMap<>(); // the oldest first

  private KeptProducers() {}

  /**
   * Returns the producer of a transactional id, which the caller then owns; null if this JVM has none that may be used.
   *
   * @param newestOffset offset of the lane's newest claim or marker; -1 if it is not known
   */
  static LaneProducer take(String transactionalId, Map<String, String> options, long newestOffset) {
    Kept kept;
    synchronized (KEPT) {
      kept = KEPT.remove(transactionalId);
    }
    if (kept == null) {
      return null;
    }
    if (newestOffset >= 0 && kept.markerOffset == newestOffset && kept.options.equals(options)) {
      return kept.producer;
    }
    kept.producer.close();
    return null;
  }

  /** Keeps a producer that has committed the marker at an offset. */
  static void keep(String transactionalId, Map<String, String> options, LaneProducer producer, long markerOffset) {
    Kept replaced;
    Kept oldest = null;
    synchronized (KEPT) {
      replaced = KEPT.remove(transactionalId);
      KEPT.put(transactionalId, new Kept(producer, options, markerOffset));
      if (KEPT.size() > MOST) {
        Iterator<Kept> kept = KEPT.values().iterator();
        oldest = kept.next();
        kept.remove();
      }
    }
    for (Kept closed : new Kept[] {replaced, oldest}) {
      if (closed != null) {
        closed.producer.close();
      }
    }
  }

  private record Kept(LaneProducer producer, Map<String, String> options, long markerOffset) {
    @Override
    public String toString() {
      return "a producer"; // the options hold a password
    }
  }
}
