package clonos;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.header.Header;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.WriterCommitMessage;

/** One task of an epoch: checks its rows, and spools them as Kafka records. */
final class LaneWriter implements DataWriter<InternalRow> {
  private static final int BATCH_OVERHEAD = 61; // Kafka's record format, version 2
  private static final int RECORD_OVERHEAD = 3; // attributes, two deltas of zero

  private final SpooledQuery query;
  private final SpooledEpoch epoch;
  private final RecordColumns columns;
  private final int partition;
  private final RecordDigest digest = new RecordDigest();
  private final Spool spool;

  LaneWriter(SpooledQuery query, SpooledEpoch epoch, RecordColumns columns, int partition) {
    this.query = query;
    this.epoch = epoch;
    this.columns = columns;
    this.partition = partition;
    spool = epoch.newSpool();
  }

  @Override
  public void write(InternalRow row) throws IOException {
    ProducerRecord<byte[], byte[]> record = columns.record(row);
    check(record);
    digest.add(record);
    spool.add(record);
  }

  /** Spark calls this after the last row, when the task's state is committed. */
  @Override
  public WriterCommitMessage commit() {
    epoch.add(partition, spool, digest, columns.deadLetters());
    return new Spooled();
  }

  @Override
  public void abort() {
    spool.close();
  }

  @Override
  public void close() {
    // The epoch deletes the rows.
  }

  /** Refuses a record that Kafka would refuse, before anything of the epoch is sent. */
  private void check(ProducerRecord<byte[], byte[]> record) {
    SpooledQuery.Limits limits = query.limits(record.topic());
    Integer target = record.partition();
    if (target != null && target >= limits.partitions()) {
      limits = query.newestLimits(record.topic());
      if (target >= limits.partitions()) {
        throw new CarriedError(
            "RecordRejected",
            "A record is for partition " + target + " of " + record.topic() + ", which has " + limits.partitions()
                + " partitions.",
            "",
            "fix the column 'partition', or add partitions to the topic.");
      }
    }
    if (upperBound(record) <= limits.batchBytes()) {
      return;
    }
    long bytes = batchBytes(record);
    if (bytes > limits.batchBytes()) {
      limits = query.newestLimits(record.topic());
    }
    if (bytes > limits.batchBytes()) {
      throw new CarriedError(
          "RecordRejected",
          "A record for " + record.topic() + " takes " + bytes + " bytes, " + limits.setting() + " allows "
              + limits.batchBytes() + ".",
          "",
          "raise " + limits.setting() + " to at least " + bytes + ", or publish smaller records.");
    }
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

  private static final class Spooled implements WriterCommitMessage {
    private static final long serialVersionUID = 1;
  }
}
