"""Inputs of a host that can change what a job computes: its time zone and its locale.

A job may be replayed on another host. So the driver, its JVM and the Python workers have the same zone and locale on
all hosts. A job that needs others sets ``spark.executorEnv.TZ``, which is a part of its code's identity.
"""

from __future__ import annotations

import contextlib
import locale
import os
import time
from typing import Final

ZONE_AND_LOCALE: Final = {"TZ": "UTC", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
EXECUTOR_ENVIRONMENT: Final = "spark.executorEnv."  # prefix of the Spark settings with the environment of executors
# A JVM reads these before the environment, and the options of ``JAVA_TOOL_OPTIONS`` before the environment too.
JVM_FLAGS: Final = ("-Duser.timezone=UTC", "-Duser.language=en", "-Duser.country=US")


def fix_zone_and_locale() -> None:
    """Set the zone and the locale of this process, and of the processes that it starts."""
    for name in [name for name in os.environ if name == "LANGUAGE" or name.startswith("LC_")]:
        del os.environ[name]
    os.environ.update(ZONE_AND_LOCALE)
    time.tzset()
    with contextlib.suppress(locale.Error):  # a system without C.UTF-8 keeps the locale of the process
        locale.setlocale(locale.LC_ALL, ZONE_AND_LOCALE["LC_ALL"])
