"""What differs between two versions of a job: its specification, and the files of its code."""

from __future__ import annotations

import difflib
import tempfile
import zipfile
from pathlib import Path
from typing import Final

import yaml
from starlette.concurrency import run_in_threadpool

from clonos.jobs.spec import JobSpec
from clonos.resources.jobs import VersionDiff
from clonos_api.admission import artifact_bytes
from clonos_api.store import artifacts
from clonos_api.store.db.database import Database
from clonos_api.store.tables import JobVersionRow

# The time of a comparison grows with the square of the lines; longer files are only named.
_LINES: Final = 2000
_FILE_BYTES: Final = 200_000
_COMPARED: Final = 50  # files
_LONGEST: Final = 500  # characters of a line
_SHOWN_BYTES: Final = 300_000  # of all files on a page


async def compare(database: Database, before: JobVersionRow, after: JobVersionRow, *, code: bool) -> VersionDiff:
    """Compare two versions of a job; without `code`, of their artifacts only the hashes."""
    lines: list[str] = []
    if before.artifact != after.artifact:
        lines = [f"--- code {before.artifact[:12]}", f"+++ code {after.artifact[:12]}"]
        if code:
            main = after.spec["spec"].get("main") or "job.py"
            old, new = [await files_of(database, version.artifact, main) for version in (before, after)]
            lines = await run_in_threadpool(_of_files, old, new)
    spec = await run_in_threadpool(_unified, "job.yaml", text_of(before).encode(), text_of(after).encode())
    return VersionDiff(before=before.version, after=after.version, spec=spec, code=lines)


def text_of(version: JobVersionRow) -> str:
    """The specification of a version as YAML, without the fields that have their defaults."""
    spec = JobSpec.model_validate(version.spec)
    return str(yaml.safe_dump(spec.model_dump(mode="json", by_alias=True, exclude_defaults=True), sort_keys=False))


def listing(files: dict[str, bytes | None], main: str) -> list[tuple[str, str]]:
    """The files of a job's code by name, `main` first, as texts for a page; a note instead of a file that is none."""
    names = sorted(files, key=lambda name: (name != main, name))
    shown, left = [], _SHOWN_BYTES
    for name in names[:_COMPARED]:
        content = files[name]
        if content is None or len(content) > left:
            shown.append((name, "# large, and not shown here"))
            continue
        try:
            shown.append((name, content.decode()))
            left -= len(content)
        except UnicodeDecodeError:
            shown.append((name, "# no text"))
    if len(names) > _COMPARED:
        shown.append((f"{len(names) - _COMPARED} more files", "# not shown here"))
    return shown


async def files_of(database: Database, sha: str, main: str) -> dict[str, bytes | None]:
    """The files of an artifact by name; None for the bytes of a large one."""
    async with database.reading() as session:
        row = await artifacts.get(session, sha)
    with tempfile.TemporaryDirectory(prefix="clonos-diff-") as folder:
        path = Path(folder, "code")
        await artifact_bytes.copy(database, row, path)
        return await run_in_threadpool(_read, path, row.kind, main)


def _read(path: Path, kind: str, main: str) -> dict[str, bytes | None]:
    if kind == "py":
        content = path.read_bytes()
        return {main: content if len(content) <= _FILE_BYTES else None}
    with zipfile.ZipFile(path) as archive:  # its sizes were checked at the upload
        return {
            entry.filename: archive.read(entry) if entry.file_size <= _FILE_BYTES else None
            for entry in archive.infolist()
            if not entry.is_dir()
        }


def _of_files(old: dict[str, bytes | None], new: dict[str, bytes | None]) -> list[str]:
    lines: list[str] = []
    differing = [name for name in sorted({*old, *new}) if name not in old or name not in new or old[name] != new[name]]
    for name in differing[:_COMPARED]:
        lines += _unified(name, old.get(name, b""), new.get(name, b""))
    if len(differing) > _COMPARED:
        lines.append(f"# {len(differing) - _COMPARED} more files differ")
    return lines


def _unified(name: str, old: bytes | None, new: bytes | None) -> list[str]:
    """The unified diff of one file; of one that is large or no text, its name."""
    if old is None or new is None:
        return [f"# {name}: a large file, which is not compared"]
    try:
        before, after = old.decode().splitlines(), new.decode().splitlines()
    except UnicodeDecodeError:
        return [f"# {name}: no text, and it differs"]
    if max(len(before), len(after)) > _LINES:
        return [f"# {name}: more than {_LINES} lines, and they differ"]
    lines = difflib.unified_diff(before, after, f"a/{name}", f"b/{name}", lineterm="")
    return [line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…" for line in lines]
