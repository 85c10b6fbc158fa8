"""A stand-in for `clonos run`: executes the job file, with the events and exit codes of a real driver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import yaml

_spec, _events = [Path(argument) for argument in sys.argv[1:] if argument != "run"][:2]
_out = _events.open("a", buffering=1)
_job = yaml.safe_load(_spec.read_text())


def _touch_events() -> None:
    while True:
        time.sleep(0.2)
        os.utime(_events)


threading.Thread(target=_touch_events, daemon=True).start()


def emit(event: str, **fields: Any) -> None:
    _out.write(json.dumps({"event": event, "job": _job["metadata"]["name"], **fields, "at": time.time()}) + "\n")


def running(generation: int = 1) -> None:
    emit("claimed", generation=generation, lineage=1)
    emit("state", state="RUNNING", generation=generation)


def end(state: str, code: int = 0) -> None:
    emit("state", state=state)
    emit("summary", state=state)
    sys.exit(code)


def fail(slug: str, code: int, what: str = "it is broken") -> None:
    emit("failed", error=slug, what=what, kept="all", hint="fix it")
    emit("summary", state="FAILED")
    sys.exit(code)


def until_stopped() -> None:
    signal.signal(signal.SIGTERM, lambda *_: end("STOPPED"))
    running()
    while True:
        signal.pause()


def grandchildren() -> list[int]:
    """Start three processes: in the session, in another group of it (as Spark's Python workers), in a new session."""
    line = "import time; time.sleep(600)"
    started = [
        subprocess.Popen([sys.executable, "-c", line]),
        subprocess.Popen([sys.executable, "-c", line], process_group=0),
        subprocess.Popen([sys.executable, "-c", line], start_new_session=True),
    ]
    for process in started:
        process.returncode = 0  # `Popen` must not wait for it
    return [process.pid for process in started]


_main = _spec.parent / _job["spec"]["main"]
print("attempt", os.environ["CLONOS_ATTEMPT"], flush=True)
exec(compile(_main.read_text(), str(_main), "exec"), globals())
