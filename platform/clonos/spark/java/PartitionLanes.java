package clonos;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.connector.write.WriterCommitMessage;

/**
 * The lanes of one pass over an epoch, one for each partition; the partition's task publishes it.
 *
 * <p>Python makes this object before Spark writes the epoch's rows to {@link LaneSink}, and reads the outcomes after it.
 */
public final class PartitionLanes {
  private static final ObjectMapper JSON = new ObjectMapper();

  private final Pass pass;
  private final LanePoints points;
  private final List<Outcome> outcomes = new ArrayList<>();

  /**
   * @param pass a {@link Pass} as JSON
   * @param points called at the points of the protocol, in tests; else null
   */
  public PartitionLanes(String pass, LanePoints points) throws JsonProcessingException {
    this.pass = JSON.readValue(pass, Pass.class);
    this.points = points;
  }

  Pass pass() {
    return pass;
  }

  LanePoints points() {
    return points;
  }

  void take(WriterCommitMessage[] messages) {
    for (WriterCommitMessage message : messages) {
      outcomes.add((Outcome) message);
    }
  }

  /** The outcomes of all tasks as a JSON array of objects. */
  public String outcomes() throws JsonProcessingException {
    return JSON.writeValueAsString(outcomes);
  }

  /**
   * One pass over the rows of an epoch, on its way to the tasks.
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
      String job,
      long epoch,
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
      implements Serializable {
    @Override
    public String toString() {
      return "epoch " + epoch; // the options hold a password
    }
  }

  /**
   * One lane.
   *
   * @param name for messages
   * @param publish whether its rows are published; else they are only counted and compared
   * @param producerId the newest producer of the transactional id when the driver checked that it owns the job
   * @param producerEpoch the epoch of that producer
   * @param newestOffset offset of the newest claim or marker in the lane's partition of the causal log; -1 if unknown
   * @param logEnd the offset after that record's transaction; -1 if unknown
   * @param marker the marker without its last fields, see {@code clonos.log.records.marker_head}
   */
  record Lane(
      String name,
      boolean publish,
      String transactionalId,
      long producerId,
      int producerEpoch,
      long newestOffset,
      long logEnd,
      int logPartition,
      byte[] marker)
      implements Serializable {}

  /** What a task did; {@code markerOffset} is -1 if it wrote no marker. */
  record Outcome(int task, long records, byte[] digest, long deadLetters, long markerOffset)
      implements WriterCommitMessage {}
}
