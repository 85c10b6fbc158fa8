"""Sinks that publish every epoch exactly once: Kafka topics (`kafka`) and JSON-lines files (`files`)."""
