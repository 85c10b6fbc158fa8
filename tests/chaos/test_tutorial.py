"""The tutorial, literally: its files and commands in an empty folder, with the outputs that the page shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from clonos.testing.harness import eventually
from support.page_shell import ROOT, PageFile, Shell, is_shown, shell_of, steps

pytestmark = [pytest.mark.turn(5), pytest.mark.embedded, pytest.mark.timeout(3000)]

TUTORIAL: Final = ROOT / "docs/tutorial.md"
CHANGES: Final = ROOT / "docs/howto/change-a-job.md"
_TIMEOUT_S: Final = 240.0


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with shell_of(tmp_path) as user:
        yield user


def type_until_shown(shell: Shell, command: str, shown: str) -> str:
    """Repeat a command until it prints what the page shows; the last output."""
    outputs: list[str] = []

    def printed() -> bool:
        outputs.append(shell.type(command))
        return is_shown(shown, outputs[-1])

    eventually(printed, f"{command} prints what the page shows: {shown}", timeout_s=_TIMEOUT_S, poll_s=1)
    return outputs[-1]


@pytest.mark.chaos(fault="SIGKILL", target="driver", topology="clonos up, commands of the tutorial")
def test_the_tutorial_ends_with_a_replay(shell: Shell) -> None:
    typed = []
    for step in steps(TUTORIAL):
        if isinstance(step, PageFile):
            shell.write(step)
            continue
        if step.line == "clonos verify shop":
            orders = eventually(lambda: published(shell, 93), "all orders are published", timeout_s=_TIMEOUT_S)
            assert sorted(orders) == sorted(f"order-{number}" for number in range(1, 94))
        if step.line == "clonos down":
            change_the_job(shell)
        printed = type_until_shown(shell, step.line, step.shown) if step.shown else shell.type(step.line)
        typed.append(step.line)
        if step.line.startswith("clonos recovery explain"):
            replayed = re.search(r"with (\d+) recorded determinants", printed)
            assert replayed is not None
            assert int(replayed[1]) >= 25, "a price for each order of the first task"
        elif step.line.startswith("cut"):
            assert 0 < int(printed) < 31, "the service was asked again for the orders of one task only"
        elif "uniq -d" in step.line:
            assert printed.strip() == ""
    assert typed[-2:] == ["clonos down", "kill %1"], "the page ends with the replay, and stops everything"


def published(shell: Shell, count: int) -> list[str] | None:
    """The orders that readers see, once there are `count` or more."""
    orders = [row.partition("\t")[0] for row in shell.rows("priced")]
    return orders if len(orders) >= count else None


def change_the_job(shell: Shell) -> None:
    """The page about changes: an upgrade, then a restart. `test_planned_moves.py` runs its other commands."""
    code = shell.work / "shop/job.py"
    changed = code.read_text().replace('F.struct("order", ', 'F.struct("order", F.lit(2).alias("version"), ')
    assert changed != code.read_text()
    code.write_text(changed)
    page = CHANGES.read_text()
    for command in ("clonos apply PATH", "clonos job restart JOB"):
        assert f"`{command}` |" in page
        line = command.replace("PATH", "shop").replace("JOB", "shop")
        # The upgrade waits for a standby of the new version, by default for three minutes.
        shell.type(f"{line} --timeout 1200" if "apply" in line else line)
    shell.type("printf 'last\\tlast\\n' | clonos kafka produce orders")
    eventually(
        lambda: any(row.startswith("last\t") and '"version":2' in row for row in shell.rows("priced")),
        "the changed job publishes",
        timeout_s=_TIMEOUT_S,
    )
