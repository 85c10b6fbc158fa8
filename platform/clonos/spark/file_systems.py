"""The file systems of checkpoints, for a process without a Spark session: a JVM if one is HDFS or S3."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from pyspark import SparkContext

from clonos.embedded.jars import ensure_jars
from clonos.jobs.locations import is_path
from clonos.settings import Settings
from clonos.spark.internals import set_login_user
from clonos.spark.java import LOCAL_FILE_SYSTEM
from clonos.spark.jvm import launch_gateway
from clonos.spark.local_folder import LocalFolder
from clonos.spark.session import has_account
from clonos.spark.storage import storage_jars
from clonos.spark.stored_files import Folder, StoredFolder

_HADOOP: Final = "spark.hadoop."
_HEAP_MB: Final = 512


@contextmanager
def file_systems(
    conf: Mapping[str, str], locations: Collection[str], settings: Settings | None = None
) -> Iterator[Callable[[str], Folder]]:
    """Open the file systems of some locations. If not all are mounted, a JVM runs until the end of the context.

    Args:
        conf: A Spark configuration; settings that begin with ``spark.hadoop.`` are Hadoop's.
        locations: Locations that are opened; S3 needs jars that are downloaded.
        settings: Default: from the environment.

    Yields:
        A function that opens a folder.

    Raises:
        JarsUnavailable: The jars cannot be downloaded.
        EnvironmentFault: The JVM does not start.
    """
    if all(map(is_path, locations)):
        yield LocalFolder
        return
    settings = settings or Settings()
    jars = ensure_jars(settings)
    chosen = {f"{_HADOOP}fs.file.impl": LOCAL_FILE_SYSTEM, **conf}
    for location in locations:
        chosen |= storage_jars(location, chosen, settings)
    gateway = launch_gateway(jars, heap_mb=_HEAP_MB, conf=chosen, log_format=settings.log_format)
    try:
        if not has_account(os.getuid()):
            set_login_user(f"uid-{os.getuid()}")
        SparkContext._ensure_initialized()
        jvm: Any = SparkContext._jvm
        configuration = jvm.org.apache.hadoop.conf.Configuration()
        for name, value in chosen.items():
            if name.startswith(_HADOOP):
                configuration.set(name.removeprefix(_HADOOP), value)
        yield lambda location: StoredFolder(jvm, configuration, location)
    finally:
        gateway.stop()
