"""Stub of an agent: registers and waits. It imports little, because tests start many."""

import json
import signal
import sys
import threading
from pathlib import Path
from urllib.request import ProxyHandler, Request, build_opener

TOKEN = "clonos_abc_secret"  # of `FakeService`, which refuses another one

options = dict(zip(sys.argv[1:-1:2], sys.argv[2:-1:2], strict=True))
assert sys.argv[-1] == "--stop-drivers", sys.argv
assert Path(options["--token-file"]).read_text().strip() == "clonos_t1_new"
stopping = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stopping.set())
headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
body = json.dumps({"name": options["--name"], "instance": "i"}).encode()
build_opener(ProxyHandler({})).open(Request(f"{options['--api']}/api/v1/hosts", body, headers), timeout=60).close()
stopping.wait()
