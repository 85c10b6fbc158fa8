"""The imports and start-up time of the command line."""

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
except SystemExit as error:
    assert not error.code, error.code
print([name for name in {heavy} if name in sys.modules], file=sys.stderr)
"""


@pytest.mark.parametrize("arguments", [["--help"], ["job", "--help"], ["up", "--help"], ["agent", "--help"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    script = SCRIPT.format(arguments=arguments, heavy=HEAVY)
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert process.returncode == 0, process.stderr
    assert process.stderr.strip() == "[]"
    assert "Usage" in process.stdout


def test_help_loads_few_packages_besides_typer() -> None:
    """Imports are nearly all of the time of `clonos --help`, and their number is the same on each machine."""

    def packages(statement: str) -> set[str]:
        script = (
            f"import sys\ntry:\n    {statement}\nexcept SystemExit:\n    pass\nprint(*sys.modules, file=sys.stderr)"
        )
        command = [sys.executable, "-c", script]
        process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return {name.partition(".")[0] for name in process.stderr.split()} - sys.stdlib_module_names

    library = packages("import typer.rich_utils, rich.markdown")
    command = packages("sys.argv = ['clonos', '--help']; from clonos.cli import main; main()")
    assert "clonos" in command
    assert command - library <= {"clonos", "clonos_demo"}


def test_the_library_loads_no_spark_until_it_is_used() -> None:
    script = (
        "import sys, clonos, clonos.resources.hosts, clonos.client; assert 'pyspark' not in sys.modules;"
        "import clonos.jobs.definition; assert callable(clonos.job) and clonos.job is clonos.jobs.definition.job;"
        "import pyspark.cloudpickle as cp, pickle; assert pickle.loads(cp.dumps(clonos)) is clonos;"
        "assert 'udf' in dir(clonos); assert all(getattr(clonos, name) for name in clonos.__all__)"
    )
    subprocess.run([sys.executable, "-c", script], timeout=60, check=True)


def test_completion_lists_matching_commands() -> None:
    environment = {**os.environ, "_CLONOS_COMPLETE": "complete_bash", "COMP_WORDS": "clonos job in", "COMP_CWORD": "2"}
    process = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv = ['clonos']; from clonos.cli import main; main()"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
    )
    assert process.stdout.split() == ["inspect"], process.stderr
