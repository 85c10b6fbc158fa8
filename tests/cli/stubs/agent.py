"""Stands for an agent's process: registers and waits."""

import signal
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from cli.service import TOKEN
from clonos.client import Client
from clonos.resources.hosts import AgentRegister

options = dict(zip(sys.argv[1:-1:2], sys.argv[2:-1:2], strict=True))
assert sys.argv[-1] == "--stop-drivers", sys.argv
assert Path(options["--token-file"]).read_text().strip() == "clonos_t1_new"
ended = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: ended.set())
with Client(options["--api"], TOKEN) as client:
    client.agents.register(AgentRegister(name=options["--name"], instance="i"))
ended.wait()
