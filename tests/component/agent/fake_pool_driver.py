"""A stand-in for `clonos pool-driver`: ready at once; becomes the fake driver when it receives a run."""

from __future__ import annotations

import os
import runpy
import sys
import time
from pathlib import Path

from clonos.standby.launch_request import LOG, MAILBOX, LaunchRequest
from clonos.standby.mailbox import Mailbox

_folder = Path(sys.argv[1])
print("a warm pool driver", flush=True)
_mailbox = Mailbox(_folder / MAILBOX)
_request = LaunchRequest.model_validate_json(_mailbox.receive(600))
_mailbox.close()
if "--exits" in sys.argv:
    sys.exit(11)
if "--hangs" in sys.argv:
    time.sleep(600)
if "--imports" in sys.argv:
    for _ in range(int(sys.argv[sys.argv.index("--imports") + 1]) * 10):
        os.utime(_request.events)
        time.sleep(0.1)
os.environ.update(_request.environment)
os.chdir(_request.directory)
with _request.log.open("ab") as _out:
    os.dup2(_out.fileno(), 1)
assert (_folder / LOG).exists()
sys.argv = list(_request.arguments)
runpy.run_path(str(Path(__file__).with_name("fake_driver.py")), run_name="__main__")
