"""Sinks that publish every epoch exactly once: Kafka topics (`kafka`), tables (`sql`), JSON-lines files (`files`)."""
