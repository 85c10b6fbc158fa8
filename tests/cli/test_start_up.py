"""What the command line loads before it knows what it is asked for."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

HEAVY = ("pyspark", "httpx", "fastapi", "confluent_kafka", "numpy", "pandas", "sqlalchemy", "psutil", "yaml")
SCRIPT = """
import sys
sys.argv = ["clonos", *{arguments}]
try:
    from clonos.cli import main
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
print([name for name in {heavy} if name in sys.modules], file=sys.stderr)
"""


@pytest.mark.parametrize("arguments", [["--help"], ["job", "--help"], ["up", "--help"], ["agent", "--help"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    script = SCRIPT.format(arguments=arguments, heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == "[]"
    assert "Usage" in done.stdout


def test_help_costs_little_more_than_its_library() -> None:
    """Of the processor's time, so that what else runs here counts little; each the best of three."""

    def spent_s(*command: str) -> float:
        before = os.times()
        subprocess.run([sys.executable, *command], capture_output=True, timeout=60, check=True)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    library, ours = [], []
    for _ in range(3):
        library.append(spent_s("-c", "import typer.rich_utils, rich.markdown"))
        ours.append(spent_s("-m", "clonos", "--help"))
    assert min(ours) < 2.5 * min(library)


def test_the_library_loads_no_spark_until_it_is_used() -> None:
    script = (
        "import sys, clonos, clonos.resources.hosts, clonos.client; assert 'pyspark' not in sys.modules;"
        "from clonos import job; import clonos.job as same; assert callable(clonos.job) and job is same;"
        "import pyspark.cloudpickle as cp, pickle; assert pickle.loads(cp.dumps(clonos)) is clonos;"
        "assert 'udf' in dir(clonos); assert all(getattr(clonos, name) for name in clonos.__all__)"
    )
    subprocess.run([sys.executable, "-c", script], timeout=60, check=True)


def test_completion_is_typers() -> None:
    environment = {**os.environ, "_CLONOS_COMPLETE": "complete_bash", "COMP_WORDS": "clonos job in", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv = ['clonos']; from clonos.cli import main; main()"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
    )
    assert done.stdout.split() == ["inspect"], done.stderr
