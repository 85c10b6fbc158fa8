package clonos;

import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.types.StructType;

/** One running query of a {@link LaneSink}: its committer, and the rows of the epoch in progress. */
public final class SpooledQuery {
  /** Spark's local property of the stream's thread with the number of the micro-batch. */
  private static final String EPOCH = "streaming.sql.batchId";

  private final EpochCommitter committer;
  private final String job;
  private final String defaultTopic;
  private final Path folder;
  private final long memoryBytes;
  private final Map<String, Limits> limits = new ConcurrentHashMap<>();
  private volatile SpooledEpoch current;

  /**
   * @param defaultTopic topic of rows without one; null: each row must name its topic
   * @param folder directory for rows beyond {@code memoryBytes}
   * @param memoryBytes bytes of an epoch's rows that may stay in memory
   */
  public SpooledQuery(
      EpochCommitter committer, String job, String defaultTopic, String folder, long memoryBytes) {
    this.committer = committer;
    this.job = job;
    this.defaultTopic = defaultTopic;
    this.folder = Path.of(folder);
    this.memoryBytes = memoryBytes;
  }

  void begin(int partitions) {
    long epoch = Long.parseLong(SparkContext.getOrCreate().getLocalProperty(EPOCH));
    discard();
    current = new SpooledEpoch(epoch, partitions, folder, memoryBytes);
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

  /** The epoch in progress. A late task of another epoch fails here; one of a failed attempt holds a closed object. */
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
    return limits.computeIfAbsent(topic, this::read);
  }

  /** Reads the limits again: a user may have raised them since. */
  Limits newestLimits(String topic) {
    return limits.compute(topic, (name, old) -> read(name));
  }

  private Limits read(String topic) {
    long[] values = committer.limits(topic);
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
