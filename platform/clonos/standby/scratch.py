"""The scratch checkpoint for a rehearsal: a copy of the job's checkpoint, with one more epoch in doubt, whose
records the rehearsed query filters out.

A takeover is slow where the driver does a step for the first time, such as reading a snapshot of the state and the
changes since. So the rehearsal reads them as well. The files of the state are linked, because Spark writes each of
them once; offset log and commit log are cut down to the newest commit. The epoch after it has a timestamp in 1970, at
which no timer is due and no window closes. Only the last run of a batch commits it.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from pathlib import Path
from typing import Any, Final, Literal

_BEFORE_ALL_TIMERS: Final = {"batchWatermarkMs": 0, "batchTimestampMs": 1}
_SNAPSHOT: Final = ".zip"


CheckpointContent = Literal["nothing", "offsets", "changes", "snapshot"]


def checkpoint_content(checkpoint: Path) -> CheckpointContent:
    """Return what a query's checkpoint holds for a rehearsal: no commit (``nothing``), commits without state
    (``offsets``), also ``changes`` of state, or also a ``snapshot`` of the state.
    """
    if not _commits(checkpoint):
        return "nothing"
    if not (checkpoint / "state").is_dir():
        return "offsets"
    try:
        return "snapshot" if next((checkpoint / "state").rglob(f"*{_SNAPSHOT}"), None) else "changes"
    except FileNotFoundError:
        return "changes"  # its driver removes old files at the same time


def link_checkpoint(checkpoint: Path, scratch: Path) -> CheckpointContent:
    """Copy `checkpoint` to `scratch`, and add one epoch to rehearse.

    The epoch reads the newest record of each partition, if the newest committed epoch read it; else no record.

    Args:
        checkpoint: A query's checkpoint.
        scratch: A path that does not exist yet.

    Returns:
        The content of the copy. If it is ``nothing``, `scratch` was not created.
    """
    commits = _commits(checkpoint)
    if not commits:
        return "nothing"
    try:
        scratch.mkdir()
        newest = commits[-1]
        (scratch / "commits").mkdir()
        shutil.copyfile(checkpoint / "commits" / str(newest), scratch / "commits" / str(newest))
        (scratch / "offsets").mkdir()
        committed = (checkpoint / "offsets" / str(newest)).read_text()
        earlier = _end_one_record_earlier(committed, _start_offsets(checkpoint, newest))
        (scratch / "offsets" / str(newest)).write_text(earlier)
        (scratch / "offsets" / str(newest + 1)).write_text(_before_all_timers(committed))
        # Two queries of a session may not have the same id, and this one may still run when the real one starts.
        (scratch / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
        shutil.copytree(checkpoint / "sources", scratch / "sources")
        if (checkpoint / "state").is_dir():
            shutil.copytree(checkpoint / "state", scratch / "state", copy_function=_link, ignore_dangling_symlinks=True)
    except (OSError, shutil.Error, ValueError):
        # The job's driver writes to it, and removes old files, at the same time.
        shutil.rmtree(scratch, ignore_errors=True)
        return "nothing"
    return checkpoint_content(scratch)


def _commits(checkpoint: Path) -> list[int]:
    try:
        return sorted(int(file.name) for file in (checkpoint / "commits").iterdir() if file.name.isdigit())
    except FileNotFoundError:
        return []


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        return  # an old version that no epoch needs
    except OSError:
        Path(target).symlink_to(source)  # another disk


def _start_offsets(checkpoint: Path, epoch: int) -> list[str]:
    """Return the start offsets of `epoch`, for each source."""
    if epoch == 0:
        return []
    return (checkpoint / "offsets" / str(epoch - 1)).read_text().splitlines()[2:]


def _before_all_timers(entry: str) -> str:
    version, metadata, *ends = entry.splitlines()
    return "\n".join([version, json.dumps(json.loads(metadata) | _BEFORE_ALL_TIMERS), *ends])


def _end_one_record_earlier(entry: str, starts: list[str]) -> str:
    """`entry` with each end one record earlier, if the epoch has a record: the next epoch begins with that record."""
    version, metadata, *ends = entry.splitlines()
    padded = [*starts, *["-"] * len(ends)]
    earlier = [_one_record_earlier(end, start) for end, start in zip(ends, padded, strict=False)]
    return "\n".join([version, metadata, *earlier])


def _one_record_earlier(end: str, start: str) -> str:
    if "-" in (end, start):
        return end
    offsets: dict[str, Any] = json.loads(end)
    starts: dict[str, Any] = json.loads(start)
    for topic, partitions in offsets.items():
        if isinstance(partitions, dict):
            first = starts.get(topic, {})
            # Records before the epoch may have been deleted.
            offsets[topic] = {
                partition: max(offset - 1, first.get(partition, offset)) for partition, offset in partitions.items()
            }
    return json.dumps(offsets, separators=(",", ":"))
