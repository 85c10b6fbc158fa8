"""A checkpoint to rehearse on: the job's own as it is now, with an epoch in doubt that holds no rows.

What takes long at a takeover is what is done for the first time: reading a snapshot of the state, and the changes
since. So the rehearsal reads them too: the state's files are linked to (they are written once), offset log and commit
log are cut down to the newest commit. The epoch after it is planned as of the year 1970, in which no timer is due and
no window closes; and it is never committed.
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


State = Literal["nothing", "offsets", "changes", "snapshot"]


def held(own: Path) -> State:
    """What a query's checkpoint has: nothing committed, no state, changes of state alone, or a snapshot of it."""
    if not _commits(own):
        return "nothing"
    if not (own / "state").is_dir():
        return "offsets"
    try:
        return "snapshot" if next((own / "state").rglob(f"*{_SNAPSHOT}"), None) else "changes"
    except FileNotFoundError:
        return "changes"  # its driver clears up at the same time


def link_checkpoint(own: Path, scratch: Path) -> State:
    """Have `scratch` hold the checkpoint `own` with one more epoch, which begins one record early where it can.

    Args:
        own: A query's checkpoint.
        scratch: Does not exist.

    Returns:
        What it has; where that is nothing `scratch` does not exist.
    """
    commits = _commits(own)
    if not commits:
        return "nothing"
    try:
        scratch.mkdir()
        newest = commits[-1]
        (scratch / "commits").mkdir()
        shutil.copyfile(own / "commits" / str(newest), scratch / "commits" / str(newest))
        (scratch / "offsets").mkdir()
        committed = (own / "offsets" / str(newest)).read_text()
        (scratch / "offsets" / str(newest)).write_text(_earlier(committed, _before(own, newest)))
        (scratch / "offsets" / str(newest + 1)).write_text(_timeless(committed))
        # Two queries of a session may not have the same id, and this one may still run when the real one starts.
        (scratch / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
        shutil.copytree(own / "sources", scratch / "sources")
        if (own / "state").is_dir():
            shutil.copytree(own / "state", scratch / "state", copy_function=_link, ignore_dangling_symlinks=True)
    except (OSError, shutil.Error, ValueError):
        # The job's driver writes it, and clears up, at the same time.
        shutil.rmtree(scratch, ignore_errors=True)
        return "nothing"
    return held(scratch)


def _commits(own: Path) -> list[int]:
    return sorted(int(one.name) for one in _found(own / "commits") if one.name.isdigit())


def _found(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        return  # an old version, which is not needed any more
    except OSError:
        Path(target).symlink_to(source)  # another disk


def _before(own: Path, epoch: int) -> list[str]:
    """Where each source's epoch began."""
    if epoch == 0:
        return []
    return (own / "offsets" / str(epoch - 1)).read_text().splitlines()[2:]


def _timeless(entry: str) -> str:
    version, metadata, *ends = entry.splitlines()
    return "\n".join([version, json.dumps(json.loads(metadata) | _BEFORE_ALL_TIMERS), *ends])


def _earlier(entry: str, before: list[str]) -> str:
    """The epoch after it begins with the newest record of each partition of which the epoch had any."""
    version, metadata, *ends = entry.splitlines()
    began = [*before, *["-"] * len(ends)]
    return "\n".join([version, metadata, *(_one_before(end, begin) for end, begin in zip(ends, began, strict=False))])


def _one_before(end: str, begin: str) -> str:
    if "-" in (end, begin):
        return end
    offsets: dict[str, Any] = json.loads(end)
    earlier: dict[str, Any] = json.loads(begin)
    for topic, partitions in offsets.items():
        if isinstance(partitions, dict):
            known = earlier.get(topic, {})
            # Older records may be gone.
            offsets[topic] = {one: max(offset - 1, known.get(one, offset)) for one, offset in partitions.items()}
    return json.dumps(offsets, separators=(",", ":"))
