"""A standby on YARN holds some of its executors, and requests the others at its promotion."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from clonos.testing.harness import eventually
from support.yarn import Yarn

pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]

PROGRAM = Path(__file__).with_name("program_on_yarn.py")
_WAIT_S = 240.0


def test_executors_are_released_and_requested_again(tmp_path: Path) -> None:
    with Yarn(tmp_path / "yarn") as yarn:
        description = {"metadata": {"name": "hadoop"}, "spec": {"master": "yarn", "sparkConf": yarn.conf}}
        environment = {
            # Not the gateway of this process's session.
            **{key: value for key, value in os.environ.items() if not key.startswith(("PYSPARK_", "SPARK_"))},
            "HADOOP_CONF_DIR": str(yarn.configuration),
        }
        with subprocess.Popen(
            [sys.executable, str(PROGRAM), json.dumps(description)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        ) as program:
            assert program.stdout is not None
            assert program.stdin is not None
            try:
                for step, number in (("started", 2), ("held", 1), ("requested", 2)):
                    assert program.stdout.readline() == f"{step}\n"
                    eventually(partial(_has_executors, yarn, number), f"{number} executors run", timeout_s=_WAIT_S)
                    program.stdin.write("\n")
                    program.stdin.flush()
                assert program.wait(120) == 0
                eventually(partial(_has_executors, yarn, 0), "all executors have exited", timeout_s=_WAIT_S)
            finally:
                program.kill()


def _has_executors(yarn: Yarn, number: int) -> bool:
    return len(yarn.executors()) == number
