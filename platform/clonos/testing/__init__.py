"""Tools to test jobs, sources and sinks; see ``docs/testing-jobs.md`` and ``docs/sinks.md``."""

from clonos.testing.faults import abort, fault_environment
from clonos.testing.running import run_through
from clonos.testing.scopes import NotRecorded, Scope, fixed, replay
from clonos.testing.scripts import Script, Unscripted, after, script

__all__ = [
    "NotRecorded",
    "Scope",
    "Script",
    "Unscripted",
    "abort",
    "after",
    "fault_environment",
    "fixed",
    "replay",
    "run_through",
    "script",
]
