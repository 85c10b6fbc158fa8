"""The commands of the first pages as a shell session: each command works and prints the documented output."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from clonos.testing.harness import eventually
from support.page_shell import ROOT, PageCommand, Shell, blocks, commands, file_of, is_shown, shell_of, steps

pytestmark = [pytest.mark.full, pytest.mark.embedded, pytest.mark.timeout(3000)]

START = ROOT / "docs/start"
_S = 120.0


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with shell_of(tmp_path) as user:
        (user.work / "examples").symlink_to(ROOT / "examples")
        yield user


def waiting(shell: Shell) -> Any:
    """A READY standby, if any. The request is cheap, because the standby warms up at a low priority."""
    credentials = json.loads((shell.home / ".clonos" / "credentials.json").read_text())
    response = httpx.get(
        f"{credentials['api']}/api/v1/standbys",
        headers={"Authorization": f"Bearer {credentials['token']}"},
        timeout=60,
    )
    return next((standby for standby in response.json()["data"] if standby["state"] == "READY"), None)


@pytest.mark.turn(11)
@pytest.mark.chaos(fault="SIGKILL", target="driver", topology="clonos up, commands of the first pages")
def test_the_readmes_commands_work_on_the_platform(shell: Shell) -> None:
    shell.write(file_of(START / "first-job.md", "job.py"))
    start, kill, besides, by_curl = (commands(block) for block in blocks(START / "platform.md", "sh"))

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
    start, kill = (commands(block) for block in blocks(START / "spark-cluster.md", "sh"))
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


@pytest.mark.turn(13)
@pytest.mark.chaos(fault="SIGKILL", target="driver", topology="clonos run, commands of the first pages")
def test_the_first_job_continues_after_a_kill(shell: Shell) -> None:
    """The first terminal runs the job; here it is the background."""
    begin, kill, again, verify = (commands(block) for block in blocks(START / "first-job.md", "sh"))
    shell.write(file_of(START / "first-job.md", "job.py"))
    for command in begin[:-1]:
        shell.type(command)
    assert begin[-1] == "clonos run job.py"
    shell.type(f"{begin[-1]} >>run.log 2>&1 &")
    eventually(lambda: len(shell.rows("shouted")) == 100, "the lines are published", timeout_s=2 * _S)
    for command in kill:
        # Other users of this machine may run a job with the same command line.
        shell.type(command.replace("pgrep", f"pgrep --session {shell.session}"))
    for command in again:
        shell.type(f"{command} >>run.log 2>&1 &")
    shell.type("echo last | clonos kafka produce lines")
    eventually(lambda: len(shell.rows("shouted")) == 101, "the job continues", timeout_s=2 * _S)
    (shown,) = (step.shown for step in steps(START / "first-job.md") if isinstance(step, PageCommand) and step.shown)
    (command,) = verify
    assert is_shown(shown.replace("100", "101"), shell.type(command))
    shell.type(f"kill $(pgrep --session {shell.session} -f 'clonos run job.py' | head -1) && wait")


@pytest.mark.turn(15)
@pytest.mark.chaos(fault="SIGKILL", target="driver", topology="clonos up, commands of README.md")
def test_the_job_of_the_readme_works(shell: Shell) -> None:
    shell.write(file_of(ROOT / "README.md", "job.py"))
    demo, job = (commands(block) for block in blocks(ROOT / "README.md", "sh"))
    assert demo == ["make demo"], "`make example` and the tests of the demo run it"
    *start, consume, verify, explain = job
    for command in start:
        shell.type(command)
    assert consume == "clonos kafka consume scored"
    eventually(lambda: len(shell.rows("scored")) == 1, "the payment is scored", timeout_s=2 * _S)
    assert "0 repeated, 0 missing" in shell.type(verify)
    shell.type("kill -9 -- -$(clonos job inspect fraud -o json | jq .run.pid)")
    eventually(lambda: shell.json("clonos recovery ls fraud -o json")["data"], "the recovery is known", timeout_s=_S)
    assert "was killed by SIGKILL" in shell.type(explain)
