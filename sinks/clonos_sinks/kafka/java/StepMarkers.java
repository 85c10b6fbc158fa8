package clonos;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;

/**
 * The markers of an epoch's steps: which lane is next, where its partition of the log ends, and the marker's bytes.
 *
 * <p>Python makes the head ({@code clonos.log.records.step_head}): a marker in msgpack without the values of a step.
 */
final class StepMarkers {
  private final String logTopic;
  private final List<Integer> partitions;
  private final List<Long> ends;
  private final List<Long> newest;
  private final List<byte[]> heads;
  private final long beganMillis;
  private final long beganNanos;
  private long step;
  private long total;
  private long time;

  /**
   * The lanes of an epoch. Python makes it ({@code clonos_sinks.kafka.steps.Lanes}).
   *
   * @param ends the end of each lane's partition of the log, as its owner knows it
   * @param heads the markers of each lane, without the fields of a step
   * @param topicIds the ids of the topics that may have records of the steps
   * @param beganMillis the time of the epoch; the tasks read their clock later
   */
  record Lanes(
      String logTopic,
      List<Integer> partitions,
      List<Long> ends,
      List<byte[]> heads,
      Map<String, String> topicIds,
      long beganMillis) {
    private static final ObjectMapper JSON = new ObjectMapper();

    static Lanes parse(String json) throws JsonProcessingException {
      return JSON.readValue(json, Lanes.class);
    }
  }

  /** @param beganNanos when the epoch began, by the JVM's monotonic clock */
  StepMarkers(Lanes lanes, long beganNanos) {
    logTopic = lanes.logTopic();
    partitions = lanes.partitions();
    ends = new ArrayList<>(lanes.ends());
    heads = lanes.heads();
    beganMillis = lanes.beganMillis();
    this.beganNanos = beganNanos;
    newest = new ArrayList<>(Collections.nCopies(heads.size(), -1L));
  }

  String logTopic() {
    return logTopic;
  }

  int nextLane() {
    return (int) (step % heads.size());
  }

  int partition(int lane) {
    return partitions.get(lane);
  }

  long end(int lane) {
    return ends.get(lane);
  }

  void committed(int lane, long offset, long end, long records) {
    newest.set(lane, offset);
    ends.set(lane, end);
    step++;
    total += records;
  }

  List<Long> newest() {
    return List.copyOf(newest);
  }

  /** The time of the newest step, in milliseconds since 1970; 0: there is none. */
  long time() {
    return time;
  }

  /** The marker of the next step. */
  byte[] value(int lane, RecordDigest digest, Map<String, ? extends Map<Integer, Long>> next) throws IOException {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream(256);
    DataOutputStream out = new DataOutputStream(bytes);
    out.write(heads.get(lane));
    text(out, "records");
    number(out, digest.records());
    text(out, "digest");
    byte[] value = digest.value();
    out.writeByte(0xc4); // binary of less than 256 bytes
    out.writeByte(value.length);
    out.write(value);
    text(out, "step");
    number(out, step + 1);
    text(out, "total");
    number(out, total + digest.records());
    text(out, "next_offsets");
    map(out, next.size());
    for (Map.Entry<String, ? extends Map<Integer, Long>> topic : next.entrySet()) {
      text(out, topic.getKey());
      map(out, topic.getValue().size());
      for (Map.Entry<Integer, Long> partition : topic.getValue().entrySet()) {
        number(out, partition.getKey());
        number(out, partition.getValue());
      }
    }
    text(out, "time_ms");
    time = beganMillis + (System.nanoTime() - beganNanos) / 1_000_000;
    number(out, time);
    return bytes.toByteArray();
  }

  private static void number(DataOutputStream out, long value) throws IOException {
    out.writeByte(0xcf); // unsigned, eight bytes
    out.writeLong(value);
  }

  private static void text(DataOutputStream out, String value) throws IOException {
    byte[] utf8 = value.getBytes(StandardCharsets.UTF_8);
    out.writeByte(0xda); // less than 65,536 bytes
    out.writeShort(utf8.length);
    out.write(utf8);
  }

  private static void map(DataOutputStream out, int size) throws IOException {
    out.writeByte(0xdf); // four bytes of size
    out.writeInt(size);
  }
}
