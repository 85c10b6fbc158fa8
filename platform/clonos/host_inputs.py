"""What a host gives to the processes of a job: time zone, locale, open files.

A job may be replayed on another host. So the driver, its JVM and the Python workers have the same zone and locale on
all hosts. A job that needs others sets ``spark.executorEnv.TZ``, which is a part of its code's identity.
"""

from __future__ import annotations

import contextlib
import locale
import os
import resource
import time
from typing import Final

from clonos.errors import EnvironmentFault

ZONE_AND_LOCALE: Final = {"TZ": "UTC", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
EXECUTOR_ENVIRONMENT: Final = "spark.executorEnv."  # prefix of the Spark settings with the environment of executors
# A JVM reads these before the environment, and the options of ``JAVA_TOOL_OPTIONS`` before the environment too.
JVM_FLAGS: Final = ("-Duser.timezone=UTC", "-Duser.language=en", "-Duser.country=US")


# The JVM alone opens about 400 jars and files; sockets to brokers and workers follow.
_FEWEST_FILES: Final = 1024
_MOST_FILES: Final = 1 << 16


def raise_file_limit() -> int:
    """Raise the soft limit of open files of this process to the hard limit, at most to 65,536; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return _MOST_FILES if soft == resource.RLIM_INFINITY else soft


def require_files() -> None:
    """Raise the limit of open files; `EnvironmentFault` if it is too low for a driver's JVM."""
    limit = raise_file_limit()
    if limit < _FEWEST_FILES:
        raise EnvironmentFault(
            f"A process may open only {limit} files here; a driver needs {_FEWEST_FILES:,}.",
            kept="nothing was started.",
            hint="raise the hard limit: `ulimit -Hn` of the shell, LimitNOFILE= of a systemd unit, or `nofile` in "
            "limits.conf or of the container.",
        )


def fix_zone_and_locale() -> None:
    """Set the zone and the locale of this process, and of the processes that it starts."""
    for name in [name for name in os.environ if name == "LANGUAGE" or name.startswith("LC_")]:
        del os.environ[name]
    os.environ.update(ZONE_AND_LOCALE)
    time.tzset()
    with contextlib.suppress(locale.Error):  # a system without C.UTF-8 keeps the locale of the process
        locale.setlocale(locale.LC_ALL, ZONE_AND_LOCALE["LC_ALL"])
