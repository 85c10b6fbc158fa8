"""A driver's environment, made from nothing but what it needs.

The agent's own environment may hold tokens and addresses of databases, so that what is not named here is left out.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from clonos.agent.place import RunPlace
from clonos.agent.process import ATTEMPT, RUN
from clonos.agent.settings import AgentSettings

_NAMES: Final = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "JAVA_HOME"),
        *("XDG_CACHE_HOME", "CLONOS_IVY_SETTINGS", "CLONOS_LOG_LEVEL"),
    }
)
_FAMILIES: Final = ("CLONOS_KAFKA__", "CLONOS_REGISTRY__", "CLONOS_TRACES__", "CLONOS_LINEAGE__")


def driver_environment(
    settings: AgentSettings, place: RunPlace, attempt: int, own: Mapping[str, str] | None = None
) -> dict[str, str]:
    """What one driver gets.

    Args:
        settings: The agent's.
        place: The run's folder.
        attempt: Number of the attempt within the run.
        own: The agent's environment; default that of this process.
    """
    common = _common(settings, place.work, place.scratch, own)
    return {**common, **settings.driver_environment, RUN: place.run, ATTEMPT: str(attempt)}


def spare_environment(settings: AgentSettings, name: str, folder: Path, scratch: Path) -> dict[str, str]:
    """What a spare gets.

    Args:
        settings: The agent's.
        name: What it and all that it starts has for a run.
        folder: Its own.
        scratch: For what it keeps only while it runs.
    """
    return {**_common(settings, folder, scratch, None), **settings.driver_environment, RUN: name}


def given_environment(place: RunPlace, attempt: int) -> dict[str, str]:
    """What changes about a spare's when it becomes a driver: no more than fits into a pipe in one piece."""
    return {RUN: place.run, ATTEMPT: str(attempt)}


def _common(settings: AgentSettings, home: Path, scratch: Path, own: Mapping[str, str] | None) -> dict[str, str]:
    kept = needed(settings, own)
    if settings.uid is not None:
        for name in ("USER", "LOGNAME", "XDG_CACHE_HOME"):
            kept.pop(name, None)
        kept["HOME"] = str(home)
    return {**kept, "TMPDIR": str(scratch)}  # what is killed cannot clear up


def needed(settings: AgentSettings, own: Mapping[str, str] | None = None) -> dict[str, str]:
    """What everything that the agent starts gets; arguments as above."""
    own = os.environ if own is None else own
    return {
        **{name: value for name, value in own.items() if name in _NAMES or name.upper().startswith(_FAMILIES)},
        "CLONOS_HOME": str(settings.home.absolute()),
        "CLONOS_CACHE": str(settings.cache.absolute()),
        "CLONOS_LOG_FORMAT": "json",
        "PYTHONUNBUFFERED": "1",
    }
