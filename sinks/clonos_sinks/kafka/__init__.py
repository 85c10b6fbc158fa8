"""The transactional Kafka sink: one Kafka transaction (KIP-98) for each lane of an epoch.

- `sink`: the class that a job names; checks topics and limits at start, and runs the lanes as Spark tasks.
- `lane`: the commit protocol of one lane, in numbered steps.
- `rows`: Arrow batches as Kafka records. `dead_letters`: poison records as rows for their topic.
- `targets`: the limits of topics and brokers, checked before a record is sent.

Invariants: a lane's rows and its marker are in one transaction, so the marker in the causal log proves that the lane is
published. The transactional id names job, query and lane without the generation, so a new driver fences the old one.
"""

from clonos_sinks.kafka.sink import KafkaSink

__all__ = ["KafkaSink"]
