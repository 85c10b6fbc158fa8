"""The events of a failed driver follow its report after the takeover; events of other changes follow at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clonos.agent import agent as agent_module
from clonos.agent.agent import Agent


class Batcher:
    def __init__(self, *, changed_recently: bool) -> None:
        self.changed_recently = changed_recently
        self.sends = asyncio.Event()

    def run_changed(self) -> None:
        self.sends.set()


def agent(*, changed_recently: bool) -> Any:
    created: Any = Agent.__new__(Agent)
    created._batcher = Batcher(changed_recently=changed_recently)
    created._changed = asyncio.Event()
    created._failed = asyncio.Event()
    created._events_held_until = 0.0
    return created


def test_events_of_a_failure_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_module, "_TAKEOVER_S", 0.05)

    async def fail() -> None:
        failed = agent(changed_recently=False)
        failed._driver_failed()
        failed._run_changed()  # the rest of the driver's processes ended
        assert failed._changed.is_set(), "the report is sent"
        assert failed._failed.is_set(), "at once"
        assert not failed._batcher.sends.is_set()
        await asyncio.wait_for(failed._batcher.sends.wait(), 30)
        failed._batcher.sends.clear()
        failed._run_changed()
        assert failed._batcher.sends.is_set(), "the takeover is over"

    asyncio.run(fail())


@pytest.mark.parametrize("failure", [True, False])
def test_events_of_other_changes_and_of_repeated_failures_do_not_wait(failure: bool) -> None:
    async def change() -> None:
        changed = agent(changed_recently=failure)
        (changed._driver_failed if failure else changed._run_changed)()
        assert changed._batcher.sends.is_set()

    asyncio.run(change())
