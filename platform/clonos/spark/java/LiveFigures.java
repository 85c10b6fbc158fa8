package clonos;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.Serializable;
import java.util.Map;
import java.util.TreeMap;

/**
 * What a live query has published since the last report. Python reads it ({@code clonos.spark.live.Steps}).
 *
 * @param latencies class of an end-to-end latency, number of input records
 * @param next by topic and partition: the next offset that the tasks read
 * @param timeMillis time of the newest step; 0: there is none
 */
record LiveFigures(
    long steps,
    long records,
    long deadLetters,
    long longestMicros,
    TreeMap<Integer, Long> latencies,
    TreeMap<String, TreeMap<Integer, Long>> next,
    long timeMillis)
    implements Serializable {
  private static final ObjectMapper JSON = new ObjectMapper();
  static final LiveFigures NONE = new LiveFigures(0, 0, 0, 0, new TreeMap<>(), new TreeMap<>(), 0);

  /** The sums; of each partition and the time the greater value. */
  LiveFigures plus(LiveFigures other) {
    TreeMap<Integer, Long> both = new TreeMap<>(latencies);
    other.latencies.forEach((latency, count) -> both.merge(latency, count, Long::sum));
    TreeMap<String, TreeMap<Integer, Long>> offsets = copy(next);
    copy(other.next).forEach(
        (topic, partitions) ->
            offsets.merge(
                topic,
                partitions,
                (known, more) -> {
                  more.forEach((partition, offset) -> known.merge(partition, offset, Math::max));
                  return known;
                }));
    return new LiveFigures(
        steps + other.steps,
        records + other.records,
        deadLetters + other.deadLetters,
        Math.max(longestMicros, other.longestMicros),
        both,
        offsets,
        Math.max(timeMillis, other.timeMillis));
  }

  static TreeMap<String, TreeMap<Integer, Long>> copy(Map<String, ? extends Map<Integer, Long>> offsets) {
    TreeMap<String, TreeMap<Integer, Long>> copied = new TreeMap<>();
    offsets.forEach((topic, partitions) -> copied.put(topic, new TreeMap<>(partitions)));
    return copied;
  }

  String json() throws JsonProcessingException {
    return JSON.writeValueAsString(this);
  }
}
