"""The copy of a remote checkpoint that rehearsals read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clonos.standby.mirror import Mirror
from support.disk_folder import DiskFolder


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def test_a_refresh_copies_what_is_new_and_removes_what_is_gone(tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    folder: Any = DiskFolder(remote)
    mirror = Mirror(folder, tmp_path / "copy")
    mirror.refresh()
    assert not list((tmp_path / "copy").rglob("*")), "no epoch is committed"

    write(remote, "commits/0", "offsets/0", "offsets/1", "sources/0/0", "state/0/0/1_a.changelog", "state/0/.tmp")
    mirror.refresh()
    names = DiskFolder(mirror.path).files().keys()
    assert names == {"commits/0", "offsets/0", "sources/0/0", "state/0/0/1_a.changelog"}

    folder.copied.clear()
    write(remote, "commits/1", "state/0/0/2_b.changelog")
    (remote / "state/0/0/1_a.changelog").unlink()
    mirror.refresh()
    assert set(folder.copied) == {"commits/1", "offsets/1", "state/0/0/2_b.changelog"}
    names = DiskFolder(mirror.path).files().keys()
    assert names == {"commits/1", "offsets/0", "offsets/1", "sources/0/0", "state/0/0/2_b.changelog"}


def test_a_checkpoint_that_is_too_large_is_not_copied(tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    write(remote, "commits/0", "offsets/0", "state/0/0/1_a.changelog")
    folder: Any = DiskFolder(remote)
    mirror = Mirror(folder, tmp_path / "copy", max_bytes=10)
    mirror.refresh()
    assert not [path for path in (tmp_path / "copy").rglob("*") if path.is_file()]
