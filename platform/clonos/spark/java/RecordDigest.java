package clonos;

import java.io.Serializable;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.header.Header;
import org.apache.spark.sql.catalyst.expressions.XXH64;
import org.apache.spark.unsafe.Platform;

/**
 * A digest of records as a multiset: equal records in any order have the same digest.
 *
 * <p>It is the sum modulo 2^128 of the records' hashes, each of two XXH64 with different seeds. The first one, in the high
 * half, covers all that a row chose. The second one leaves out partition and timestamp: a reader of the output computes it
 * too (`clonos.audit.multiset`), and cannot see whether a row or Kafka chose these.
 *
 * <p>A sum, unlike an exclusive or, counts duplicates. A field's length is hashed before its bytes, so that different
 * records hash different bytes.
 */
final class RecordDigest implements Serializable {
  private static final long serialVersionUID = 1;
  private static final long ROW_SEED = 42;
  private static final long CONTENT_SEED = 0x9E3779B97F4A7C15L;

  private long high;
  private long low;
  private long records;

  void add(ProducerRecord<byte[], byte[]> record) {
    addHash(rowHash(record), contentHash(record, CONTENT_SEED));
    records++;
  }

  void addAll(RecordDigest other) {
    addHash(other.high, other.low);
    records += other.records;
  }

  private void addHash(long moreHigh, long moreLow) {
    long sum = low + moreLow;
    high += moreHigh + (Long.compareUnsigned(sum, low) < 0 ? 1 : 0);
    low = sum;
  }

  long records() {
    return records;
  }

  byte[] value() {
    return ByteBuffer.allocate(2 * Long.BYTES).putLong(high).putLong(low).array();
  }

  /** The hash of all that a row chose; what it left to Kafka is -1. */
  private static long rowHash(ProducerRecord<byte[], byte[]> record) {
    long hash = contentHash(record, ROW_SEED);
    hash = XXH64.hashLong(record.partition() == null ? -1 : record.partition(), hash);
    return XXH64.hashLong(record.timestamp() == null ? -1 : record.timestamp(), hash);
  }

  private static long contentHash(ProducerRecord<byte[], byte[]> record, long seed) {
    long hash = hash(record.topic().getBytes(StandardCharsets.UTF_8), seed);
    hash = hash(record.key(), hash);
    hash = hash(record.value(), hash);
    for (Header header : record.headers()) {
      hash = hash(header.key().getBytes(StandardCharsets.UTF_8), hash);
      hash = hash(header.value(), hash);
    }
    return hash;
  }

  private static long hash(byte[] data, long seed) {
    if (data == null) {
      return XXH64.hashInt(-1, seed);
    }
    long hash = XXH64.hashInt(data.length, seed);
    return XXH64.hashUnsafeBytes(data, Platform.BYTE_ARRAY_OFFSET, data.length, hash);
  }
}
