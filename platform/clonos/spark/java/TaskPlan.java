package clonos;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.Serializable;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.connector.write.WriterCommitMessage;

/**
 * What the tasks of an epoch do with their rows. Python makes it ({@code clonos.spark.lane_sink.TaskPlan}).
 *
 * @param rows by Spark's partition index
 * @param pass how the tasks publish their lanes; null: no task does
 * @param points whether the tasks of a local master report the points of the protocol, in tests
 * @param live run id of a live query, for its {@link StepPublisher}; null: the epoch is not live
 */
record TaskPlan(List<Rows> rows, Pass pass, boolean points, String live) implements Serializable {
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
    /** It publishes its lane. */
    PUBLISH,
    /** It sends them to the driver, which publishes them. */
    SEND,
    /** It only counts them, and computes their digest: they are published. */
    COUNT,
    /** It hands them to the {@link StepPublisher} record by record. */
    LIVE
  }

  /**
   * How the tasks of an epoch publish their lanes.
   *
   * @param topic topic of rows without one, or null
   * @param transactional false: rows are published at least once, without markers
   * @param kept whether a producer may serve more than one transaction (KIP-890)
   * @param requestBytes the largest batch that fits into a request
   * @param bufferBytes the largest batch that fits into a producer's buffer
   * @param connection the options that Kafka's Java clients need to connect
   * @param producer further options of the producers
   * @param patient options that replace those for a lane of many bytes
   * @param patientBytes the size of such a lane
   * @param lanes by Spark's partition index
   */
  record Pass(
      String topic,
      String logTopic,
      boolean transactional,
      boolean kept,
      int requestBytes,
      int bufferBytes,
      Map<String, String> connection,
      Map<String, String> producer,
      Map<String, String> patient,
      long patientBytes,
      Map<String, String> topicIds,
      List<Lane> lanes)
      implements Serializable {}

  /**
   * One lane.
   *
   * @param name for messages
   * @param producerId the newest producer of the transactional id when the driver checked that it owns the job
   * @param producerEpoch the epoch of that producer
   * @param newestOffset offset of the newest claim or marker in the lane's partition of the causal log; -1 if unknown
   * @param logEnd the offset after that record's transaction; -1 if unknown
   * @param marker the marker without its last fields, see {@code clonos.log.records.marker_head}
   */
  record Lane(
      String name,
      String transactionalId,
      long producerId,
      int producerEpoch,
      long newestOffset,
      long logEnd,
      int logPartition,
      byte[] marker)
      implements Serializable {}

  /** What a task did that published its lane; {@code markerOffset} is -1 if it wrote no marker. */
  record Published(int task, RecordDigest digest, long deadLetters, long markerOffset)
      implements WriterCommitMessage {}
}
