"""Python programs that are forked instead of started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clonos.engine import forks

SERVER = """
import os, signal, sys
from clonos.engine import forks
import asked, imported_already
forks.MODULES = ("asked",)
forks.serve(sys.argv[1])
print(flush=True)
signal.pause()
"""
ASKED = """
import json, os, sys
import imported_already
if __name__ == "__main__":
    print(json.dumps([sys.argv[1:], os.environ["MINE"], os.getcwd(), imported_already.process != os.getpid()]))
    print("wrong", file=sys.stderr)
    sys.exit(int(sys.stdin.read()))
"""


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "imported_already.py").write_text("import os\nprocess = os.getpid()\n")
    (tmp_path / "asked.py").write_text(ASKED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(forks, "MODULES", ("asked",))
    program, address = forks.launcher(tmp_path)
    monkeypatch.setenv(forks.ADDRESS, address)
    return program


@pytest.fixture
def server(python: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", SERVER, os.environ[forks.ADDRESS]]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"\n"
        yield process
        process.kill()


def _ask(python: str, *arguments: str, status: int = 0) -> tuple[int, str, str]:
    environment = {**os.environ, "MINE": "ä" * 50_000}  # more than a socket takes at once
    done = subprocess.run([python, *arguments], input=str(status), env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="only there")
def test_a_module_is_forked_with_what_its_caller_gave_it(
    server: subprocess.Popen[bytes], python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, told, wrong = _ask(python, "-m", "asked", "one", "two", status=3)
    assert (status, wrong) == (3, "wrong\n")
    assert told.startswith('[["one", "two"], "\\u00e4')
    assert told.endswith(f'"{tmp_path}", true]\n'), "what was imported before is there"
    # And a second one, which shares nothing with the first but that.
    assert _ask(python, "-m", "asked")[0] == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only there")
def test_only_what_is_to_be_forked_is(server: subprocess.Popen[bytes], python: str, tmp_path: Path) -> None:
    # As another program of the same user could ask for it.
    program = Path(python)
    program.write_text(program.read_text().replace("('asked',)", "('asked', 'json.tool')"))
    assert _ask(python, "-m", "json.tool", "--help")[1].startswith("usage"), "by Python itself"


@pytest.mark.skipif(sys.platform != "linux", reason="only there")
def test_whoever_listens_in_its_place_gets_nothing(python: str, tmp_path: Path) -> None:
    program = Path(python)
    program.write_text(program.read_text().replace("os.getuid()", "os.getuid() + 1"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + os.environ[forks.ADDRESS])
        listener.listen()
        assert _ask(python, "-m", "asked", status=5)[0] == 5, "by itself"
        asked, _ = listener.accept()
        with asked:
            assert asked.recv(100) == b""


def test_nothing_is_called_where_nothing_may_be_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    assert forks.launcher(tmp_path, "/usr/bin/python3") == ("/usr/bin/python3", "")


def test_everything_else_is_done_by_python_itself(server: subprocess.Popen[bytes], python: str) -> None:
    assert _ask(python, "-c", "import sys; print(len(sys.argv), sys.prefix)", "x") == (0, f"2 {sys.prefix}\n", "")


def test_without_a_server_python_itself_does_it(python: str, tmp_path: Path) -> None:
    status, told, _ = _ask(python, "-m", "asked", "one", status=4)
    assert status == 4
    assert told.endswith("false]\n"), "imported by itself"


@pytest.mark.skipif(sys.platform != "linux", reason="only there")
def test_the_server_ends_with_whom_it_serves(server: subprocess.Popen[bytes], python: str) -> None:
    server.send_signal(signal.SIGKILL)
    assert server.stdout
    # The pipe has an end once nobody holds it any more.
    assert server.stdout.read() == b""


def test_a_path_that_no_first_line_can_hold_is_left_alone(tmp_path: Path) -> None:
    for python in ("/opt/a b/python", "/" + "x" * 200):
        assert forks.launcher(tmp_path, python) == (python, "")
