"""The transactional Kafka sink: one Kafka transaction (KIP-98) for each lane of an epoch.

- `sink`: the class that a job names; checks topics and limits at start, and chooses the lanes of an epoch.
- `partitioned`: an epoch with a lane for each partition, which the partition's task publishes (in Java).
- `spooled`: an epoch with one lane, which the driver publishes; with a local master.
- `lane`: what both share: a lane, its marker, and the options of its producer.
- `columns`: the columns of frames that become records. `limits`: the size limits of the cluster.

Invariants: a lane's rows and its marker are in one transaction, so the marker in the causal log proves that the lane is
published. The transactional id names job, query and lane without the generation, so a new driver fences the old one.
"""

from clonos_sinks.kafka.sink import KafkaSink

__all__ = ["KafkaSink"]
