package clonos;

import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A Spark sink (Data Source V2) that publishes the rows of an epoch to Kafka, in one of two ways.
 *
 * <p>As the sink of a streaming query, its tasks spool their rows, and an {@link EpochCommitter} of the driver publishes
 * them. With a local master, tasks and driver share a JVM, in which {@link #QUERIES} has the query. The tasks of a cluster
 * send their rows to the driver ({@link RowTransfer}).
 *
 * <p>As the target of a batch, which is one epoch, each task publishes its own lane ({@link PartitionLanes}).
 */
public final class LaneSink implements TableProvider {
  /** The option with the key of one start of a query in {@link #QUERIES}, or of a batch in {@link #BATCHES}. */
  public static final String KEY = "key";

  private static final ConcurrentHashMap<String, SpooledQuery> QUERIES = new ConcurrentHashMap<>();
  private static final ConcurrentHashMap<String, PartitionLanes> BATCHES = new ConcurrentHashMap<>();

  /** Registers a query before it starts; Python calls it. */
  public static void register(String query, SpooledQuery spooled) {
    QUERIES.put(query, spooled);
  }

  /** Registers the lanes of a batch before it is written; Python calls it. */
  public static void register(String batch, PartitionLanes lanes) {
    BATCHES.put(batch, lanes);
  }

  /** Removes a query or a batch that has ended. */
  public static void unregister(String key) {
    QUERIES.remove(key);
    BATCHES.remove(key);
  }

  /** Returns a query that runs. */
  static SpooledQuery find(String key) {
    SpooledQuery query = QUERIES.get(key);
    if (query == null) {
      throw new IllegalStateException("this start of the query has ended");
    }
    return query;
  }

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    return new StructType();
  }

  @Override
  public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
    return new SinkTable(schema);
  }

  private record SinkTable(StructType schema) implements Table, SupportsWrite {
    @Override
    public String name() {
      return "clonos";
    }

    @Override
    public Set<TableCapability> capabilities() {
      return Set.of(
          TableCapability.STREAMING_WRITE,
          TableCapability.BATCH_WRITE,
          TableCapability.TRUNCATE,
          TableCapability.ACCEPT_ANY_SCHEMA);
    }

    @Override
    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
      return new Builder(info.options().get(KEY), info.schema());
    }
  }

  /** Output modes as in Spark's own Kafka sink: an update is appended, and "complete" truncates nothing. */
  private record Builder(String key, StructType schema)
      implements SupportsTruncate, SupportsStreamingUpdateAsAppend, Write {
    @Override
    public WriteBuilder truncate() {
      return this;
    }

    @Override
    public Write build() {
      return this;
    }

    @Override
    public StreamingWrite toStreaming() {
      return new EpochWrite(key, schema);
    }

    @Override
    public BatchWrite toBatch() {
      return new LanesWrite(key, schema, BATCHES.get(key));
    }
  }

  private record EpochWrite(String query, StructType schema) implements StreamingWrite {
    @Override
    public boolean useCommitCoordinator() {
      return false; // an epoch with a failed task fails as a whole
    }

    @Override
    public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo info) {
      SpooledQuery started = find(query);
      started.begin(info.numPartitions());
      return started.isLocal()
          ? new WriterFactory(query, schema)
          : new SendingFactory(query, schema, started.job(), started.defaultTopic(), started.publishes());
    }

    @Override
    public void commit(long epoch, WriterCommitMessage[] messages) {
      find(query).commit(epoch, messages);
    }

    @Override
    public void abort(long epoch, WriterCommitMessage[] messages) {
      find(query).abort(epoch);
    }
  }

  private record WriterFactory(String query, StructType schema) implements StreamingDataWriterFactory {
    @Override
    public DataWriter<InternalRow> createWriter(int partition, long task, long epoch) {
      return find(query).writer(schema, partition, epoch);
    }
  }

  private record SendingFactory(
      String query, StructType schema, String job, String defaultTopic, boolean publishes)
      implements StreamingDataWriterFactory {
    @Override
    public DataWriter<InternalRow> createWriter(int partition, long task, long epoch) {
      EpochGuard.requireFirstAttempt();
      return new LaneWriter(
          new RecordColumns(schema, defaultTopic, job, epoch),
          null, // the driver checks the records
          publishes ? new Spool(null) : null,
          (rows, digest, deadLetters) -> SentRows.of(query, epoch, partition, rows, digest, deadLetters));
    }
  }

  private record LanesWrite(String key, StructType schema, PartitionLanes lanes) implements BatchWrite {
    @Override
    public boolean useCommitCoordinator() {
      return false; // an epoch with a failed task fails as a whole
    }

    @Override
    public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
      if (info.numPartitions() != lanes.pass().lanes().size()) {
        throw new IllegalStateException(
            lanes.pass().lanes().size() + " lanes, but " + info.numPartitions() + " partitions");
      }
      return new LaneFactory(key, schema, lanes.pass());
    }

    @Override
    public void commit(WriterCommitMessage[] messages) {
      lanes.take(messages);
    }

    @Override
    public void abort(WriterCommitMessage[] messages) {
      // A task that failed has tried to abort its transaction; others may have published their lanes.
    }
  }

  private record LaneFactory(String key, StructType schema, PartitionLanes.Pass pass) implements DataWriterFactory {
    @Override
    public String toString() {
      return "the lanes of epoch " + pass.epoch(); // the options hold a password
    }

    @Override
    public DataWriter<InternalRow> createWriter(int partition, long task) {
      EpochGuard.requireFirstAttempt();
      PartitionLanes.Lane lane = pass.lanes().get(partition);
      RecordCheck check =
          lane.publish()
              ? new RecordCheck(
                  new TopicLimits(
                      ClusterAdmin.of(pass.connection()), pass.topic(), pass.requestBytes(), pass.bufferBytes()))
              : null;
      PartitionLanes local = BATCHES.get(key); // null in the JVM of an executor
      return new LaneWriter(
          new RecordColumns(schema, pass.topic(), pass.job(), pass.epoch()),
          check,
          lane.publish() ? new Spool(null) : null,
          new LaneTask(pass, partition, local == null ? null : local.points()));
    }
  }
}
