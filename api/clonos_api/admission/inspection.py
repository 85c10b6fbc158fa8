"""Runs ``clonos lint`` on uploaded code."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path

from starlette.concurrency import run_in_threadpool

from clonos.errors import ArchiveInvalid, SpecError
from clonos.lint import Finding, lint
from clonos.resources.archives import check_name, unpack
from clonos.resources.service import FieldProblem, LintFinding
from clonos_api.store.tables import ArtifactRow


async def findings(row: ArtifactRow, content: bytes, main: str) -> tuple[list[LintFinding], list[FieldProblem]]:
    """Runs the linter on the code `content` of the artifact `row`, without importing it.

    `main` is the job file's path in the code; empty: the artifact's only job file. Returns the findings, and the
    problems that prevent reading the code.
    """
    return await run_in_threadpool(_findings, row, content, main)


def _findings(row: ArtifactRow, content: bytes, main: str) -> tuple[list[LintFinding], list[FieldProblem]]:
    try:
        check_name((main or "job.py").removeprefix("./"))
    except ArchiveInvalid as error:
        return [], [FieldProblem(field="spec.spec.main", what=error.what, hint="a path inside of the uploaded code.")]
    with tempfile.TemporaryDirectory(prefix="clonos-lint-") as folder:
        root = Path(folder).resolve()
        try:
            if row.kind == "py":
                # The name is checked above: it comes from the request.
                file = root / (main or row.main or "job.py")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
            else:
                packed = root / "artifact.zip"
                packed.write_bytes(content)
                unpack(packed, root / "code")
                packed.unlink()
                root = root / "code"
                name = main or row.main
                if not name:
                    return [], [
                        FieldProblem(
                            field="spec.spec.main",
                            what="The artifact contains several job files.",
                            hint="name one of them.",
                        )
                    ]
                file = root / name
            report = lint([file])
        except (SpecError, ArchiveInvalid) as error:
            return [], [FieldProblem(field="artifact", what=error.what.replace(f"{root}/", ""), hint=error.hint)]
        return [_shown(finding, root) for finding in report.findings], []


def _shown(finding: Finding, root: Path) -> LintFinding:
    file = Path(finding.file)
    inside = file.relative_to(root) if file.is_relative_to(root) else Path(file.name)
    return LintFinding.model_validate({**asdict(finding), "file": str(inside)})
