"""What differs between two versions of a job: its specification, and the files of its code."""

from __future__ import annotations

import contextlib
import difflib
import tempfile
import zipfile
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml
from starlette.concurrency import run_in_threadpool

from clonos.resources.jobs import VersionDiff
from clonos_api.admission import artifact_bytes
from clonos_api.store import artifacts
from clonos_api.store.db.database import Database
from clonos_api.store.tables import JobVersionRow

_NAMED: Final = 50  # files
_LONGEST: Final = 500  # characters of a line
_CHUNK_BYTES: Final = 1 << 20


@dataclass
class _Budget:
    """What one answer may still show. A file that exceeds it is only named."""

    size_bytes: int = 300_000
    # Of both versions together: the time of a comparison grows faster than the square of the lines.
    lines: int = 4000


class _Files:
    """The files of an artifact at `path`. Only files that `read` returns are in memory.

    Attributes:
        sums: The size in bytes and the CRC-32 of each file, by name.
    """

    def __init__(self, path: Path, kind: str, main: str) -> None:
        self._path = path
        self._archive = None if kind == "py" else zipfile.ZipFile(path)
        if self._archive is None:
            self.sums = {main: (path.stat().st_size, _checksum(path))}
        else:
            entries = [entry for entry in self._archive.infolist() if not entry.is_dir()]
            self.sums = {entry.filename: (entry.file_size, entry.CRC) for entry in entries}

    def size(self, name: str) -> int:
        """Return the size of a file in bytes; 0 for one that does not exist."""
        return self.sums.get(name, (0, 0))[0]

    def read(self, name: str) -> bytes:
        """Return the content of a file; empty for one that does not exist."""
        if name not in self.sums:
            return b""
        return self._path.read_bytes() if self._archive is None else self._archive.read(name)

    def close(self) -> None:
        """Close the archive."""
        if self._archive is not None:
            self._archive.close()


async def compare(database: Database, before: JobVersionRow, after: JobVersionRow, *, code: bool) -> VersionDiff:
    """Compare two versions of a job; without `code`, of their artifacts only the hashes."""
    budget = _Budget()
    spec, lines = list[str](), list[str]()
    older, newer = (text_of(version).encode() for version in (before, after))
    if older != newer:
        spec = await run_in_threadpool(_unified, "job.yaml", older, newer, budget)
    if before.artifact != after.artifact:
        lines = [f"--- code {before.artifact[:12]}", f"+++ code {after.artifact[:12]}"]
        if code:
            main = after.spec.spec.main or "job.py"
            async with _opened(database, before.artifact, main) as old, _opened(database, after.artifact, main) as new:
                lines += await run_in_threadpool(_of_files, old, new, budget)
    return VersionDiff(before=before.version, after=after.version, spec=spec, code=lines)


def text_of(version: JobVersionRow) -> str:
    """Return the specification of a version as YAML, without the fields that have their defaults."""
    spec = version.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return str(yaml.safe_dump(spec, sort_keys=False))


async def listing(database: Database, sha: str, main: str) -> list[tuple[str, str]]:
    """Return the files of an artifact by name, `main` first, as texts for a page; a note for each file that is not
    shown.
    """
    async with _opened(database, sha, main) as files:
        return await run_in_threadpool(_listing, files, main, _Budget())


def _listing(files: _Files, main: str, budget: _Budget) -> list[tuple[str, str]]:
    names = sorted(files.sums, key=lambda name: (name != main, name))
    shown = []
    for name in names[:_NAMED]:
        if files.size(name) > budget.size_bytes:
            shown.append((name, "# large, and not shown here"))
            continue
        content = files.read(name)
        budget.size_bytes -= len(content)
        try:
            shown.append((name, content.decode()))
        except UnicodeDecodeError:
            shown.append((name, "# not a text file"))
    if len(names) > _NAMED:
        shown.append((f"{len(names) - _NAMED} more files", "# not shown here"))
    return shown


@contextlib.asynccontextmanager
async def _opened(database: Database, sha: str, main: str) -> AsyncIterator[_Files]:
    async with database.reading() as session:
        row = await artifacts.get(session, sha)
    with tempfile.TemporaryDirectory(prefix="clonos-diff-") as folder:
        path = Path(folder, "code")
        await artifact_bytes.copy(database, row, path)
        with contextlib.closing(await run_in_threadpool(_Files, path, row.kind, main)) as files:
            yield files


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


def _of_files(old: _Files, new: _Files, budget: _Budget) -> list[str]:
    lines: list[str] = []
    differing = [name for name in sorted({*old.sums, *new.sums}) if old.sums.get(name) != new.sums.get(name)]
    for name in differing[:_NAMED]:
        if old.size(name) + new.size(name) > budget.size_bytes:
            lines.append(_not_shown(name))
        else:
            lines += _unified(name, old.read(name), new.read(name), budget)
    if len(differing) > _NAMED:
        lines.append(f"# {len(differing) - _NAMED} more files differ")
    return lines


def _not_shown(name: str) -> str:
    return f"# {name}: differs, not shown"


def _unified(name: str, old: bytes, new: bytes, budget: _Budget) -> list[str]:
    """Return the unified diff of one file; if the file exceeds the budget or is not text, only its name."""
    if len(old) + len(new) > budget.size_bytes:
        return [_not_shown(name)]
    budget.size_bytes -= len(old) + len(new)
    try:
        before, after = old.decode().splitlines(), new.decode().splitlines()
    except UnicodeDecodeError:
        return [f"# {name}: differs, not a text file"]
    if len(before) + len(after) > budget.lines:
        return [_not_shown(name)]
    budget.lines -= len(before) + len(after)
    lines = list(difflib.unified_diff(before, after, f"a/{name}", f"b/{name}", lineterm=""))
    # Without a changed line: an empty file was added or removed, or only the ends of lines differ.
    return [line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…" for line in lines] or [_not_shown(name)]
