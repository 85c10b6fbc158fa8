package clonos;

import org.apache.kafka.clients.producer.ProducerRecord;

/** Refuses a record that the target of an epoch would refuse, before any record of its lane is sent. */
public interface RecordCheck {
  /** Throws a {@link CarriedError} if the target would refuse the record. */
  void check(ProducerRecord<byte[], byte[]> record);
}
