"""All looks together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from pydantic import BaseModel

from clonos.doctor import kafka, machine, service
from clonos.doctor.check import Check, Status, fail
from clonos.settings import Settings

Look = Callable[[], Iterable[Check]]


class Examination(BaseModel):
    """What all looks found; its status is the worst of theirs."""

    status: Status
    checks: list[Check]


def examine(settings: Settings, *, api: str | None = None, token: str | None = None) -> Examination:
    """Look at everything. Nothing is changed but for a topic in Kafka, which is there for a moment.

    Args:
        settings: Those of this process.
        api: Address of the control plane; default that of the credentials file.
        token: Who we are there.
    """
    looks: dict[str, Look] = {
        "Python": machine.python,
        "Java": machine.java,
        "jars": partial(machine.jars, settings),
        "CLONOS_HOME": partial(machine.home, settings),
        "disk": partial(machine.disk, settings),
        "Kafka": partial(kafka.look, settings),
        "control plane": partial(service.look, settings, api, token),
        "port": partial(service.port, settings),
    }
    checks = [check for name, look in looks.items() for check in _safely(name, look)]
    found = {check.status for check in checks}
    status: Status = "fail" if "fail" in found else "warn" if "warn" in found else "ok"
    return Examination(status=status, checks=checks)


def _safely(name: str, look: Look) -> list[Check]:
    """One look that stumbles does not hide the others."""
    try:
        return list(look())
    except Exception as error:
        return [
            fail(
                name,
                f"{type(error).__name__}: {error}",
                meaning="it could not be looked at, and nobody knows why.",
                mend="report this line.",
            )
        ]
