"""README's section about the platform, typed in as it stands: every line works, and what it says is what one sees."""

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

from observe import eventually

pytestmark = [pytest.mark.broad, pytest.mark.chaos, pytest.mark.embedded, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
_S = 120.0
_UNTIL_INTERRUPTED = ("--watch", "job watch", "/events?")


def blocks(title: str, language: str) -> list[str]:
    section = README.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```", section, re.DOTALL | re.MULTILINE)


def commands(block: str) -> list[str]:
    """Its lines without comments; one that goes on on the next line is one."""
    lines = block.replace("\\\n", " ").splitlines()
    return [line for line in (re.sub(r"\s+#\s.*", "", line).strip() for line in lines) if line]


class Shell:
    """One shell of a user whose home is empty; its working directory has what README names by relative paths."""

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
        """What it prints; it must succeed. What goes on until Ctrl-C gets a SIGTERM after five seconds."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        if any(part in command for part in _UNTIL_INTERRUPTED) and "job.recovery.ended" not in command:
            command = f"timeout --preserve-status 5 {command}"
        elif "/events?" in command:
            command = f"timeout 60 {command} | grep -m 1 job.recovery.ended"
        print(f"$ {command}", flush=True)
        self._shell.stdin.write(f"{command}\necho; echo '<<'$?\n")
        self._shell.stdin.flush()
        told = []
        for line in self._shell.stdout:
            if line.startswith("<<"):
                break
            told.append(line)
        text = "".join(told)
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
    made = Shell(tmp_path)
    try:
        yield made
        made.type("clonos down")
    finally:
        made.end()


def waiting(shell: Shell) -> Any:
    """The standby that could take over now, asked for cheaply: it is being warmed at a low priority."""
    known = json.loads((shell.work.parent / ".clonos" / "credentials.json").read_text())
    found = httpx.get(f"{known['api']}/api/v1/standbys", headers={"Authorization": f"Bearer {known['token']}"})
    return next((one for one in found.json()["data"] if one["state"] == "READY"), None)


def test_on_the_platform(shell: Shell) -> None:
    (shell.work / "job.py").write_text(blocks("A first job", "python")[0])
    start, kill, besides, by_curl = (commands(block) for block in blocks("On the platform", "sh"))

    for command in start:
        shell.type(command)
    eventually(lambda: shell.rows("totals"), "something is published", timeout_s=_S)
    standby = eventually(lambda: waiting(shell), "a standby is READY", timeout_s=2 * _S)

    for command in kill[:1]:
        shell.type(command)
    inspected = "clonos job inspect wordcount -o json"

    def recovered() -> Any:
        found = shell.json(inspected)
        return found if (found["recovery"] or {}).get("gap_ms") else None

    found = eventually(recovered, "the recovery is told", timeout_s=_S)
    assert (found["job"]["state"], found["job"]["generation"]) == ("RUNNING", 2)
    assert (found["generation"]["cause"], found["recovery"]["cause"]) == ("crash", "crash")
    home = found["recovery"]["from_agent"]
    assert found["job"]["agent"] == found["recovery"]["to_agent"] == standby["agent"] != home, "the standby drives"
    told = "".join(shell.type(command) for command in kill[1:])
    assert re.search(r"generation\s+2 since .*because of: crash", told)
    assert re.search(rf"crash, generation 1 → 2, gap \d.* on {home} → {standby['agent']}", told)
    assert re.search(rf"{standby['id']} .* PROMOTED", told)
    assert f"Generation 2, a standby on {standby['agent']}, took over" in told

    for command in besides:
        shell.type(command)
    assert shell.json(inspected)["job"]["state"] == "RUNNING"
    shell.type("clonos job stop wordcount")

    at = next(number for number, command in enumerate(by_curl) if command.startswith("kill"))
    for command in by_curl[:at]:
        shell.type(command)
    eventually(lambda: shell.rows("shouted"), "the job shouts", timeout_s=_S)
    shell.type("kill -9 $(jobs -p)")  # the input ends here
    shell.type(by_curl[at])
    shell.type("echo 'last\tline' | clonos kafka produce lines")
    told = "".join(shell.type(command) for command in by_curl[at + 1 :])
    assert '"generation": 2' in told
    assert '"cause": "crash"' in told

    shouted = Counter(line.split("\t")[0] for line in shell.rows("shouted"))
    assert shouted == Counter(line.split("\t")[0] for line in shell.rows("lines"))
