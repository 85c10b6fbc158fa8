"""The environment variables of drivers: only those that they need.

The agent's own environment may hold tokens and addresses of databases; variables not listed here are not passed on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from clonos.agent.directories import RunDirectory
from clonos.agent.process import ATTEMPT, RUN
from clonos.agent.settings import AgentSettings
from clonos.host_inputs import ZONE_AND_LOCALE
from clonos.jobs.packages import environment as packages_environment

_NAMES: Final = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "JAVA_HOME"),
        *("XDG_CACHE_HOME", "CLONOS_IVY_SETTINGS", "CLONOS_LOG_LEVEL"),
        *("HADOOP_CONF_DIR", "YARN_CONF_DIR", "KUBECONFIG"),  # paths, for clusters
        # How services are reached from here; the HTTP libraries of jobs read them.
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    }
)
_PREFIXES: Final = ("CLONOS_KAFKA__", "CLONOS_REGISTRY__", "CLONOS_TRACES__", "CLONOS_LINEAGE__")


def driver_environment(
    settings: AgentSettings,
    directory: RunDirectory,
    attempt: int,
    cluster: Mapping[str, str] | None = None,
    packages: Path | None = None,
) -> dict[str, str]:
    """Return the environment variables of a driver process: `cluster` are those for its Spark cluster, `packages` is
    the folder of the job's own packages.
    """
    common = _common(settings, directory.work, directory.scratch)
    own = {RUN: directory.run, ATTEMPT: str(attempt)}
    merged = {**common, **settings.driver_environment, **(cluster or {}), **own}
    return merged | packages_environment(packages, merged)


def pool_driver_environment(settings: AgentSettings, name: str, folder: Path, scratch: Path) -> dict[str, str]:
    """Return the environment variables of a pool driver process; its `name` takes the place of a run's id."""
    return {**_common(settings, folder, scratch), **settings.driver_environment, RUN: name}


def launch_environment(directory: RunDirectory, attempt: int) -> dict[str, str]:
    """Return the environment variables that change when a pool driver becomes the driver of a run."""
    return {RUN: directory.run, ATTEMPT: str(attempt)}


def _common(settings: AgentSettings, home: Path, scratch: Path) -> dict[str, str]:
    common = base_environment(settings)
    if settings.other_users:
        for name in ("USER", "LOGNAME", "XDG_CACHE_HOME"):
            common.pop(name, None)
        common["HOME"] = str(home)
    return {**common, "TMPDIR": str(scratch)}  # a killed driver cannot remove its temporary files


def base_environment(settings: AgentSettings) -> dict[str, str]:
    """Return the environment variables of every process that the agent starts."""
    return {
        **{name: value for name, value in os.environ.items() if name in _NAMES or name.upper().startswith(_PREFIXES)},
        **ZONE_AND_LOCALE,
        "CLONOS_HOME": str(settings.home.absolute()),
        "CLONOS_CACHE": str(settings.cache.absolute()),
        "CLONOS_LOG_FORMAT": "json",
        "PYTHONUNBUFFERED": "1",
    }
