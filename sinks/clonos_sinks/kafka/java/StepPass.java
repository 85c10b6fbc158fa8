package clonos;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.DataWriter;

/**
 * How the tasks of a live epoch publish their steps on a cluster. Python makes it ({@code
 * clonos_sinks.kafka.task_steps.StepPass}).
 *
 * @param run run id of the query
 * @param name for messages
 * @param intervalMillis the shortest pause after a step; 0: the default
 * @param timestampMillis the time of the epoch
 * @param topic topic of rows without one, or null
 * @param requestBytes the largest batch that fits into a request
 * @param bufferBytes the largest batch that fits into a producer's buffer
 * @param connection the options that Kafka's Java clients need to connect
 * @param producer further options of the producers
 * @param topicIds the ids of the topics that may have records of the steps
 * @param lanes those of each task, by Spark's partition index; empty: in a rehearsal, whose tasks have no rows
 */
record StepPass(
    String run,
    String name,
    int intervalMillis,
    long timestampMillis,
    String topic,
    String logTopic,
    int requestBytes,
    int bufferBytes,
    Map<String, String> connection,
    Map<String, String> producer,
    Map<String, String> topicIds,
    List<List<LanePass.Lane>> lanes)
    implements TaskPlan.Pass {
  @Override
  public DataWriter<InternalRow> writer(RecordColumns columns, int task, SpooledQuery points) {
    RecordCheck check = TopicCheck.ofEpochs(connection, topic, requestBytes, bufferBytes).get();
    return new LiveRows.Writer(columns, check, new StepTask(this, task));
  }

  /** The options of a lane's producer. */
  Map<String, String> options(LanePass.Lane lane) {
    Map<String, String> options = new HashMap<>(producer);
    options.putAll(connection);
    return lane.named(options);
  }

  @Override
  public String toString() {
    return "a pass of " + lanes.size() + " live tasks"; // the options hold a password
  }
}
