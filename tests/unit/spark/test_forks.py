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

from clonos.spark import forks

SERVER = """
import os, signal, sys
from clonos.spark import forks
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
def test_fork_has_the_arguments_and_environment_of_its_caller(
    server: subprocess.Popen[bytes], python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, output, wrong = _ask(python, "-m", "asked", "one", "two", status=3)
    assert (status, wrong) == (3, "wrong\n")
    assert output.startswith('[["one", "two"], "\\u00e4')
    assert output.endswith(f'"{tmp_path}", true]\n'), "what was imported before is there"
    # And a second one, which shares nothing with the first but that.
    assert _ask(python, "-m", "asked")[0] == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only there")
def test_server_refuses_other_modules(server: subprocess.Popen[bytes], python: str) -> None:
    # As another program of the same user could ask for it.
    program = Path(python)
    program.write_text(program.read_text().replace("('asked',)", "('asked', 'json.tool')"))
    assert _ask(python, "-m", "json.tool", "--help")[1].startswith("usage"), "by Python itself"


@pytest.mark.skipif(sys.platform != "linux", reason="only there")
def test_listener_of_another_user_receives_nothing(python: str) -> None:
    program = Path(python)
    program.write_text(program.read_text().replace("os.getuid()", "os.getuid() + 1"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + os.environ[forks.ADDRESS])
        listener.listen()
        assert _ask(python, "-m", "asked", status=5)[0] == 5, "by itself"
        asked, _ = listener.accept()
        with asked:
            assert asked.recv(100) == b""


def test_launcher_is_not_used_on_a_noexec_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    assert forks.launcher(tmp_path, "/usr/bin/python3") == ("/usr/bin/python3", "")


def test_other_modules_run_in_the_real_python(server: subprocess.Popen[bytes], python: str) -> None:
    assert _ask(python, "-c", "import sys; print(len(sys.argv), sys.prefix)", "x") == (0, f"2 {sys.prefix}\n", "")


def test_without_a_server_the_real_python_runs(python: str) -> None:
    status, output, _ = _ask(python, "-m", "asked", "one", status=4)
    assert status == 4
    assert output.endswith("false]\n"), "imported by itself"


@pytest.mark.skipif(sys.platform != "linux", reason="only there")
def test_server_exits_with_its_parent(server: subprocess.Popen[bytes], python: str) -> None:
    server.send_signal(signal.SIGKILL)
    assert server.stdout
    # The pipe has an end once nobody holds it any more.
    assert server.stdout.read() == b""


def test_launcher_is_not_used_for_long_interpreter_paths(tmp_path: Path) -> None:
    for python in ("/opt/a b/python", "/" + "x" * 200):
        assert forks.launcher(tmp_path, python) == (python, "")
