package clonos;

import java.util.Map;
import java.util.TreeMap;
import org.apache.spark.util.AccumulatorV2;

/**
 * Counts records by their age: the time from the record's timestamp to the moment at which the epoch was planned.
 *
 * <p>A record costs one increment. The ages of an epoch are counted in classes, each at most 1/16 longer than the one
 * before, from one millisecond to two years. Shorter and longer ages are in the first and the last class.
 */
final class RecordAges extends AccumulatorV2<Long, long[]> {
  private static final long serialVersionUID = 1;

  /** The first class ends at 2^10 µs, the last begins at 2^46 µs. */
  private static final int FIRST_BIT = 10;

  private static final int LAST_BIT = 46;
  private static final int SUBDIVIDING_BITS = 4;
  private static final int PER_DOUBLING = 1 << SUBDIVIDING_BITS;
  private static final int CLASSES = (LAST_BIT - FIRST_BIT) * PER_DOUBLING + 2;

  /** The classes of latencies, as `clonos_api.store.series.duration_class` has them: the longest of class n is 2^(n/4) ms. */
  private static final double LATENCIES_PER_DOUBLING = 4;

  private long[] counts; // null: no record. Each task's result contains it, also if the task reads nothing.

  /** The class of an age in microseconds. */
  static int classOf(long age) {
    if (age < 1L << FIRST_BIT) {
      return 0;
    }
    int bit = Long.SIZE - 1 - Long.numberOfLeadingZeros(age);
    if (bit >= LAST_BIT) {
      return CLASSES - 1;
    }
    int part = (int) (age >>> (bit - SUBDIVIDING_BITS)) & (PER_DOUBLING - 1);
    return (bit - FIRST_BIT) * PER_DOUBLING + part + 1;
  }

  /** The end of a class in microseconds. */
  static long endOf(int number) {
    if (number == 0) {
      return 1L << FIRST_BIT;
    }
    int bit = FIRST_BIT + (number - 1) / PER_DOUBLING;
    int part = (number - 1) % PER_DOUBLING;
    return (long) (PER_DOUBLING + part + 1) << (bit - SUBDIVIDING_BITS);
  }

  void count(long age) {
    if (counts == null) {
      counts = new long[CLASSES];
    }
    counts[classOf(age)]++;
  }

  /** Adds the records by the class of their latency: their age and `elapsed` microseconds. */
  void addLatencies(long elapsed, Map<Integer, Long> latencies) {
    for (int number = 0; counts != null && number < CLASSES; number++) {
      if (counts[number] > 0) {
        double ms = Math.max(1, (endOf(number) + Math.max(0, elapsed)) / 1000.0);
        int latency = (int) Math.ceil(LATENCIES_PER_DOUBLING * Math.log(ms) / Math.log(2));
        latencies.merge(latency, counts[number], Long::sum);
      }
    }
  }

  @Override
  public boolean isZero() {
    return counts == null;
  }

  @Override
  public RecordAges copy() {
    RecordAges copy = new RecordAges();
    copy.merge(this);
    return copy;
  }

  @Override
  public void reset() {
    counts = null;
  }

  @Override
  public void add(Long age) {
    count(age);
  }

  @Override
  public void merge(AccumulatorV2<Long, long[]> other) {
    long[] more = ((RecordAges) other).counts;
    if (more == null) {
      return;
    }
    if (counts == null) {
      counts = new long[CLASSES];
    }
    for (int number = 0; number < CLASSES; number++) {
      counts[number] += more[number];
    }
  }

  @Override
  public long[] value() {
    return counts == null ? new long[CLASSES] : counts;
  }

  /** The latencies as text: class, colon, number of records, separated by commas. */
  static String text(Map<Integer, Long> latencies) {
    StringBuilder text = new StringBuilder();
    new TreeMap<>(latencies).forEach(
        (number, records) -> text.append(text.length() == 0 ? "" : ",").append(number).append(':').append(records));
    return text.toString();
  }
}
