"""The operating-system users of drivers and tasks.

They are the agent's own user, the user of ``--uid``, or one user for each owner of jobs (``--uids``): drivers of
different owners then read neither each other's specifications, nor secrets, nor checkpoints. Nomad's dynamic users are
alike, but change with each task; an owner's files outlive a run, so an owner keeps its user.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from clonos.agent.settings import AgentSettings
from clonos.errors import EnvironmentFault, SpecError


@dataclass(frozen=True)
class DriverUser:
    """User and group of a driver or task."""

    uid: int
    gid: int


def driver_user(settings: AgentSettings, owner_number: int) -> DriverUser | None:
    """Return the user of an owner's drivers and tasks; None: the agent's own.

    `owner_number` counts from 1; 0: the control plane sent none. `EnvironmentFault` if ``--uids`` has no user for it.
    """
    uids = settings.uid_range
    if uids is None:
        uid = settings.uid
    elif 0 < owner_number <= len(uids):
        uid = uids[owner_number - 1]
    else:
        raise EnvironmentFault(
            f"--uids {settings.uids} has no user for the owner with the number {owner_number or 'none'}.",
            kept="nothing was started.",
            hint="restart the agent with a larger range that begins with the same uid."
            if owner_number
            else "upgrade the control plane, and restart the job.",
        )
    return None if uid is None else DriverUser(uid, uid if settings.gid is None else settings.gid)


def share_folder(folder: Path) -> None:
    """Create a folder that other users may enter but not list, or make it one."""
    folder.mkdir(mode=0o711, parents=True, exist_ok=True)
    mode = folder.stat().st_mode & 0o7777
    if mode & 0o011 != 0o011:
        folder.chmod(mode | 0o011)


def close_folder(folder: Path) -> None:
    """Create a folder that only the agent may enter, or make it one; `SpecError` if its mode cannot be changed."""
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
    if folder.exists() and folder.stat().st_mode & 0o077:
        raise SpecError(
            f"Other users can read {folder}, which has secrets.",
            hint=f"run chmod 700 {folder}, or choose another directory of secrets.",
        )


def folder_of(location: str) -> Path | None:
    """Return the path of a location with the scheme ``file:`` or none; None if it is on HDFS or S3."""
    parts = urlsplit(location)
    return Path(parts.path) if parts.scheme in ("", "file") else None


def give_folder(shared: Path, name: str, user: DriverUser) -> None:
    """Create the folder `name` of `user` in `shared`, to which only the agent adds entries.

    Raises:
        EnvironmentFault: The folder exists and belongs to another user, or other users can add entries to `shared`.
    """
    share_folder(shared)
    state = shared.lstat()
    if state.st_uid != os.geteuid() or state.st_mode & 0o022:
        raise EnvironmentFault(
            f"Other users can add entries to {shared}.",
            kept="nothing was started.",
            hint=f"run chown {os.geteuid()} {shared} and chmod 711 {shared}.",
        )
    folder = shared / name
    if folder.parent != shared or name in ("", ".", ".."):
        raise SpecError(f"{name!r} is not the name of a folder.")
    if not os.path.lexists(folder):
        # Renamed when it has its owner: an agent that is killed in between leaves no folder of root under that name.
        draft = shared / f".{name}.new"
        draft.mkdir(mode=0o700, exist_ok=True)
        os.chown(draft, user.uid, user.gid, follow_symlinks=False)
        draft.rename(folder)
    owner = folder.lstat().st_uid
    if owner != user.uid:
        raise EnvironmentFault(
            f"{folder} belongs to the user {owner}, and its job runs as the user {user.uid}.",
            kept="nothing was started; the folder is unchanged.",
            hint=f"stop the job, and run chown --recursive {user.uid}:{user.gid} {folder}.",
        )
