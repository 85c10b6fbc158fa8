package clonos;

import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.types.StructType;

/** One running query of a {@link LaneSink}: its committer, and the rows of the epoch in progress. */
public final class SpooledQuery {
  /** Spark's local property of the stream's thread with the number of the micro-batch. */
  private static final String EPOCH = "streaming.sql.batchId";

  /** Free memory for the rows of all queries of this JVM. */
  private static final AtomicLong FREE_BYTES = new AtomicLong(Runtime.getRuntime().maxMemory() / 16);

  private final EpochCommitter committer;
  private final String job;
  private final String defaultTopic;
  private final Path folder;
  private final Map<String, Limits> limits = new ConcurrentHashMap<>();
  private volatile SpooledEpoch current;

  /**
   * @param defaultTopic topic of rows without one; null: each row must name its topic
   * @param folder directory for rows that do not fit into memory
   */
  public SpooledQuery(
      EpochCommitter committer, String job, String defaultTopic, String folder) {
    this.committer = committer;
    this.job = job;
    this.defaultTopic = defaultTopic;
    this.folder = Path.of(folder);
  }

  /** Adds bytes to the memory for rows, or removes them, for tests; returns what is free. */
  public static long addMemory(long bytes) {
    return FREE_BYTES.addAndGet(bytes);
  }

  void begin(int partitions) {
    long epoch = Long.parseLong(SparkContext.getOrCreate().getLocalProperty(EPOCH));
    discard();
    limits.clear(); // a topic may have been deleted since the last epoch
    current = new SpooledEpoch(epoch, partitions, folder, FREE_BYTES);
    committer.begin(epoch, partitions);
  }

  void commit(long epoch) {
    try {
      committer.commit(epoch, epoch(epoch));
    } finally {
      discard();
    }
  }

  void abort(long epoch) {
    discard();
    committer.abort(epoch);
  }

  /**
   * The epoch in progress. Each start of a query has its own object and tries an epoch once, so a late task of a failed
   * attempt does not get the epoch of the next one: it fails here, or adds its rows to a closed epoch, which refuses them.
   */
  SpooledEpoch epoch(long number) {
    SpooledEpoch epoch = current;
    if (epoch == null || epoch.number() != number) {
      throw new IllegalStateException("epoch " + number + " is not in progress");
    }
    return epoch;
  }

  LaneWriter writer(StructType schema, int partition, long epoch) {
    return new LaneWriter(this, epoch(epoch), new RecordColumns(schema, defaultTopic, job, epoch), partition);
  }

  Limits limits(String topic) {
    return limits.computeIfAbsent(topic, name -> read(name, false));
  }

  /** Reads all limits again: a user may have raised them since. */
  Limits newestLimits(String topic) {
    return limits.compute(topic, (name, old) -> read(name, true));
  }

  private Limits read(String topic, boolean again) {
    long[] values = committer.limits(topic, again);
    return new Limits((int) values[0], values[1], values[2] != 0);
  }

  private void discard() {
    SpooledEpoch epoch = current;
    current = null;
    if (epoch != null) {
      epoch.close();
    }
  }

  /**
   * What a topic accepts.
   *
   * @param partitions number of its partitions
   * @param batchBytes largest size of a batch with one record
   * @param ofTopic whether the topic's own setting limits the size, not the brokers' one for requests
   */
  record Limits(int partitions, long batchBytes, boolean ofTopic) {
    String setting() {
      return ofTopic ? "the topic's max.message.bytes" : "the brokers' socket.request.max.bytes";
    }
  }
}
