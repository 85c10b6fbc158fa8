package clonos;

import com.fasterxml.jackson.annotation.JsonTypeInfo;
import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.Serializable;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.WriterCommitMessage;

/**
 * What the tasks of an epoch do with their rows. Python makes it ({@code clonos.spark.lane_sink.TaskPlan}).
 *
 * @param rows by Spark's partition index
 * @param pass how the tasks publish their lanes; null: no task does
 * @param points whether the tasks of a local master report the points of the protocol, in tests
 * @param live run id of a live query whose tasks share a {@link LivePublisher}; null: they do not
 * @param ahead the number of the epoch, less that of Spark's batch
 */
record TaskPlan(List<Rows> rows, Pass pass, boolean points, String live, long ahead) implements Serializable {
  private static final ObjectMapper JSON = new ObjectMapper();

  static TaskPlan parse(String json) {
    try {
      return JSON.readValue(json, TaskPlan.class);
    } catch (JsonProcessingException failure) {
      throw new IllegalStateException("the driver's plan of the tasks is not readable", failure);
    }
  }

  @Override
  public String toString() {
    return "a plan of " + rows.size() + " tasks"; // the options hold a password
  }

  /** What a task does with its rows, once all of them are computed. */
  enum Rows {
    /** It publishes its rows: at its end as a lane, or in a live epoch in steps. */
    PUBLISH,
    /** It sends them to the driver, which publishes them. */
    SEND,
    /** It only counts them, and computes their digest: they are published. */
    COUNT,
    /** It hands them to the {@link LivePublisher} record by record. */
    LIVE
  }

  /** How the tasks of an epoch publish their lanes. The plan names the sink's own class. */
  @JsonTypeInfo(use = JsonTypeInfo.Id.CLASS, property = "class")
  interface Pass extends Serializable {
    /**
     * Makes the writer of a task's rows.
     *
     * @param points receives the points of the protocol, in tests; null: none is reported
     */
    DataWriter<InternalRow> writer(RecordColumns columns, int task, SpooledQuery points);
  }

  /** What a task did that published its lane; {@code markerOffset} is -1 if it wrote no marker. */
  record Published(int task, RecordDigest digest, long deadLetters, long markerOffset)
      implements WriterCommitMessage {}
}
