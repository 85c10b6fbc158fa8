"""Runs ``clonos lint`` on uploaded code, in a process with limits (`clonos_api.admission.analysis`), one at a time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from clonos.errors import ArchiveInvalid, SpecError, TooManyRequests
from clonos.resources.archives import check_name, unpack
from clonos.resources.service import FieldProblem, LintFinding
from clonos_api.admission.analysis import CPU_S, Analysis
from clonos_api.store.tables import ArtifactRow

Inspected = tuple[list[LintFinding], list[FieldProblem]]

_TIMEOUT_S: Final = 3.0 * CPU_S
_WAIT_S: Final = 30.0
_LARGEST_FILE: Final = 300_000  # bytes of Python; the largest example has 9,000
_CACHED: Final = 256


class Inspector:
    """Inspects uploaded code, one artifact at a time, and keeps the newest results."""

    def __init__(self) -> None:
        self._turn = asyncio.Semaphore(1)
        # A caller waits once for the common turn: others do not wait for all its requests.
        self._turns_of: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._results: OrderedDict[tuple[str, str], Inspected] = OrderedDict()

    async def findings(
        self, row: ArtifactRow, copy: Callable[[Path], Awaitable[None]], main: str, *, by: str
    ) -> Inspected:
        """Run the linter on code, without importing it.

        Args:
            row: The artifact.
            copy: Writes its bytes to a new file.
            main: The job file's path in the code; empty: the artifact's only job file.
            by: The caller. Each has one request in the queue.

        Returns:
            The findings, and the problems that prevent reading the code.

        Raises:
            TooManyRequests: Other code is being inspected, or the machine is too busy.
        """
        key = (row.id, main)
        if key not in self._results:
            own = self._turns_of.get(by)
            if own is None:
                own = self._turns_of[by] = asyncio.Semaphore(1)
            async with _turn(own), _turn(self._turn):
                self._results[key] = self._results.get(key) or await _inspect(row, copy, main)
        self._results.move_to_end(key)
        while len(self._results) > _CACHED:
            self._results.popitem(last=False)
        return self._results[key]


@contextlib.asynccontextmanager
async def _turn(turn: asyncio.Semaphore) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(_WAIT_S):
            await turn.acquire()
    except TimeoutError:
        raise TooManyRequests("Other code is being analysed.", hint="send the request again.") from None
    try:
        yield
    finally:
        turn.release()


async def _inspect(row: ArtifactRow, copy: Callable[[Path], Awaitable[None]], main: str) -> Inspected:
    with tempfile.TemporaryDirectory(prefix="clonos-lint-") as folder:
        root = Path(folder).resolve()
        uploaded = root / "uploaded"
        await copy(uploaded)
        try:
            root, file = await run_in_threadpool(_placed, row, uploaded, main, root / "code")
        except ArchiveInvalid as error:
            return [], [FieldProblem(field="artifact", what=error.what.replace(f"{root}/", ""), hint=error.hint)]
        except SpecError as error:
            return [], [FieldProblem(field="spec.spec.main", what=error.what, hint=error.hint)]
        if file.is_file() and file.stat().st_size > _LARGEST_FILE:
            what = f"The job file has {file.stat().st_size} bytes; at most {_LARGEST_FILE} are analysed."
            return [], [FieldProblem(field="artifact", what=what, hint="move data to files beside it.")]
        analysis = await _analysis(file)
    if analysis.what:
        return [], [FieldProblem(field="artifact", what=analysis.what.replace(f"{root}/", ""), hint=analysis.hint)]
    return [_shown(finding, root) for finding in analysis.findings], []


def _placed(row: ArtifactRow, uploaded: Path, main: str, root: Path) -> tuple[Path, Path]:
    """Move or unpack the uploaded file into the folder `root`; returns the folder, and the job file."""
    try:
        check_name((main or "job.py").removeprefix("./"))
    except ArchiveInvalid as error:
        raise SpecError(error.what, hint="a path inside of the uploaded code.") from error
    if row.kind == "py":
        # The name is checked above: it comes from the request.
        file = root / (main or row.main or "job.py")
        file.parent.mkdir(parents=True, exist_ok=True)
        uploaded.rename(file)
        return root, file
    unpack(uploaded, root)
    uploaded.unlink()
    name = main or row.main
    if not name:
        raise SpecError("The artifact contains several job files.", hint="name one of them.")
    return root, root / name


async def _analysis(file: Path) -> Analysis:
    process = await asyncio.create_subprocess_exec(
        # -P, and a folder of no user: otherwise Python would import, and so run, modules of the uploaded code.
        *(sys.executable, "-P", "-m", "clonos_api.admission.analysis", str(file)),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=DEVNULL,
        # Without the service's settings, which hold the database's password.
        env={name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LANG", "TMPDIR") if name in os.environ},
        cwd="/",
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            output, _ = await process.communicate()
        return Analysis.model_validate_json(output)
    except TimeoutError:  # it had no processor time: another attempt may have
        raise TooManyRequests("The analysis did not end in time.", hint="send the request again.") from None
    except ValidationError:  # its limits ended it
        return Analysis(what="The code is too large to be analysed.", hint="split it into smaller modules.")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _shown(finding: dict[str, object], root: Path) -> LintFinding:
    file = Path(str(finding["file"]))
    inside = file.relative_to(root) if file.is_relative_to(root) else Path(file.name)
    return LintFinding.model_validate({**finding, "file": str(inside)})
