package clonos;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.Map;
import java.util.function.Supplier;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.header.Header;

/** Refuses a record that its topic does not accept. */
public final class TopicCheck implements RecordCheck {
  private static final int BATCH_OVERHEAD = 61; // Kafka's record format, version 2
  private static final int RECORD_OVERHEAD = 3; // attributes, two deltas of zero

  private final TopicLimits limits;

  TopicCheck(TopicLimits limits) {
    this.limits = limits;
  }

  /**
   * Makes a check for each epoch, with new limits: a topic may have been deleted since the last one.
   *
   * @param connection Kafka's options of an admin client, which reads what topics accept
   * @param defaultTopic topic of rows without one; null: each row must name its topic
   * @param requestBytes the largest batch that fits into a request
   * @param bufferBytes the largest batch that fits into the producer's buffer
   */
  public static Supplier<RecordCheck> ofEpochs(
      Map<String, String> connection, String defaultTopic, int requestBytes, int bufferBytes) {
    Map<String, String> options = Map.copyOf(connection);
    return () ->
        new TopicCheck(new TopicLimits(ClusterAdmin.of(options), defaultTopic, requestBytes, bufferBytes));
  }

  @Override
  public void check(ProducerRecord<byte[], byte[]> record) {
    TopicLimits.Limits topic = limits.of(record.topic());
    Integer target = record.partition();
    if (target != null && target >= topic.partitions()) {
      topic = limits.newest(record.topic());
      if (target >= topic.partitions()) {
        throw new CarriedError(
            "RecordRejected",
            "A record is for partition " + target + " of " + record.topic() + ", which has " + topic.partitions()
                + " partitions.",
            "",
            "fix the column 'partition', or add partitions to the topic.");
      }
    }
    if (record.timestamp() != null) {
      checkTimestamp(record, topic);
    }
    if (upperBound(record) <= topic.batchBytes()) {
      return;
    }
    long bytes = batchBytes(record);
    if (bytes > topic.batchBytes()) {
      topic = limits.newest(record.topic());
    }
    if (bytes > topic.batchBytes()) {
      throw new CarriedError(
          "RecordRejected",
          "A record for " + record.topic() + " takes " + bytes + " bytes, " + topic.setting() + " allows "
              + topic.batchBytes() + ".",
          "",
          "raise " + topic.setting() + " to at least " + bytes + ", or publish smaller records.");
    }
  }

  private void checkTimestamp(ProducerRecord<byte[], byte[]> record, TopicLimits.Limits topic) {
    long ahead = record.timestamp() - System.currentTimeMillis();
    boolean future = ahead > topic.futureMillis();
    if (!future && -ahead <= topic.pastMillis()) {
      return;
    }
    String setting = future ? "message.timestamp.after.max.ms" : "message.timestamp.before.max.ms";
    throw new CarriedError(
        "RecordRejected",
        "A record for " + record.topic() + " has the timestamp " + Instant.ofEpochMilli(record.timestamp()) + ", "
            + Duration.ofMillis(Math.abs(ahead)) + (future ? " ahead of" : " behind") + " this machine's clock; the topic's "
            + setting + " allows " + (future ? topic.futureMillis() : topic.pastMillis()) + " ms.",
        "",
        "fix the column 'timestamp' or the machine's clock, or raise the topic's " + setting + ".");
  }

  private static long upperBound(ProducerRecord<byte[], byte[]> record) {
    long bytes = 96L + length(record.key()) + length(record.value());
    for (Header header : record.headers()) {
      bytes += 10 + 4L * header.key().length() + length(header.value());
    }
    return bytes;
  }

  /** The size of a batch with this record alone, as the broker counts it. */
  private static long batchBytes(ProducerRecord<byte[], byte[]> record) {
    long body = RECORD_OVERHEAD + field(record.key()) + field(record.value());
    Header[] headers = record.headers().toArray();
    body += varint(headers.length);
    for (Header header : headers) {
      body += field(header.key().getBytes(StandardCharsets.UTF_8)) + field(header.value());
    }
    return BATCH_OVERHEAD + varint(body) + body;
  }

  private static int length(byte[] data) {
    return data == null ? 0 : data.length;
  }

  private static long field(byte[] data) {
    return data == null ? 1 : varint(data.length) + data.length;
  }

  /** The number of bytes of a non-negative number in zig-zag encoding, with seven bits in each byte. */
  private static int varint(long number) {
    int bits = Long.SIZE - Long.numberOfLeadingZeros(number << 1);
    return Math.max(1, (bits + 6) / 7);
  }
}
