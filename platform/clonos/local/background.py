"""A stack in the background: started so that it outlives the command, and waited for until it answers."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final

from clonos.client.problems import typed
from clonos.embedded.processes import end, spawn
from clonos.errors import LocalStackFailed
from clonos.local.plan import Plan
from clonos.local.state import State

_LOOK_S: Final = 0.1
_FACTOR: Final = 4  # each part may take its time: Kafka, the control plane, the agents, and a margin


def start(plan: Plan, say: Callable[[str], None]) -> State:
    """Start it and return once everything answers.

    Args:
        plan: What to start.
        say: Told what the supervisor tells.

    Raises:
        LocalStackFailed: It ended, or took too long.
        ClonosError: What it said why it ended.
    """
    folder = plan.folder
    folder.make()
    log = folder.log("supervisor")
    told = log.stat().st_size if log.exists() else 0
    before = State.read(folder)
    if before is not None and before.status == "failed":
        State.remove(folder)
    supervisor = spawn(
        [sys.executable, "-m", "clonos.local", plan.model_dump_json()], output=log, directory=folder.path
    )
    deadline = time.monotonic() + _FACTOR * plan.timeout_s
    try:
        while True:
            gone = supervisor.find() is None
            with log.open() as file:
                file.seek(told)
                while line := file.readline():
                    say(line.rstrip())
                told = file.tell()
            state = State.read(folder)
            if state is not None and state.status == "ready" and state.supervisor.pid == supervisor.pid:
                return state
            if gone:
                raise _why(state, plan)
            if time.monotonic() > deadline:
                raise LocalStackFailed("It did not answer in time.", hint=f"see {log}.")
            time.sleep(_LOOK_S)
    except BaseException:
        # Also Ctrl-C: what is half started is of no use.
        end([supervisor], grace_s=60.0)
        raise


def _why(state: State | None, plan: Plan) -> Exception:
    failure = state.failure if state is not None else None
    if failure is None:
        return LocalStackFailed("It ended while it started.", hint=f"see {plan.folder.log('supervisor')}.")
    State.remove(plan.folder)
    return typed(failure["slug"], failure["what"], kept=failure["kept"], hint=failure["hint"])
