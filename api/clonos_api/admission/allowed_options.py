"""The options of Kafka clients and of Spark that a submitted job may set; `docs/security.md` prints them.

These are lists of allowed options, so that an option of a later version is refused until it is reviewed. `REFUSED`
has the reasons for dangerous options, and takes precedence over the lists.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

KAFKA: Final = frozenset(
    {
        "acks",
        "batch.num.messages",
        "batch.size",
        "bootstrap.servers",
        "buffer.memory",
        "client.dns.lookup",
        "client.id",
        "client.rack",
        "compression.codec",
        "compression.level",
        "compression.type",
        "connections.max.idle.ms",
        "default.api.timeout.ms",
        "delivery.timeout.ms",
        "fetch.max.bytes",
        "fetch.max.wait.ms",
        "fetch.message.max.bytes",
        "fetch.min.bytes",
        "fetch.wait.max.ms",
        "heartbeat.interval.ms",
        "linger.ms",
        "max.in.flight.requests.per.connection",
        "max.partition.fetch.bytes",
        "max.poll.interval.ms",
        "max.poll.records",
        "max.request.size",
        "message.max.bytes",
        "metadata.max.age.ms",
        "queue.buffering.max.kbytes",
        "queue.buffering.max.messages",
        "queue.buffering.max.ms",
        "receive.buffer.bytes",
        "receive.message.max.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "request.timeout.ms",
        "retries",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.password",
        "sasl.username",
        "security.protocol",
        "send.buffer.bytes",
        "session.timeout.ms",
        "socket.connection.setup.timeout.ms",
        "socket.keepalive.enable",
        "socket.nagle.disable",
        "socket.receive.buffer.bytes",
        "socket.send.buffer.bytes",
        "socket.timeout.ms",
        "ssl.ca.pem",
        "ssl.certificate.pem",
        "ssl.key.password",
        "ssl.key.pem",
        "statistics.interval.ms",
        "transaction.timeout.ms",
    }
)

SPARK: Final = frozenset(
    {
        "spark.cores.max",
        "spark.default.parallelism",
        "spark.driver.cores",
        "spark.driver.maxResultSize",
        "spark.executor.cores",
        "spark.executor.instances",
        "spark.executor.memory",
        "spark.executor.memoryOverhead",
        "spark.hadoop.fs.s3a.access.key",
        "spark.hadoop.fs.s3a.connection.maximum",
        "spark.hadoop.fs.s3a.connection.ssl.enabled",
        "spark.hadoop.fs.s3a.endpoint",
        "spark.hadoop.fs.s3a.endpoint.region",
        "spark.hadoop.fs.s3a.path.style.access",
        "spark.hadoop.fs.s3a.secret.key",
        "spark.hadoop.fs.s3a.session.token",
        "spark.io.compression.codec",
        "spark.kryoserializer.buffer",
        "spark.kryoserializer.buffer.max",
        "spark.locality.wait",
        "spark.memory.fraction",
        "spark.memory.storageFraction",
        "spark.network.timeout",
        "spark.python.worker.memory",
        "spark.python.worker.reuse",
        "spark.rdd.compress",
        "spark.reducer.maxSizeInFlight",
        "spark.rpc.message.maxSize",
        "spark.scheduler.mode",
        "spark.shuffle.compress",
        "spark.shuffle.file.buffer",
        "spark.shuffle.spill.compress",
        "spark.sql.ansi.enabled",
        "spark.sql.autoBroadcastJoinThreshold",
        "spark.sql.broadcastTimeout",
        "spark.sql.caseSensitive",
        "spark.sql.codegen.wholeStage",
        "spark.sql.crossJoin.enabled",
        "spark.sql.execution.arrow.maxRecordsPerBatch",
        "spark.sql.execution.pythonUDF.arrow.enabled",
        "spark.sql.files.maxPartitionBytes",
        "spark.sql.inMemoryColumnarStorage.batchSize",
        "spark.sql.inMemoryColumnarStorage.compressed",
        "spark.sql.join.preferSortMergeJoin",
        "spark.sql.legacy.timeParserPolicy",
        "spark.sql.mapKeyDedupPolicy",
        "spark.sql.session.timeZone",
        "spark.sql.shuffle.partitions",
        "spark.sql.storeAssignmentPolicy",
        "spark.sql.streaming.maxBatchesToRetainInMemory",
        "spark.sql.streaming.metricsEnabled",
        "spark.sql.streaming.minBatchesToRetain",
        "spark.sql.streaming.multipleWatermarkPolicy",
        "spark.sql.streaming.noDataMicroBatches.enabled",
        "spark.sql.streaming.statefulOperator.allowMultiple",
        "spark.sql.streaming.stopTimeout",
        "spark.sql.timestampType",
        "spark.task.cpus",
    }
)

# All settings with these prefixes are numbers and switches of one component.
SPARK_PREFIXES: Final = ("spark.sql.parquet.", "spark.sql.streaming.stateStore.rocksdb.")

_CLASS: Final = "this loads a class"
PROMISE: Final = "exactly-once delivery rests on the platform's value"

REFUSED: Final[Sequence[tuple[re.Pattern[str], str]]] = tuple(
    (re.compile(pattern), why)
    for pattern, why in (
        (r"^plugin\.library\.paths$", "this loads a library of the host into the client"),
        (r"kinit\.cmd$|kerberos", "this runs a command of the host"),
        (r"jaas", "this loads a login module of any class"),
        (r"\.locations?$|\.paths?$|\.files?$|\.dirs?$", "this names files of the host"),
        (r"oauth|token\.endpoint|\.ur[li]s?$|jwks", "this sends credentials to an address"),
        (r"^ssl\.(engine|provider|keystore|truststore)|security\.providers", "this loads a class or names files"),
        (r"sasl\.(login|client)\.|callback|interceptor|partitioner|reporters$|serializer$", _CLASS),
        (r"\.class(es|name)?$|(provider|manager|codec)class$|plugins|listeners$", _CLASS),
        (r"^spark\.sql\.(extensions|catalog|querye|hive)", _CLASS),
        (r"(extra|default)javaoptions", "this changes the command line of a JVM"),
        (r"extraclasspath|extralibrarypath|userclasspathfirst", "this puts code in front of Spark's own"),
        (r"^spark\.(jars|submit|files|archives|repl)", "this loads code from elsewhere"),
        (r"^spark\.((driver|executor)env|yarn|kubernetes)", "this changes the environment of another process"),
        (r"^spark\.(master|deploy|app\.)", "this is the platform's to set (`spec.master`, the job's name)"),
        (r"^spark\.(pyspark|python\.(daemon|exec|use)|r\.)", "this runs another program"),
        (
            r"^spark\.(ui|history|eventlog|metrics|acls|admin|modify|view)\b",
            "this opens access that the platform closes",
        ),
        (
            r"^spark\.(redaction|authenticate|security|ssl|network\.crypto)\b",
            "this opens access that the platform closes",
        ),
        (r"^spark\.(speculation|task\.maxfailures|stage\.)|^spark\.sql\.(adaptive|union|execution\.sort)", PROMISE),
        (r"statestore\.(checkpointformat|rocksdb\.changelog)", PROMISE),
        (r"^(transactional\.id|enable\.idempotence|isolation\.level|enable\.auto|auto\.offset)", PROMISE),
        (r"^group\.(id|instance\.id|protocol)", PROMISE),
    )
)
