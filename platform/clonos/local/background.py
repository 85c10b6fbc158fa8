"""Starts the local platform in the background and waits until it is ready."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final

from clonos.client.responses import error_of_slug
from clonos.deadline import Deadline
from clonos.embedded.processes import spawn, stop_all
from clonos.errors import LocalPlatformFailed
from clonos.local.plan import Plan
from clonos.local.state import State

_POLL_S: Final = 0.1
_FACTOR: Final = 11  # timeouts: Kafka, Spark (2), its check (5), the control plane, the agents, and a margin


def start(plan: Plan, report: Callable[[str], None]) -> State:
    """Start a supervisor; `report` gets each line that it writes until the platform is ready. Returns the platform.

    Raises:
        LocalPlatformFailed: The supervisor exited without reporting an error, or was not ready in time.
        ClonosError: The error that the supervisor reported.
    """
    folder = plan.folder
    folder.create()
    log = folder.log("supervisor")
    position = log.stat().st_size if log.exists() else 0
    before = State.read(folder)
    if before is not None and before.status == "failed":
        State.remove(folder)
    supervisor = spawn(
        [sys.executable, "-m", "clonos.local", plan.model_dump_json()], output=log, directory=folder.path
    )
    deadline = Deadline(_FACTOR * plan.timeout_s)
    try:
        while True:
            exited = supervisor.find() is None
            with log.open() as file:
                file.seek(position)
                while line := file.readline():
                    report(line.rstrip())
                position = file.tell()  # codespell:ignore tell
            state = State.read(folder)
            if state is not None and state.status == "ready" and state.supervisor.pid == supervisor.pid:
                return state
            if exited:
                raise _failure(state, plan)
            if deadline.passed():
                raise LocalPlatformFailed("The platform was not ready in time.", hint=f"read {log}.")
            time.sleep(_POLL_S)
    except BaseException:
        # Also after Ctrl-C: a partly started platform is useless.
        stop_all([supervisor], grace_s=60.0)
        raise


def _failure(state: State | None, plan: Plan) -> Exception:
    failure = state.failure if state is not None else None
    if failure is None:
        return LocalPlatformFailed("The supervisor exited during start.", hint=f"read {plan.folder.log('supervisor')}.")
    State.remove(plan.folder)
    return error_of_slug(failure["slug"], failure["what"], kept=failure["kept"], hint=failure["hint"])
