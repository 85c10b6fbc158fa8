"""Log lines: for people and as JSON, with their context; and the precedence of Log4j configurations."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from clonos.cli import main
from clonos.spark import jvm

_PROGRAM = """
import logging, threading
import structlog
from clonos.telemetry import logs
from clonos.causal.epoch_scope import EpochScope
from clonos.causal.scope import TaskScope, task_scope
from clonos.causal.logged import task_fields
from clonos.log.records import EpochIdentity, Owner

logs.configure_logs({log_format!r}, {level!r}, fields=task_fields)
logs.bind_fields(job="wordcount")
logs.bind_fields(generation=3)
log = structlog.get_logger()
identity = EpochIdentity("other", "t", "words", 12, Owner(1, 7, "d"), False)
scope = EpochScope(identity, 0, 0, "0", (1,), {{}}, {{}}, {{}})

def lines():
    log.debug("hidden at info")
    log.info("from structlog", records=5)
    logging.getLogger("job").warning("from %s", "logging", extra={{"lane": 2}})
    logging.getLogger("py4j").info("chatter")
    with structlog.contextvars.bound_contextvars(query="totals", epoch=4):
        log.warning("bound")
    with task_scope(TaskScope(scope, "judge", 1)):
        logging.getLogger("udf").info("in a task")
    try:
        raise ValueError("oops")
    except ValueError:
        log.exception("raised")

thread = threading.Thread(target=lines)
thread.start()
thread.join()
"""


def written(log_format: str, level: str = "info", *, before: str = "", **environment: str) -> str:
    """What a process writes to stderr."""
    program = before + _PROGRAM.format(log_format=log_format, level=level)
    ran = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    assert ran.stdout == "", "standard output belongs to the program"
    return ran.stderr


def test_json_lines_say_what_they_are_about() -> None:
    lines = [json.loads(line) for line in written("json").splitlines()]
    assert [line["event"] for line in lines] == ["from structlog", "from logging", "bound", "in a task", "raised"]
    assert all(line["timestamp"].endswith("Z") for line in lines)
    structlog_, logging_, bound, task, raised = lines
    about = {"job": "wordcount", "generation": 3}
    assert structlog_.items() >= {**about, "level": "info", "records": 5}.items()
    assert logging_.items() >= {**about, "level": "warning", "logger": "job", "lane": 2}.items()
    assert bound.items() >= {**about, "query": "totals", "epoch": 4}.items()
    assert task.items() >= {"job": "other", "generation": 7, "query": "words", "epoch": 12}.items()
    assert raised["exception"].endswith("ValueError: oops")


def test_lines_for_people() -> None:
    text = written("console", "warning", NO_COLOR="1")
    assert "\x1b" not in text
    assert "from structlog" not in text
    assert "[warning  ] from logging" in text
    assert "generation=3 job=wordcount lane=2" in text
    assert "ValueError: oops" in text


def test_what_the_job_configured_stays() -> None:
    before = "import logging\nlogging.basicConfig(format='MINE %(message)s', level='INFO')\n"
    text = written("json", "debug", before=before)
    assert "hidden at info" in text
    assert "MINE from logging\n" in text
    assert '"event": "from structlog"' in text


OURS = "spark-log4j2.properties"


def options(conf: dict[str, str] | None = None) -> list[str]:
    return jvm._options({"spark.app.name": "wordcount", **(conf or {})}, "json")


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("LOG4J_CONFIGURATION_FILE", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))


def test_our_configuration_of_the_jvm() -> None:
    log4j, log_format, job = options()
    assert log4j.startswith("-Dlog4j2.configurationFile=")
    assert log4j.endswith(OURS)
    assert Path(log4j.partition("=")[2]).is_file()
    assert (log_format, job) == ("-Dclonos.log.format=json", "-Dclonos.job=wordcount")


@pytest.mark.parametrize(
    "environment",
    [
        {"LOG4J_CONFIGURATION_FILE": "mine.xml"},
        {"JDK_JAVA_OPTIONS": "-Dlog4j2.configurationFile=mine.xml"},
        {"JAVA_TOOL_OPTIONS": "-Xss8m -Dlog4j.configurationFile=mine.xml"},
    ],
)
def test_the_users_environment_wins(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert options() == []


def test_the_users_options_win() -> None:
    own = {"spark.driver.extraJavaOptions": "-Dlog4j2.configurationFile='my file.xml' -Xss8m"}
    assert options(own) == ["-Dlog4j2.configurationFile=my file.xml", "-Xss8m"]
    assert options({"spark.driver.extraJavaOptions": "-Dmine=1"})[-1] == "-Dmine=1"


def test_a_file_in_sparks_folder_of_settings_wins(tmp_path: Path) -> None:
    (tmp_path / "log4j2.properties.template").touch()
    assert options()[0].endswith(OURS)
    (tmp_path / "log4j2.xml").touch()
    assert options() == [f"-Dlog4j2.configurationFile={tmp_path / 'log4j2.xml'}"]


def test_only_whole_texts_are_left_out() -> None:
    """The filter drops a known text, and keeps lines that only contain it."""
    text = (Path(jvm.__file__).parent.with_name("embedded") / OURS).read_text()
    match = re.search(r"filter\.known\.regex = (.*)", re.sub(r"\\\n\s*", "", text))
    assert match
    pattern = match[1].replace("\\\\", "\\")

    def left_out(line: str) -> bool:
        return re.fullmatch(pattern, line) is not None

    assert left_out("Disabling AQE since AQE is not supported in stateful workloads.")
    assert left_out("Failed to cancel job group 0f28d24d-64cc-4cdb. Cannot find active jobs for it.")
    assert left_out("Your hostname, vm, resolves to a loopback address: 127.0.0.1; using 192.0.2.2 instead (on eth0)")
    assert left_out("Set SPARK_LOCAL_IP if you need to bind to another address")
    assert not left_out("Lost task 0.0 in stage 1.0 (TID 1) (127.0.0.1 executor driver): something")
    assert left_out("[queryId = 1] Lost task 0.0 in stage 1.0 (TID 1): PythonException: [PYTHON_EXCEPTION] x\nFile y")
    assert left_out("Exception in task 0.0 in stage 0.0 (TID 0)")
    assert left_out("[batchId = 0] Task 0 in stage 0.0 failed 1 times; aborting job")
    assert not left_out("Query words terminated with error")
    assert not left_out("No AQE: Disabling AQE since AQE is not supported in stateful workloads.")


def test_a_run_that_cannot_start_ends_with_the_three_parts_and_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(
        "import clonos\n@clonos.job(name='shout')\ndef shout(ctx):\n    raise AssertionError('not without Kafka')\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CLONOS_")}
    ran = subprocess.run(
        [sys.executable, "-m", "clonos", "run", str(tmp_path / "job.py"), "-o", "json"],
        env={**environment, "CLONOS_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 35
    lines = ran.stderr.splitlines()
    assert lines[0].startswith("broker-unavailable: No Kafka is configured")
    assert lines[1].startswith("Kept safe: ")
    assert lines[2].startswith("What to do: ")
    failed, summary = (json.loads(line) for line in ran.stdout.splitlines())
    assert failed.items() >= {"event": "failed", "job": "shout", "error": "broker-unavailable"}.items()
    assert failed["hint"]
    assert summary.items() >= {"event": "summary", "state": "FAILED", "epochs": 0}.items()


def test_a_setting_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CLONOS_LOG_FORMAT", "xml")
    monkeypatch.setattr(sys, "argv", ["clonos", "causal-log", "ls"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 11
    shown = capsys.readouterr().err
    assert "CLONOS_LOG_FORMAT: must be 'console' or 'json'" in shown
    assert "What to do: correct or unset them." in shown
