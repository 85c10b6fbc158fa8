"""Whether a standby has ended its rehearsals, as the harness reads it from the events of its run."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from clonos.testing.harness import has_rehearsed


def test_a_standby_has_rehearsed_since_its_newest_start(tmp_path: Path) -> None:
    standby: Any = SimpleNamespace(id="r1", host="host-1")
    assert not has_rehearsed(tmp_path, standby)
    run = tmp_path / "agent" / "host-1" / "runs" / "r1"
    run.mkdir(parents=True)
    events = [
        ({"event": "standby", "state": "WARMING"}, False, False),
        ({"event": "standby", "state": "READY"}, False, False),
        ({"event": "rehearsed", "seconds": 30.0, "state": {"words": "offsets"}}, True, False),
        ({"event": "rehearsed", "seconds": 40.0, "state": {"words": "snapshot"}}, True, True),
        ({"event": "standby", "state": "WARMING"}, False, False),
    ]
    for event, rehearsed, with_state in events:
        with (run / "events.jsonl").open("a") as file:
            file.write(json.dumps(event) + "\n")
        assert has_rehearsed(tmp_path, standby) is rehearsed
        assert has_rehearsed(tmp_path, standby, with_state=True) is with_state
    with (run / "events.jsonl").open("a") as file:
        file.write('{"event": "rehearsed", "state": {')
    assert not has_rehearsed(tmp_path, standby)
