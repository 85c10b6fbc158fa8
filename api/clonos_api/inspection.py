"""What ``clonos lint`` says of uploaded code."""

from __future__ import annotations

import tempfile
from pathlib import Path

from starlette.concurrency import run_in_threadpool

from clonos.errors import ArchiveRefused, SpecError
from clonos.lint import Finding, lint
from clonos.resources.archives import check_name, unpack
from clonos.resources.service import FieldProblem, LintFinding
from clonos_api.store.tables import ArtifactRow


async def findings(row: ArtifactRow, content: bytes, main: str) -> tuple[list[LintFinding], list[FieldProblem]]:
    """Read an artifact's code, without importing it.

    Args:
        row: The artifact.
        content: Its bytes.
        main: The job file in it, as the specification names it; empty: the only one.

    Returns:
        What the linter found, and why the code cannot be read, if so.
    """
    return await run_in_threadpool(_findings, row, content, main)


def _findings(row: ArtifactRow, content: bytes, main: str) -> tuple[list[LintFinding], list[FieldProblem]]:
    try:
        check_name((main or "job.py").removeprefix("./"))
    except ArchiveRefused as error:
        return [], [FieldProblem(field="spec.spec.main", what=error.what, hint="a path inside of the uploaded code.")]
    with tempfile.TemporaryDirectory(prefix="clonos-lint-") as folder:
        place = Path(folder).resolve()
        try:
            if row.kind == "py":
                # Only now is it a place of ours: the name is whatever the request says.
                file = place / (main or row.main or "job.py")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
            else:
                packed = place / "artifact.zip"
                packed.write_bytes(content)
                unpack(packed, place / "code")
                packed.unlink()
                place = place / "code"
                name = main or row.main
                if not name:
                    return [], [
                        FieldProblem(
                            field="spec.spec.main", what="The artifact holds several job files.", hint="name one."
                        )
                    ]
                file = place / name
            report = lint([file])
        except (SpecError, ArchiveRefused) as error:
            return [], [FieldProblem(field="artifact", what=error.what.replace(f"{place}/", ""), hint=error.hint)]
        return [_shown(one, place) for one in report.findings], []


def _shown(one: Finding, place: Path) -> LintFinding:
    file = Path(one.file)
    inside = file.relative_to(place) if file.is_relative_to(place) else Path(file.name)
    return LintFinding(
        file=str(inside),
        line=one.line,
        column=one.column,
        code=one.code,
        severity=one.severity.value,
        call=one.call,
        runs=one.runs,
        why=one.why,
        instead=one.instead,
    )
