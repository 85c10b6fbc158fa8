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
import org.apache.spark.sql.connector.write.DataWriter;
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
 * A Spark sink (Data Source V2) whose tasks spool their rows, for an {@link EpochCommitter} that publishes them.
 *
 * <p>It needs a local master: tasks and committer find each other in {@link #QUERIES}, in one JVM.
 */
public final class LaneSink implements TableProvider {
  /** The option with the key of one start of a query in {@link #QUERIES}. */
  public static final String QUERY = "query";

  private static final ConcurrentHashMap<String, SpooledQuery> QUERIES = new ConcurrentHashMap<>();

  /** Registers a query before it starts; Python calls it. */
  public static void register(String query, SpooledQuery spooled) {
    QUERIES.put(query, spooled);
  }

  /** Removes a query that has ended. */
  public static void unregister(String query) {
    QUERIES.remove(query);
  }

  private static SpooledQuery find(String key) {
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
          TableCapability.STREAMING_WRITE, TableCapability.TRUNCATE, TableCapability.ACCEPT_ANY_SCHEMA);
    }

    @Override
    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
      return new Builder(info.options().get(QUERY), info.schema());
    }
  }

  /** Output modes as in Spark's own Kafka sink: an update is appended, and "complete" truncates nothing. */
  private record Builder(String query, StructType schema)
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
      return new EpochWrite(query, schema);
    }
  }

  private record EpochWrite(String query, StructType schema) implements StreamingWrite {
    @Override
    public boolean useCommitCoordinator() {
      return false; // an epoch with a failed task fails as a whole
    }

    @Override
    public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo info) {
      find(query).begin(info.numPartitions());
      return new WriterFactory(query, schema);
    }

    @Override
    public void commit(long epoch, WriterCommitMessage[] messages) {
      find(query).commit(epoch);
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
}
