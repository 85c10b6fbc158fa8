"""What a check of a Spark cluster reports, and which locations are shared."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from clonos.driver import cluster_check
from clonos.driver.cluster_check import (
    CheckRequest,
    ExecutorFacts,
    _failed,
    _python_facts,
    differences,
    is_shared,
    main,
    report_of,
    unreadable_by,
)
from clonos.errors import ClusterUnavailable, SpecError
from clonos.jobs.cluster import ClusterReport

DRIVER = ExecutorFacts("driver", "here", "4.2.1", "", python="3.11.7", clonos="0.1.0")
SAME = ExecutorFacts("0", "one", "4.2.1", "17.0.1", python="3.11.2", clonos="0.1.0")
OTHER = ExecutorFacts("1", "two", "4.2.0", "25", python="3.12.1", clonos="", missing=("helpers",))
DESCRIPTION = {"metadata": {"name": "east"}, "spec": {"master": "spark://127.0.0.1:1"}}


def test_equal_executors_have_no_differences() -> None:
    assert differences([SAME], DRIVER) == []


def test_every_difference_names_its_host() -> None:
    assert differences([OTHER, SAME], DRIVER) == [
        "Executor 1 on two has Spark 4.2.0, the driver has 4.2.1.",
        "Executor 1 on two has Python 3.12, the driver has 3.11.",
        "Executor 1 on two has clonos (none), the driver has 0.1.0.",
        "Executor 1 on two cannot import helpers.",
    ]


def test_report() -> None:
    assert report_of([OTHER, SAME], DRIVER, ["A problem."]) == ClusterReport(
        spark="4.2.0, 4.2.1",
        java="17.0.1, 25",
        python="3.11.2, 3.12.1",
        executors=2,
        hosts=("one", "two"),
        problems=("A problem.",),
    )


def test_an_unreadable_probe_names_its_host() -> None:
    blind = ExecutorFacts("2", "three", "4.2.1", "17", unreadable="FileNotFoundException: x")
    assert unreadable_by([SAME, blind], "file:/x") == [
        "Executor 2 on three cannot read file:/x: FileNotFoundException: x."
    ]


def test_missing_modules_and_packages() -> None:
    facts = _python_facts(CheckRequest(("json", "no_such_module"), ("pyspark", "no-such-package")))
    assert facts["missing"] == ["no_such_module", "no-such-package"]
    assert facts["clonos"] == cluster_check.driver_facts().clonos


def test_a_failed_check_names_host_and_reason() -> None:
    text = (
        "org.apache.spark.SparkException: Job aborted: Lost task 0.0 in stage 0.0 (TID 0) (10.0.0.7 executor 1): \n"
        "Traceback (most recent call last):\nModuleNotFoundError: No module named 'clonos'\n\n\tat java.lang.Thread"
    )
    assert _failed(text) == "Executor 1 on 10.0.0.7 could not run Python: ModuleNotFoundError: No module named 'clonos'"
    daemon = "Error from python worker:\n  Traceback (most recent call last):\n  OSError: too long\nPYTHONPATH was:"
    assert _failed(daemon) == "An executor could not run Python: OSError: too long"
    assert _failed("no such interpreter") == "An executor could not run Python: no such interpreter"


@pytest.mark.parametrize(
    ("location", "shared"),
    [
        ("file:///mnt/shared/job", True),
        ("file:/mnt/shared", True),
        ("file:///mnt/shared2/job", False),
        ("file:///mnt", False),
        ("file:///mnt/shared/../private", False),
        ("hdfs://name/mnt/shared", False),
    ],
)
def test_shared_locations(location: str, shared: bool) -> None:
    assert is_shared(location, ["hdfs://other/", "file:///mnt/shared"]) == shared
    assert not is_shared(location, [])


def run_main(description: object, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(description)))
    return main()


def test_the_command_prints_a_report(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    report = ClusterReport(spark="4.2.1", executors=2, problems=("A problem.",))
    seen: list[Any] = []
    monkeypatch.setattr(cluster_check, "check_cluster", lambda spec, _settings: seen.append(spec) or report)
    assert run_main(DESCRIPTION, monkeypatch) == 0
    assert ClusterReport.model_validate_json(capsys.readouterr().out) == report
    assert seen[0].name == "east"


@pytest.mark.parametrize(
    ("description", "error", "words"),
    [
        ({"metadata": {"name": "east"}, "spec": {"master": "local[2]"}}, SpecError, "spec.master"),
        (DESCRIPTION, ClusterUnavailable, "No master of the cluster east answers"),
    ],
)
def test_the_command_reports_a_typed_error(
    description: object,
    error: type[SpecError],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_main(description, monkeypatch) == error.exit_code
    problem = json.loads(capsys.readouterr().err)
    assert problem["error"] == error.slug
    assert words in problem["what"]
