"""The program of `docs/howto/python-client.md` runs as it is written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.scripted import CODE
from support.serving import served

PAGE = Path(__file__).parents[3] / "docs/howto/python-client.md"


def test_the_program_of_the_page_runs(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.py").write_bytes(CODE)
    (tmp_path / "job.yaml").write_text(
        f"apiVersion: clonos/v1\nkind: Job\nmetadata: {{name: {name}}}\nspec: {{main: job.py}}\n"
    )
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    with served(tmp_path / "home", reconcile=True) as api:
        for variable, value in (("CLONOS_API", api.url), ("CLONOS_TOKEN", api.admin), ("JOB_FOLDER", str(tmp_path))):
            monkeypatch.setenv(variable, value)
        exec(compile("\n".join(blocks), str(PAGE), "exec"), {})
    shown = capsys.readouterr().out
    assert f"{name} RUNNING" in shown
    assert "COMPLETED STOPPED" in shown
    assert "not-found" in shown
    assert "job.created" in shown
