"""The platform that a driver belongs to: a control plane, or the programs of one ``CLONOS_HOME`` without one.

Each has a random id, which never changes: a control plane in its database, a home in a private file. A claim of the
causal log has it, so that another platform does not take over a job of the same name.
"""

from __future__ import annotations

import secrets
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NoReturn

import msgspec
import structlog

from clonos.errors import JobForeign
from clonos.private_folders import create_private, write_private

_FILE: Final = "platform-id"
_log = structlog.get_logger("clonos.driver")


class Platform(msgspec.Struct, frozen=True, omit_defaults=True):
    """The identity of a platform."""

    id: str  # random id
    name: str  # name for messages
    control_plane: bool = False  # whether it is a control plane, which starts the driver of each job

    @property
    def option(self) -> str:
        """The value of ``clonos run --platform``: an agent names its control plane with it."""
        return f"{self.id} {self.name}"

    @classmethod
    def parse(cls, option: str) -> Platform:
        """Return the control plane that `option` names."""
        identity, _, name = option.partition(" ")
        return cls(identity, name, control_plane=True)


def new_platform_id() -> str:
    """Return a random id of a platform: 32 hexadecimal digits."""
    return secrets.token_hex(16)


def platform_of_home(home: Path) -> Platform | None:
    """Return the platform of drivers without a control plane; its id is created once for each ``CLONOS_HOME``.

    Returns:
        The platform; None if the home cannot be written, so that claims have no identity.
    """
    home = home.absolute()
    file = home / _FILE
    try:
        if not file.exists():
            _create_once(file)
        identity = file.read_text().strip()
    except OSError as error:
        _log.warning("platform-without-identity", home=str(home), why=error.strerror)
        return None
    return Platform(identity, f"`clonos run` on {socket.gethostname()} with the home {home}")


def _create_once(file: Path) -> None:
    create_private(file.parent)
    draft = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    write_private(draft, new_platform_id())
    try:
        file.hardlink_to(draft)  # complete at once, and never replaced
    except FileExistsError:
        pass  # another process was faster
    except OSError:
        draft.replace(file)  # a file system without hard links
    finally:
        draft.unlink(missing_ok=True)


def refuse(job: str, own: Platform, owner: Platform, claimed_ms: int) -> NoReturn:
    """Refuse a job whose log another platform has claimed.

    Args:
        job: Name of the job.
        own: The platform that wants the job.
        owner: The platform that has it.
        claimed_ms: Time of the newest claim, in ms since 1970.

    Raises:
        JobForeign: Always.
    """
    raise JobForeign(
        f"The job {job} belongs to {owner.name}, which claimed its log at {_time(claimed_ms)}; this is {own.name}.",
        hint=f"choose another name for this job. To take over the job, stop it there, then: {adopting(job, own)}.",
    )


def taken_over(job: str, own: Platform, owner: Platform, claimed_ms: int) -> JobForeign:
    """Return the error of a driver that a driver of another platform has fenced; arguments as of `refuse`."""
    return JobForeign(
        f"{owner.name} took over the job {job} at {_time(claimed_ms)}; this driver belongs to {own.name}.",
        kept="what this driver published; the other driver continues after it.",
        hint=f"leave the job there. To take it back, stop it there, then: {adopting(job, own)}.",
    )


def adopting(job: str, own: Platform) -> str:
    """Return the command that makes the platform `own` take over a job."""
    if own.control_plane:
        return f"`clonos job start {job} --adopt`"
    return "`clonos run … --adopt`, or `adopt=True` for `clonos.exactly_once`"


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
