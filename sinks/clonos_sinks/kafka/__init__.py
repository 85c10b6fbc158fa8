"""The transactional Kafka sink: one Kafka transaction (KIP-98) for each lane of an epoch.

- `sink`: the class that a job names; checks topics and limits at start, and chooses who publishes.
- `partitioned`: a lane for each partition, which its task publishes. `spooled`: a lane that the driver publishes.
- `live`: the lanes of a live query. `steps`: their publisher.
- `lane`: what all have in common. `read_ahead`: what the driver asks Kafka between two epochs.
- `clients`: Kafka's Java clients. ``java`` has what runs in the JVM.
- `columns`: the columns of rows. `limits`: the size limits of the cluster.

Invariants: a lane's rows and its marker are in one transaction, so the marker in the causal log proves that the lane is
published. The transactional id names job, query and lane without the generation, so a new driver fences the old one.
"""

from clonos_sinks.kafka.sink import KafkaSink

__all__ = ["KafkaSink"]
