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
 * The Spark sink (Data Source V2) through which all epochs go.
 *
 * <p>An {@link EpochCommitter} of the driver plans each epoch. Its {@link TaskPlan} says which tasks publish their rows,
 * send them to the driver, or only count them. With a local master, tasks and driver share a JVM, in which {@link #QUERIES}
 * has the query; the tasks of a cluster send their rows in messages ({@link RowTransfer}).
 *
 * <p>A batch is one epoch too: the tests of a sink's contract write epochs without a query.
 */
public final class LaneSink implements TableProvider {
  /** The option with the key of one start of a query in {@link #QUERIES}. */
  public static final String KEY = "key";

  private static final ConcurrentHashMap<String, SpooledQuery> QUERIES = new ConcurrentHashMap<>();

  /** Registers a query before it starts; Python calls it. */
  public static void register(String query, SpooledQuery spooled) {
    QUERIES.put(query, spooled);
  }

  /** Removes a query that has ended. */
  public static void unregister(String query) {
    QUERIES.remove(query);
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
      return new EpochWrite(key, schema);
    }
  }

  private record EpochWrite(String query, StructType schema) implements StreamingWrite, BatchWrite {
    @Override
    public boolean useCommitCoordinator() {
      return false; // an epoch with a failed task fails as a whole
    }

    @Override
    public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo info) {
      return begin(info);
    }

    @Override
    public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
      return begin(info);
    }

    private WriterFactory begin(PhysicalWriteInfo info) {
      SpooledQuery started = find(query);
      SpooledEpoch epoch = started.begin(info.numPartitions());
      return new WriterFactory(
          query, schema, started.job(), started.defaultTopic(), epoch.number(), epoch.plan(), started.isLocal());
    }

    @Override
    public void commit(long epoch, WriterCommitMessage[] messages) {
      find(query).commit(epoch, messages);
    }

    @Override
    public void commit(WriterCommitMessage[] messages) {
      find(query).commit(find(query).current().number(), messages);
    }

    @Override
    public void abort(long epoch, WriterCommitMessage[] messages) {
      find(query).abort(epoch);
    }

    @Override
    public void abort(WriterCommitMessage[] messages) {
      find(query).abort(find(query).current().number());
    }
  }

  private record WriterFactory(
      String query, StructType schema, String job, String defaultTopic, long epoch, TaskPlan plan, boolean isLocal)
      implements StreamingDataWriterFactory, DataWriterFactory {
    @Override
    public DataWriter<InternalRow> createWriter(int partition, long task, long ofEpoch) {
      return createWriter(partition, task);
    }

    @Override
    public DataWriter<InternalRow> createWriter(int partition, long task) {
      EpochGuard.requireFirstAttempt();
      RecordColumns columns = new RecordColumns(schema, defaultTopic, job, epoch + plan.ahead());
      TaskPlan.Rows rows = plan.rows().get(partition);
      if (rows == TaskPlan.Rows.PUBLISH) {
        SpooledQuery points = isLocal && plan.points() ? find(query) : null;
        return plan.pass().writer(columns, partition, points);
      }
      if (rows == TaskPlan.Rows.LIVE) {
        return new LiveRows.Writer(columns, find(query).epoch(epoch).check(), null);
      }
      boolean sends = rows == TaskPlan.Rows.SEND;
      if (isLocal) {
        SpooledEpoch here = find(query).epoch(epoch);
        return sends
            ? new LaneWriter(columns, here.check(), here.newSpool(), here.ending(partition))
            : new LaneWriter(columns, null, null, here.ending(partition));
      }
      return new LaneWriter(
          columns,
          null, // the driver checks the records
          sends ? new Spool(null) : null,
          (spool, digest, deadLetters) -> SentRows.of(query, epoch, partition, spool, digest, deadLetters));
    }
  }
}
