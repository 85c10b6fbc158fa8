"""Analyses take turns: others wait for one request of a subject, not for all of them. Each has limits."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clonos_api.admission import inspection
from clonos_api.admission.analysis import CPU_S, MEMORY_BYTES, Analysis
from clonos_api.store.tables import ArtifactRow


def artifact(name: str) -> ArtifactRow:
    return ArtifactRow(id=name, kind="py", name="job.py")


async def no_copy(path: Path) -> None:
    raise AssertionError(f"nothing is copied to {path}")


async def analysed(monkeypatch: pytest.MonkeyPatch, requests: list[tuple[str, str]]) -> list[str]:
    """The order in which the artifacts of the requests (subject, artifact) are analysed."""
    order: list[str] = []
    at_once = 0

    async def inspect(row: ArtifactRow, *_: Any) -> inspection.Inspected:
        nonlocal at_once
        at_once += 1
        assert at_once == 1, "one analysis at a time"
        order.append(row.id)
        await asyncio.sleep(0.01)
        at_once -= 1
        return [], []

    monkeypatch.setattr(inspection, "_inspect", inspect)
    inspector = inspection.Inspector()
    async with asyncio.TaskGroup() as group:
        for subject, name in requests:
            group.create_task(inspector.findings(artifact(name), no_copy, "", by=subject))
    return order


def test_a_subject_has_one_request_in_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [*(("mallory", f"m{number}") for number in range(5)), ("ada", "a1"), ("bob", "b1")]
    order = asyncio.run(analysed(monkeypatch, requests))
    assert order[:3] == ["m0", "a1", "b1"]
    assert order[3:] == ["m1", "m2", "m3", "m4"]


def test_equal_code_is_analysed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [("ada", "same"), ("ada", "same"), ("bob", "same")]
    assert asyncio.run(analysed(monkeypatch, requests)) == ["same"]


@pytest.mark.parametrize(
    "line",
    [
        "x = [" + "1," * 145_000 + "]\n",
        pytest.param("def f(a):\n    return [a, a + 1, f(a)] if a else None\n" * 5_500, marks=pytest.mark.turn),
    ],
    ids=["elements", "functions"],
)
def test_the_largest_code_is_analysed_beside_the_service_in_its_container(tmp_path: Path, line: str) -> None:
    file = tmp_path / "job.py"
    file.write_text(f"import clonos\n@clonos.job(name='x')\ndef x(ctx):\n    pass\n{line}")
    assert 250_000 < file.stat().st_size < inspection._LARGEST_FILE
    asked = [sys.executable, "-P", "-m", "clonos_api.admission.analysis", str(file)]
    with subprocess.Popen(asked, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        analysis = Analysis.model_validate_json(process.stdout.read())
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = status
    assert not analysis.what
    assert MEMORY_BYTES + (150 << 20) < 512 << 20, "the container has 512 MB, and the service takes 150 MB"
    assert used.ru_utime + used.ru_stime < CPU_S


def test_code_that_takes_more_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "big.py").write_text("x = [" + "1," * 1_000_000 + "]\n")
    file = tmp_path / "job.py"
    file.write_text("import clonos\nimport big\n@clonos.job(name='x')\ndef x(ctx):\n    pass\n")
    analysis = asyncio.run(inspection._analysis(file))
    assert analysis.what.endswith(" is too large to be analysed.")
