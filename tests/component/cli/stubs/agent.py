"""Stub of an agent: registers and waits."""

import signal
import sys
import threading
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).parents[3]))

from component.cli.service import TOKEN

options = dict(zip(sys.argv[1:-1:2], sys.argv[2:-1:2], strict=True))
assert sys.argv[-1] == "--stop-drivers", sys.argv
assert Path(options["--token-file"]).read_text().strip() == "clonos_t1_new"
stopping = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stopping.set())
body = {"name": options["--name"], "instance": "i"}
address = f"{options['--api']}/api/v1/hosts"
httpx.post(
    address, json=body, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60, trust_env=False, verify=False
).raise_for_status()
stopping.wait()
