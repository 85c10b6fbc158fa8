package clonos;

import java.io.Serializable;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * How the tasks of an epoch publish their lanes to Kafka. Python makes it ({@code clonos_sinks.kafka.partitioned.LanePass}).
 *
 * @param topic topic of rows without one, or null
 * @param transactional false: rows are published at least once, without markers
 * @param kept whether a producer may serve more than one transaction (KIP-890)
 * @param rehearsed whether tasks without rows connect, so that a takeover's first transaction finds all classes loaded
 * @param requestBytes the largest batch that fits into a request
 * @param bufferBytes the largest batch that fits into a producer's buffer
 * @param connection the options that Kafka's Java clients need to connect
 * @param producer further options of the producers
 * @param patient options that replace those for a lane of many bytes
 * @param patientBytes the size of such a lane
 * @param lanes by Spark's partition index
 */
record LanePass(
    String topic,
    String logTopic,
    boolean transactional,
    boolean kept,
    boolean rehearsed,
    int requestBytes,
    int bufferBytes,
    Map<String, String> connection,
    Map<String, String> producer,
    Map<String, String> patient,
    long patientBytes,
    Map<String, String> topicIds,
    List<Lane> lanes)
    implements TaskPlan.Pass {
  @Override
  public LaneWriter writer(RecordColumns columns, int task, SpooledQuery points) {
    RecordCheck check = TopicCheck.ofEpochs(connection, topic, requestBytes, bufferBytes).get();
    return new LaneWriter(columns, check, new Spool(null), new LaneTask(this, task, points));
  }

  @Override
  public String toString() {
    return "a pass of " + lanes.size() + " lanes"; // the options hold a password
  }

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
      implements Serializable {
    /**
     * Opens a producer, which fences every earlier one, and checks that it is the next one after the producer that the
     * driver knew. Otherwise another driver may have claimed the lane, and this producer must not write.
     *
     * @param connection the options that Kafka's Java clients need to connect
     * @param options those of the producer, with its ids
     */
    LaneProducer open(Map<String, String> connection, Map<String, String> options) throws Exception {
      LaneProducer producer = new LaneProducer(options);
      try {
        producer.init();
        ClusterAdmin.NewestProducer known = new ClusterAdmin.NewestProducer(producerId, producerEpoch);
        ClusterAdmin.NewestProducer opened =
            ClusterAdmin.of(connection).newestProducers(List.of(transactionalId)).get(transactionalId);
        if (!known.isFollowedBy(opened)) {
          throw new CarriedError(
              "EpochFailed",
              name + ": " + transactionalId + " was opened more than once since the driver's check.",
              "",
              "");
        }
        return producer;
      } catch (Exception failure) {
        producer.close();
        throw failure;
      }
    }

    /** The options of the lane's producer: these, and its ids. */
    Map<String, String> named(Map<String, String> options) {
      Map<String, String> named = new HashMap<>(options);
      named.put("client.id", transactionalId);
      named.put("transactional.id", transactionalId);
      return named;
    }
  }
}
