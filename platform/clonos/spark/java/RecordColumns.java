package clonos;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;

/**
 * Converts the rows of one task to Kafka records. It accepts the columns of Spark's own Kafka sink, and {@code poison}: a
 * row whose poison is not null becomes the dead letter of an input record (`clonos.formats.poison`).
 */
final class RecordColumns {
  private static final String PREFIX = "clonos.error."; // headers of dead letters
  private static final int MICROS_PER_MILLI = 1000;
  private static final long NO_TIMESTAMP = -1; // of Kafka

  private final Column key;
  private final Column value;
  private final Column topic;
  private final Column partition;
  private final Column timestamp;
  private final Column headers;
  private final Column poison;
  private final String defaultTopic;
  private final byte[] job;
  private final byte[] epoch;
  private long deadLetters;

  /** @param defaultTopic topic of rows without one, or null */
  RecordColumns(StructType schema, String defaultTopic, String job, long epoch) {
    key = Column.of(schema, "key");
    value = Column.of(schema, "value");
    topic = Column.of(schema, "topic");
    partition = Column.of(schema, "partition");
    timestamp = Column.of(schema, "timestamp");
    headers = Column.of(schema, "headers");
    poison = Column.of(schema, "poison");
    this.defaultTopic = defaultTopic;
    this.job = bytes(job);
    this.epoch = bytes(Long.toString(epoch));
  }

  long deadLetters() {
    return deadLetters;
  }

  ProducerRecord<byte[], byte[]> record(InternalRow row) {
    if (poison.in(row)) {
      deadLetters++;
      return deadLetter(row.getStruct(poison.index, ((StructType) poison.type).size()), (StructType) poison.type);
    }
    String name = topic.in(row) ? row.getUTF8String(topic.index).toString() : defaultTopic;
    if (name == null) {
      throw new CarriedError(
          "SpecError", "A row names no topic.", "the record was not published.", "fill the column 'topic'.");
    }
    return new ProducerRecord<>(
        name, partition(row, name), timestamp(row, name), key.bytes(row), value.bytes(row), headers.headers(row));
  }

  private Integer partition(InternalRow row, String name) {
    Long number = partition.number(row);
    if (number != null && (number < 0 || number > Integer.MAX_VALUE)) {
      throw new CarriedError(
          "RecordRejected",
          "A record is for partition " + number + " of " + name + ".",
          "",
          "fix the column 'partition': partitions are numbered from 0.");
    }
    return number == null ? null : number.intValue();
  }

  private Long timestamp(InternalRow row, String name) {
    Long millis = timestamp.millis(row);
    if (millis != null && millis < 0) {
      throw new CarriedError(
          "RecordRejected",
          "A record for " + name + " has a timestamp before 1970, which Kafka does not accept.",
          "",
          "fix the column 'timestamp'.");
    }
    return millis;
  }

  /** The same record in each attempt: its headers name job and epoch, never an attempt or the current time. */
  private ProducerRecord<byte[], byte[]> deadLetter(InternalRow letter, StructType schema) {
    List<Header> headers = new ArrayList<>(Column.of(schema, "headers").headers(letter));
    for (String cause : new String[] {"topic", "partition", "offset"}) {
      headers.add(new RecordHeader(PREFIX + cause, Column.of(schema, cause).text(letter)));
    }
    headers.add(new RecordHeader(PREFIX + "class", Column.of(schema, "error").text(letter)));
    headers.add(new RecordHeader(PREFIX + "message", Column.of(schema, "message").text(letter)));
    headers.add(new RecordHeader(PREFIX + "job", job));
    headers.add(new RecordHeader(PREFIX + "epoch", epoch));
    return new ProducerRecord<>(
        new String(Column.of(schema, "dead_letters").text(letter), StandardCharsets.UTF_8),
        null,
        Column.of(schema, "timestamp").millis(letter),
        Column.of(schema, "key").bytes(letter),
        Column.of(schema, "value").bytes(letter),
        headers);
  }

  private static byte[] bytes(String text) {
    return text.getBytes(StandardCharsets.UTF_8);
  }

  /** A column of the rows; the index is -1 if they have no such column. */
  private record Column(int index, DataType type) {
    static Column of(StructType schema, String name) {
      scala.Option<Object> index = schema.getFieldIndex(name);
      return index.isEmpty() ? new Column(-1, null) : new Column((int) index.get(), schema.apply(name).dataType());
    }

    boolean in(InternalRow row) {
      return index >= 0 && !row.isNullAt(index);
    }

    byte[] bytes(InternalRow row) {
      return in(row) ? bytes(row, index, type) : null;
    }

    private static byte[] bytes(SpecializedGetters row, int index, DataType type) {
      return type.equals(DataTypes.BinaryType) ? row.getBinary(index) : row.getUTF8String(index).getBytes();
    }

    Long number(InternalRow row) {
      if (!in(row)) {
        return null;
      }
      return type.equals(DataTypes.LongType) ? row.getLong(index) : (long) row.getInt(index);
    }

    /** The time in milliseconds; null if there is none, which Kafka's source shows as -1 ms. */
    Long millis(InternalRow row) {
      long millis = in(row) ? Math.floorDiv(row.getLong(index), MICROS_PER_MILLI) : NO_TIMESTAMP;
      return millis == NO_TIMESTAMP ? null : Long.valueOf(millis);
    }

    /** The value as text, as Python's `str` shows it. */
    byte[] text(InternalRow row) {
      if (!in(row)) {
        return RecordColumns.bytes("None");
      }
      if (type.equals(DataTypes.IntegerType)) {
        return RecordColumns.bytes(Integer.toString(row.getInt(index)));
      }
      if (type.equals(DataTypes.LongType)) {
        return RecordColumns.bytes(Long.toString(row.getLong(index)));
      }
      return row.getUTF8String(index).getBytes();
    }

    List<Header> headers(InternalRow row) {
      if (!in(row)) {
        return List.of();
      }
      StructType pair = (StructType) ((ArrayType) type).elementType();
      ArrayData pairs = row.getArray(index);
      List<Header> headers = new ArrayList<>(pairs.numElements());
      Column name = of(pair, "key");
      Column content = of(pair, "value");
      for (int number = 0; number < pairs.numElements(); number++) {
        InternalRow header = pairs.isNullAt(number) ? null : pairs.getStruct(number, pair.size());
        if (header == null || !name.in(header)) {
          throw new CarriedError(
              "RecordRejected",
              "Header " + number + " of a record has no key, which Kafka requires.",
              "",
              "fix the column 'headers', for example with filter(headers, h -> h.key is not null).");
        }
        headers.add(new RecordHeader(name.utf8(header), content.bytes(header)));
      }
      return headers;
    }

    private String utf8(InternalRow row) {
      return row.getUTF8String(index).toString();
    }
  }
}
