package clonos;

import clonos.KafkaFailure.RecordFailed;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.connector.write.WriterCommitMessage;

/**
 * Publishes one lane in the task that has computed its rows; the steps are as in {@code
 * clonos_sinks.kafka.partitioned}.
 */
final class LaneTask implements LaneWriter.Ending {
  private static final byte[] RECORDS = {(byte) 0xcf}; // msgpack: an unsigned number of eight bytes follows
  private static final byte[] DIGEST = digestHeader();

  private final LanePass pass;
  private final LanePass.Lane lane;
  private final int task;
  private final SpooledQuery points;

  /** @param points receives the points of the protocol; null: none is reported */
  LaneTask(LanePass pass, int task, SpooledQuery points) {
    this.pass = pass;
    this.lane = pass.lanes().get(task);
    this.task = task;
    this.points = points;
  }

  @Override
  public WriterCommitMessage end(Spool rows, RecordDigest digest, long deadLetters) {
    long offset = -1;
    try (rows) {
      reach("state-committed");
      if (digest.records() > 0) {
        offset = pass.transactional() ? commit(rows, digest) : deliver(rows);
      } else if (pass.rehearsed()) {
        connect(options(rows));
      }
    } catch (Exception failure) {
      throw KafkaFailure.typed(lane.name(), failure, "EpochFailed");
    }
    return new TaskPlan.Published(task, digest, deadLetters, offset);
  }

  /** Uses both clients as the first transaction does. Without an init, a producer fences no other one. */
  private void connect(Map<String, String> options) throws Exception {
    try (LaneProducer producer = new LaneProducer(options)) {
      producer.connect(pass.logTopic());
    }
    if (pass.transactional()) { // otherwise the job needs no right on a transactional id
      ClusterAdmin.of(pass.connection()).newestProducers(List.of(lane.transactionalId()));
    }
  }

  private long deliver(Spool rows) {
    try (LaneProducer producer = new LaneProducer(options(rows))) {
      rows.forEach(producer::send);
      producer.flush();
    }
    return -1;
  }

  private long commit(Spool rows, RecordDigest digest) throws Exception {
    Map<String, String> options = options(rows);
    LaneProducer producer = KeptProducers.take(lane.transactionalId(), options, lane.newestOffset());
    if (producer == null) {
      producer = lane.open(pass.connection(), options); // steps 1 and 2
    }
    boolean sent = false;
    try {
      reach("lane-initialised");
      reach("lane-tail-read");
      reach("lane-decided"); // step 3: the driver decided with the markers that its claim read
      producer.begin(); // step 4
      reach("lane-begun");
      rows.forEach(producer::send);
      reach("lane-produced");
      producer.mark(pass.logTopic(), lane.logPartition(), marker(digest));
      reach("lane-marked");
      sent = true;
      long offset = producer.commit(lane.logEnd(), pass.topicIds());
      sent = false;
      reach("lane-committed");
      if (pass.kept()) {
        KeptProducers.keep(lane.transactionalId(), options, producer, offset);
      } else {
        producer.close();
      }
      return offset;
    } catch (Exception failure) { // step 5: a commit of unknown outcome is resolved by the next claim
      if (!sent || failure instanceof RecordFailed) {
        producer.abortQuietly();
      }
      producer.close();
      throw failure;
    }
  }

  private Map<String, String> options(Spool rows) {
    Map<String, String> options = new HashMap<>(pass.producer());
    if (rows.bytes() > pass.patientBytes()) {
      options.putAll(pass.patient());
    }
    options.putAll(pass.connection());
    if (pass.transactional()) {
      return lane.named(options);
    }
    options.put("client.id", lane.transactionalId());
    return options;
  }

  private byte[] marker(RecordDigest digest) {
    byte[] head = lane.marker();
    byte[] value = digest.value();
    return ByteBuffer.allocate(head.length + RECORDS.length + Long.BYTES + DIGEST.length + value.length)
        .put(head)
        .put(RECORDS)
        .putLong(digest.records())
        .put(DIGEST)
        .put(value)
        .array();
  }

  /** Msgpack: the key "digest", then the header of 16 bytes. */
  private static byte[] digestHeader() {
    byte[] name = "digest".getBytes(StandardCharsets.US_ASCII);
    return ByteBuffer.allocate(name.length + 3)
        .put((byte) (0xa0 | name.length))
        .put(name)
        .put((byte) 0xc4)
        .put((byte) (2 * Long.BYTES))
        .array();
  }

  private void reach(String point) {
    if (points != null) {
      points.reach(point, task);
    }
  }
}
