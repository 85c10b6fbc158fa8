"""``clonos run --cluster``: the cluster's description reaches the driver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from clonos.cli.app import app
from clonos.driver import process
from clonos.errors import SpecError
from clonos.jobs.cluster import read_cluster
from clonos.telemetry import logs

JOB = 'import clonos\n\n\n@clonos.job(name="shout")\ndef shout(ctx):\n    pass\n'


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The options of each run, which is not started."""
    runs: list[Any] = []
    monkeypatch.setattr(logs, "configure_logs", lambda *_: None)  # for the whole process, and so for later tests
    monkeypatch.setattr(process, "run_job", lambda _job, options, **_: runs.append(options))
    return runs


@pytest.mark.parametrize(
    "text", ['{"metadata": {"name": "c"}, "spec": {"master": "yarn"}}', "metadata: {name: c}\nspec: {master: yarn}\n"]
)
def test_the_file_is_json_or_yaml(started: list[Any], tmp_path: Path, text: str) -> None:
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "cluster").write_text(text)
    command = ["run", str(tmp_path / "job.py"), "-o", "json", "--plain"]
    CliRunner().invoke(app, [*command, "--cluster", str(tmp_path / "cluster")], catch_exceptions=False)
    CliRunner().invoke(app, command, catch_exceptions=False)
    assert [options.cluster for options in started] == [read_cluster(tmp_path / "cluster"), None]


def test_a_file_that_is_not_a_description_starts_nothing(started: list[Any], tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "cluster").write_text("metadata: {name: c}\nspec: {master: 'local[2]'}\n")
    with pytest.raises(SpecError, match=r"spec\.master"):
        CliRunner().invoke(
            app, ["run", str(tmp_path / "job.py"), "--cluster", str(tmp_path / "cluster")], catch_exceptions=False
        )
    assert started == []
