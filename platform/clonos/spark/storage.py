"""File systems of checkpoints that Spark's wheel does not have: Amazon S3 and what speaks its protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from clonos.embedded.jars import ensure_s3_jars
from clonos.settings import Settings

# Whether Spark writes and verifies checksums of the files of a query's state.
FILE_CHECKSUMS: Final = "spark.sql.streaming.checkpoint.fileChecksum.enabled"
_JARS: Final = "spark.jars"
_PACKAGES: Final = "spark.jars.packages"
_OWN: Final = "hadoop-aws"


def needs_s3(location: str) -> bool:
    """Whether a location is on Amazon S3, or on a store that speaks its protocol."""
    return urlsplit(location).scheme.lower() == "s3a"


def storage_jars(location: str, conf: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """Return the setting ``spark.jars`` of a session that uses `location`; empty if it needs no further jars.

    The jars are downloaded if the cache lacks them. If `conf` names ``hadoop-aws``, the user's version is used.

    Args:
        location: A path or URI.
        conf: The session's configuration.
        settings: The settings; they name the cache.

    Raises:
        JarsUnavailable: The jars cannot be downloaded.
    """
    jars = conf.get(_JARS, "")
    if not needs_s3(location) or _OWN in jars + conf.get(_PACKAGES, ""):
        return {}
    own = sorted(str(jar) for jar in ensure_s3_jars(settings).glob("*.jar"))
    return {_JARS: ",".join([*filter(None, [jars]), *own])}


def verifies_files(location: str) -> bool:
    """Whether Hadoop's file system of a location verifies the files that it reads: local files and HDFS.

    S3's connector does not by default (``fs.s3a.checksum.validation``). A path without a scheme counts as local.
    """
    return urlsplit(location).scheme.lower() in ("", "file", "hdfs")


def leave_checksums_to_hadoop(spark: SparkSession, checkpoint: str) -> None:
    """Turn Spark's checksums of state files off where Hadoop verifies the files, unless the user set `FILE_CHECKSUMS`.

    Args:
        spark: The session; queries that start later have the setting.
        checkpoint: Location of the checkpoint.
    """
    if verifies_files(checkpoint) and not spark.sparkContext.getConf().contains(FILE_CHECKSUMS):
        spark.conf.set(FILE_CHECKSUMS, "false")
