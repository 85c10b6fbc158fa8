"""The transactional Kafka sink.

`sink` is what a job names, `lane` the commit protocol, `rows` and `digest` what is published.
"""

from clonos_sinks.kafka.sink import KafkaSink

__all__ = ["KafkaSink"]
