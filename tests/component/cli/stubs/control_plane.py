"""Stub of the control plane: `FakeService` on the port that `clonos up` chose."""

import json
import os
import signal
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from component.cli.service import TOKEN, FakeService

if sys.argv[1:] == ["broken"]:
    sys.exit("there is no database\n")

service = FakeService(int(os.environ["CLONOS_API__PORT"]))
service.start()
home = Path(os.environ["CLONOS_API__HOME"])
(home / "admin.token").write_text(TOKEN)
(home / "environment.json").write_text(json.dumps(dict(os.environ)))
draft = home / "ready"
draft.write_text(json.dumps({"url": service.url, "pid": os.getpid()}))
draft.replace(os.environ["CLONOS_API__READY_FILE"])
stopping = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stopping.set())
stopping.wait()
service.stop()
