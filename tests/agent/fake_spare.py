"""Stands for `clonos spare`: warm at once; goes on as the fake driver once it is given a run."""

from __future__ import annotations

import os
import runpy
import select
import sys
import time
from pathlib import Path

from clonos.standby.offers import LOG, PIPE, Given

_folder = Path(sys.argv[1])
print("a spare, warm", flush=True)
os.mkfifo(_folder / PIPE)
_pipe = os.open(_folder / PIPE, os.O_RDWR)
select.select([_pipe], [], [])
_given = Given.model_validate_json(os.read(_pipe, select.PIPE_BUF))
if "--falls" in sys.argv:
    sys.exit(11)
if "--hangs" in sys.argv:
    time.sleep(600)
os.environ.update(_given.environment)
os.chdir(_given.directory)
with _given.log.open("ab") as _out:
    os.dup2(_out.fileno(), 1)
assert (_folder / LOG).exists()
sys.argv = list(_given.arguments)
runpy.run_path(str(Path(__file__).with_name("fake_driver.py")), run_name="__main__")
