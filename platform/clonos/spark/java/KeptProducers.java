package clonos;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;

/**
 * The producers that the tasks of this JVM keep from one epoch to the next.
 *
 * <p>A lane may keep its producer if its newest record in the causal log is the marker that this producer committed:
 * then no later init of this driver has fenced it. One by a successor makes Kafka refuse the next transaction.
 */
final class KeptProducers {
  private static final long IDLE_NANOS = TimeUnit.MINUTES.toNanos(10); // its lane runs elsewhere, or its job has ended
  private static final Map<String, Kept> KEPT = new ConcurrentHashMap<>();

  private KeptProducers() {}

  /**
   * Returns the producer of a transactional id, which the caller then owns; null if this JVM has none that may be used.
   *
   * @param markerOffset offset of the lane's newest record in the causal log; -1 if it is not known
   */
  static LaneProducer take(String transactionalId, Map<String, String> options, long markerOffset) {
    Kept kept = KEPT.remove(transactionalId);
    if (kept == null) {
      return null;
    }
    if (markerOffset >= 0 && kept.markerOffset == markerOffset && kept.options.equals(options)) {
      return kept.producer;
    }
    kept.producer.close();
    return null;
  }

  /** Keeps a producer that has committed the marker at an offset. */
  static void keep(String transactionalId, Map<String, String> options, LaneProducer producer, long markerOffset) {
    long now = System.nanoTime();
    Kept replaced = KEPT.put(transactionalId, new Kept(producer, options, markerOffset, now));
    if (replaced != null) {
      replaced.producer.close();
    }
    for (Map.Entry<String, Kept> entry : KEPT.entrySet()) {
      Kept kept = entry.getValue();
      if (now - kept.since > IDLE_NANOS && KEPT.remove(entry.getKey(), kept)) {
        kept.producer.close();
      }
    }
  }

  private record Kept(LaneProducer producer, Map<String, String> options, long markerOffset, long since) {}
}
