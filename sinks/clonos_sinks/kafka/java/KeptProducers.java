package clonos;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * The producers that the tasks of this JVM keep from one epoch to the next.
 *
 * <p>A lane may keep its producer if the newest claim or marker in the lane's partition of the causal log is the marker
 * that this producer committed: then no later init of this driver has fenced it. One by a successor makes Kafka refuse
 * the next transaction.
 */
final class KeptProducers {
  /** Kept regardless of their size; lanes that move to another executor leave theirs behind. */
  private static final int FEW = Math.max(4, 2 * Runtime.getRuntime().availableProcessors());

  /** More are kept while all of them need at most a quarter of the heap. */
  private static final long MOST_BYTES = Runtime.getRuntime().maxMemory() / 4;

  /** Counted for a producer with small buffers: it also has a thread and connections. */
  private static final long LEAST_BYTES = 2 << 20;

  private static final Map<String, Kept> KEPT = new LinkedHashMap<>(); // the oldest first
  private static long keptBytes;

  private KeptProducers() {}

  /**
   * Returns the producer of a transactional id, which the caller then owns; null if this JVM has none that may be used.
   *
   * @param newestOffset offset of the lane's newest claim or marker; -1 if it is not known
   */
  static LaneProducer take(String transactionalId, Map<String, String> options, long newestOffset) {
    Kept kept;
    synchronized (KEPT) {
      kept = remove(transactionalId);
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

  /**
   * Keeps a producer that has committed the marker at an offset. The oldest ones are closed if all of them hold too much
   * memory.
   */
  static void keep(String transactionalId, Map<String, String> options, LaneProducer producer, long markerOffset) {
    List<Kept> closed = new ArrayList<>();
    long bytes = Math.max(LEAST_BYTES, producer.bufferBytes());
    synchronized (KEPT) {
      Kept replaced = remove(transactionalId);
      if (replaced != null) {
        closed.add(replaced);
      }
      KEPT.put(transactionalId, new Kept(producer, options, markerOffset, bytes));
      keptBytes += bytes;
      while (KEPT.size() > FEW && keptBytes > MOST_BYTES) {
        closed.add(remove(KEPT.keySet().iterator().next()));
      }
    }
    closed.forEach(kept -> kept.producer.close());
  }

  private static Kept remove(String transactionalId) {
    Kept kept = KEPT.remove(transactionalId);
    if (kept != null) {
      keptBytes -= kept.bytes;
    }
    return kept;
  }

  private record Kept(LaneProducer producer, Map<String, String> options, long markerOffset, long bytes) {
    @Override
    public String toString() {
      return "a producer"; // the options hold a password
    }
  }
}
