package clonos;

import java.nio.file.Path;
import java.util.function.Supplier;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.connector.write.WriterCommitMessage;

/** One running query of a {@link LaneSink}: its committer, and the epoch in progress. */
public final class SpooledQuery {
  /** Spark's local property of the stream's thread with the number of the micro-batch. */
  private static final String EPOCH = "streaming.sql.batchId";

  private final EpochCommitter committer;
  private final String job;
  private final String defaultTopic;
  private final Path folder;
  private final Supplier<RecordCheck> checks;
  private volatile SpooledEpoch current;

  /**
   * @param defaultTopic topic of rows without one; null: each row must name its topic
   * @param folder directory for rows that do not fit into memory
   * @param checks makes the check of each epoch; null: the rows that the driver gets are not checked
   */
  public SpooledQuery(
      EpochCommitter committer,
      String job,
      String defaultTopic,
      String folder,
      Supplier<RecordCheck> checks) {
    this.committer = committer;
    this.job = job;
    this.defaultTopic = defaultTopic;
    this.folder = Path.of(folder);
    this.checks = checks;
  }

  /** Adds bytes to the memory for rows, or removes them, for tests; returns what is free. */
  public static long addMemory(long bytes) {
    return Spool.addMemory(bytes);
  }

  /** Whether the epochs' tasks run in this JVM. */
  boolean isLocal() {
    return SparkContext.getOrCreate().isLocal();
  }

  String job() {
    return job;
  }

  String defaultTopic() {
    return defaultTopic;
  }

  SpooledEpoch begin(int partitions) {
    long epoch = Long.parseLong(SparkContext.getOrCreate().getLocalProperty(EPOCH));
    discard();
    RecordCheck check = checks == null ? null : checks.get();
    TaskPlan plan = TaskPlan.parse(committer.begin(epoch, partitions)); // last: Spark calls no abort if this throws
    if (plan.live() != null) {
      LivePublisher.find(plan.live()).reportPointsTo(plan.points() ? this : null);
    }
    current = new SpooledEpoch(epoch, plan, folder, check);
    return current;
  }

  void commit(long number, WriterCommitMessage[] messages) {
    try {
      SpooledEpoch epoch = epoch(number);
      for (WriterCommitMessage message : messages) {
        if (message instanceof SentRows sent) {
          epoch.add(sent);
        } else if (message instanceof TaskPlan.Published published) {
          epoch.addPublished(published);
        }
      }
      committer.commit(number, epoch);
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

  /** The epoch in progress. */
  SpooledEpoch current() {
    SpooledEpoch epoch = current;
    if (epoch == null) {
      throw new IllegalStateException("no epoch is in progress");
    }
    return epoch;
  }

  void reach(String point, int task) {
    committer.reach(point, task);
  }

  private void discard() {
    SpooledEpoch epoch = current;
    current = null;
    if (epoch != null) {
      epoch.close();
    }
  }
}
