"""Completion of names, as the shells ask for it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clonos.cli.app import app
from clonos.client.contexts import Contexts
from clonos.client.credentials import Credentials
from component.cli.service import TOKEN, FakeService, host, savepoint
from support.busy import slowdown


def completed(line: str, shell: str = "bash", *, own_process: bool = False, **variables: str) -> list[str]:
    """What `clonos` offers behind the last word of a command line."""
    words = line.split(" ")
    asked = {
        "bash": {"_CLONOS_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)},
        "zsh": {"_CLONOS_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": line},
        "fish": {
            "_CLONOS_COMPLETE": "complete_fish",
            "_TYPER_COMPLETE_ARGS": line,
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        },
    }[shell]
    if not own_process:
        result = CliRunner().invoke(app, env={**asked, **variables}, prog_name="clonos")
        assert result.stderr == ""
        return result.stdout.split()
    process = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv = ['clonos']; from clonos.cli import main; main()"],
        capture_output=True,
        text=True,
        env={**os.environ, **asked, **variables},
        timeout=60,
    )
    assert process.stderr == ""
    return process.stdout.split()


@pytest.fixture
def api(service: FakeService, home: Path, monkeypatch: pytest.MonkeyPatch) -> FakeService:
    monkeypatch.setenv("CLONOS_API", service.url)
    monkeypatch.setenv("CLONOS_TOKEN", TOKEN)
    monkeypatch.setenv("CLONOS_COMPLETION_TIMEOUT", "30s")  # CI may be busier than a second allows
    service.add("wordcount")
    service.add("orders")
    service.hosts += [host("host-1"), host("host-2"), host("other")]
    service.savepoints += [savepoint("before"), savepoint("after")]
    return service


def test_names_of_jobs_hosts_and_savepoints(api: FakeService) -> None:
    assert completed("clonos job inspect wo") == ["wordcount"]
    assert completed("clonos host drain host") == ["host-1", "host-2"]
    assert completed("clonos job start wordcount --from b") == ["before"]
    assert completed("clonos savepoint rm --job wordcount a") == ["after"]
    assert len(api.requests("GET", "/jobs/wordcount/savepoints")) == 1, "the savepoints of this job"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_starts_a_process(api: FakeService, shell: str) -> None:
    offered = " ".join(completed("clonos logs or", shell, own_process=True))
    assert "orders" in offered
    assert "wordcount" not in offered


def test_names_of_contexts(home: Path) -> None:
    Contexts(stored={name: Credentials("https://x", "t") for name in ("prod", "pre")}).write()
    assert completed("clonos context use pr") == ["pre", "prod"]
    assert completed("clonos job ls --context l") == ["local"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"CLONOS_TOKEN": "clonos_abc_wrong"},
        {"CLONOS_CONTEXT": "none"},
        {"CLONOS_API": "x"},
        {"CLONOS_COMPLETION_TIMEOUT": "x"},
    ],
)
def test_an_error_offers_nothing(api: FakeService, wrong: dict[str, str]) -> None:
    assert (
        completed("clonos job inspect wo", **wrong, **({"CLONOS_API": ""} if "CLONOS_CONTEXT" in wrong else {})) == []
    )


def test_a_control_plane_that_does_not_answer_costs_a_second(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=1) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        started = time.monotonic()
        assert completed("clonos job inspect ", CLONOS_API=address, CLONOS_TOKEN=TOKEN) == []
        assert time.monotonic() - started < 20.0 * slowdown()
