"""The commands of the first pages as a shell session: each command works and prints the documented output."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from clonos.testing.harness import eventually

pytestmark = [pytest.mark.full, pytest.mark.embedded, pytest.mark.timeout(3000)]

ROOT = Path(__file__).parents[2]
START = ROOT / "docs/start"
_S = 120.0
_UNTIL_INTERRUPTED = ("--watch", "job watch", "/events?")


def blocks(page: str, language: str) -> list[str]:
    """The blocks of a page in ``docs/start`` that are in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", (START / f"{page}.md").read_text(), re.DOTALL | re.MULTILINE)


def commands(block: str) -> list[str]:
    """The block's commands, without comments; lines joined by a backslash are one command."""
    lines = block.replace("\\\n", " ").splitlines()
    return [line for line in (re.sub(r"\s+#\s.*", "", line).strip() for line in lines) if line]


class Shell:
    """The shell of a user with an empty home; relative paths of the pages resolve in its working directory."""

    def __init__(self, home: Path) -> None:
        self.work = home / "work"
        self.work.mkdir()
        (self.work / "examples").symlink_to(ROOT / "examples")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("CLONOS_")}
        environment |= {
            "HOME": str(home),
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")),
            "PATH": f"{Path(sys.executable).parent}:{environment['PATH']}",
        }
        self._shell = subprocess.Popen(
            ["bash", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.work,
            env=environment,
            text=True,
            start_new_session=True,
        )

    def type(self, command: str) -> str:
        """The output of a command that must succeed. Commands that run until Ctrl-C get SIGTERM after 20 s."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        if any(part in command for part in _UNTIL_INTERRUPTED) and "job.recovery.ended" not in command:
            command = f"timeout --preserve-status 20 {command}"
        elif "/events?" in command:
            command = f"timeout 60 {command} | grep -m 1 job.recovery.ended"
        print(f"$ {command}", flush=True)
        self._shell.stdin.write(f"{command}\necho; echo '<<'$?\n")
        self._shell.stdin.flush()
        output = []
        for line in self._shell.stdout:
            if line.startswith("<<"):
                break
            output.append(line)
        text = "".join(output)
        print(text, flush=True)
        interrupted = command.startswith("timeout") and "curl" in command and "grep" not in command
        assert line.strip() in ("<<0", "<<143" if interrupted else "<<0"), f"{command}: {line}"
        return text

    def json(self, command: str) -> Any:
        return json.loads(self.type(command))

    def rows(self, topic: str) -> list[str]:
        return [line for line in self.type(f"clonos kafka consume {topic}").splitlines() if "\t" in line]

    def end(self) -> None:
        os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.communicate()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    user = Shell(tmp_path)
    try:
        yield user
        user.type("clonos down")
    finally:
        user.end()


def waiting(shell: Shell) -> Any:
    """A READY standby, if any. The request is cheap, because the standby warms up at a low priority."""
    credentials = json.loads((shell.work.parent / ".clonos" / "credentials.json").read_text())
    response = httpx.get(
        f"{credentials['api']}/api/v1/standbys", headers={"Authorization": f"Bearer {credentials['token']}"}
    )
    return next((standby for standby in response.json()["data"] if standby["state"] == "READY"), None)


@pytest.mark.turn(0)
@pytest.mark.chaos(fault="SIGKILL", target="driver", topology="clonos up, commands of the first pages")
def test_the_readmes_commands_work_on_the_platform(shell: Shell) -> None:
    (shell.work / "job.py").write_text(blocks("first-job", "python")[0])
    start, kill, besides, by_curl = (commands(block) for block in blocks("platform", "sh"))

    for command in start:
        shell.type(command)
    eventually(lambda: shell.rows("totals"), "something is published", timeout_s=_S)
    standby = eventually(lambda: waiting(shell), "a standby is READY", timeout_s=2 * _S)

    for command in kill[:1]:
        shell.type(command)
    inspected = "clonos job inspect wordcount -o json"

    def recovered() -> Any:
        details = shell.json(inspected)
        return details if (details["recovery"] or {}).get("downtime_ms") else None

    details = eventually(recovered, "the API reports the recovery", timeout_s=_S)
    assert (details["job"]["state"], details["job"]["generation"]) == ("RUNNING", 2)
    assert (details["generation"]["cause"], details["recovery"]["cause"]) == ("crash", "crash")
    home = details["recovery"]["from_host"]
    assert details["job"]["host"] == details["recovery"]["to_host"] == standby["host"] != home, (
        "the standby runs the job"
    )
    printed = "".join(shell.type(command) for command in kill[1:])
    assert re.search(r"generation\s+2 since .*cause: crash", printed)
    assert re.search(rf"crash, generation 1 → 2, downtime \d.* on {home} → {standby['host']}", printed)
    assert re.search(rf"{standby['id']} .* PROMOTED", printed)
    assert f"the standby on {standby['host']} took over" in printed

    for command in besides:
        shell.type(command)
    assert shell.json(inspected)["job"]["state"] == "RUNNING"
    shell.type("clonos job stop wordcount")

    at = next(number for number, command in enumerate(by_curl) if command.startswith("kill"))
    for command in by_curl[:at]:
        shell.type(command)
    eventually(lambda: shell.rows("shouted"), "the job shouts", timeout_s=_S)
    shell.type("kill -9 $(jobs -p)")  # stops the input
    shell.type(by_curl[at])
    shell.type("echo 'last\tline' | clonos kafka produce lines")
    printed = "".join(shell.type(command) for command in by_curl[at + 1 :])
    assert '"generation": 2' in printed
    assert '"cause": "crash"' in printed

    shouted = Counter(line.split("\t")[0] for line in shell.rows("shouted"))
    assert shouted == Counter(line.split("\t")[0] for line in shell.rows("lines"))


@pytest.mark.chaos(
    fault="SIGKILL",
    target="executor, worker, driver",
    topology="clonos up --spark-workers 2, commands of the first pages",
)
def test_the_readmes_commands_work_on_a_spark_cluster(shell: Shell) -> None:
    start, kill = (commands(block) for block in blocks("spark-cluster", "sh"))
    executor, worker, driver, *shown = kill

    def published() -> Counter[str]:
        """The orders in ``totals``, which has one record for each."""
        return Counter(json.loads(row.split("\t")[1])["order"] for row in shell.rows("totals"))

    def published_more(than: int) -> bool:
        return len(published()) > than

    assert "READY" in "".join(shell.type(command) for command in start)
    eventually(lambda: published_more(0), "something is published", timeout_s=2 * _S)
    for command in (executor, worker):
        before = len(published())
        shell.type(command)
        eventually(lambda n=before: published_more(n + 100), f"the job continues after {command}", timeout_s=2 * _S)
    standby = eventually(lambda: waiting(shell), "a standby is READY", timeout_s=4 * _S)
    before = len(published())
    shell.type(driver)
    eventually(lambda: published_more(before + 100), "the standby continues", timeout_s=2 * _S)
    assert shell.json("clonos job inspect orders -o json")["run"]["id"] == standby["id"]
    printed = "".join(shell.type(command) for command in shown)
    assert re.search(r"crash\s+\d+ → \d+", printed)
    assert max(published().values()) == 1
