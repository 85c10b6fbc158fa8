"""Runs all checks of ``clonos doctor`` and collects their results."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from pydantic import BaseModel

from clonos.doctor import control_plane, kafka, machine
from clonos.doctor.check import Check, Status, fail
from clonos.settings import Settings

Checker = Callable[[], Iterable[Check]]


class Diagnosis(BaseModel):
    """The results of all checks."""

    status: Status  # the worst status of a check
    checks: list[Check]  # the results, in the order of the checks


def diagnose(
    settings: Settings, *, api: str | None = None, token: str | None = None, context: str | None = None
) -> Diagnosis:
    """Run all checks. They change nothing except for one temporary Kafka topic.

    The address, the token and the context of the control plane are those of the options, as for all commands.
    """
    checkers: dict[str, Checker] = {
        "Python": machine.python,
        "Java": machine.java,
        "jars": partial(machine.jars, settings),
        "start-up cache": partial(machine.start_up_cache, settings),
        "CLONOS_HOME": partial(machine.home, settings),
        "open files": machine.open_files,
        "disk": partial(machine.disk, settings),
        "Kafka": partial(kafka.check, settings),
        "control plane": partial(control_plane.check, settings, api, token, context),
        "port": partial(control_plane.port, settings),
    }
    checks = [check for name, checker in checkers.items() for check in _safely(name, checker)]
    statuses = {check.status for check in checks}
    status: Status = "fail" if "fail" in statuses else "warn" if "warn" in statuses else "ok"
    return Diagnosis(status=status, checks=checks)


def _safely(name: str, checker: Checker) -> list[Check]:
    """Return the results of one check; an exception becomes a failed check."""
    try:
        return list(checker())
    except Exception as error:
        return [
            fail(
                name,
                f"{type(error).__name__}: {error}",
                meaning="the check itself failed unexpectedly.",
                fix="report this line.",
            )
        ]
