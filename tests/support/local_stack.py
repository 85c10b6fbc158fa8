"""The end of a local platform by SIGTERM, as a service manager ends it."""

from __future__ import annotations

import json
import os
import signal
import time

import httpx

from clonos.testing.harness import Stack, eventually


def end_by_sigterm(stack: Stack) -> float:
    """Send SIGTERM to the supervisor while a client follows events; the seconds until no process is left."""
    state = stack.state()
    token = json.loads((stack.home / "credentials.json").read_text())["token"]
    with (
        httpx.Client(
            base_url=state["api"],
            headers={"Authorization": f"Bearer {token}"},
            timeout=60,
            trust_env=False,
            verify=False,
        ) as client,
        client.stream("GET", "/api/v1/events") as events,
    ):
        lines = events.iter_lines()
        assert next(lines) == "event: heartbeat"
        started = time.monotonic()
        os.kill(state["supervisor"]["pid"], signal.SIGTERM)
        list(lines)  # until the stream ends
        stream_s = time.monotonic() - started
        eventually(lambda: not stack.processes(), "all processes exit", timeout_s=60)
        exit_s = time.monotonic() - started
    print(f"the stream ended after {stream_s:.2f} s, the last process after {exit_s:.2f} s")
    assert not (stack.home / "local" / "state.json").exists(), "the supervisor removes its state"
    return exit_s
