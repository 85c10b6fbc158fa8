"""`clonos demo` runs each example, kills its driver once, and checks the output with the example's checker."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from clonos.settings import KafkaSettings, Settings
from clonos_demo.demo import Demo, Options
from clonos_demo.example import load_example
from clonos_demo.screen import Screen

pytestmark = [pytest.mark.full]


# `make demo` and `make chaos-full` run wordcount.
@pytest.mark.chaos(fault="SIGKILL at random moments", target="driver", topology="clonos demo")
@pytest.mark.parametrize("name", ["orders", "enrich", "live"])
def test_an_example_is_exactly_once_through_a_kill(
    kafka: KafkaSettings, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = io.StringIO()
    # An environment variable, as users set it: the demo's control plane inherits it.
    monkeypatch.setenv("CLONOS_KAFKA__BOOTSTRAP_SERVERS", kafka.bootstrap_servers)
    settings = Settings(home=tmp_path)
    with Screen(Console(file=shown, width=200)) as screen:
        report = Demo(settings, [load_example(name)], Options(kills=1, plain=False), screen).run()
        screen.verdict(report.outcomes())
    assert report.clean, shown.getvalue()
    outcome = report.jobs[name]
    assert outcome.kills == 1
    assert outcome.counters is not None
    assert outcome.counters.generation == 2
    assert outcome.verdict.expected >= outcome.verdict.records_in >= 100


@pytest.mark.chaos(fault="SIGKILL at random moments", target="driver, executor", topology="clonos demo, Spark cluster")
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", ["wordcount", "orders", "enrich"])
def test_an_example_on_a_spark_cluster(
    kafka: KafkaSettings, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver, an executor, and the driver again, which has a standby then."""
    shown = io.StringIO()
    monkeypatch.setenv("CLONOS_KAFKA__BOOTSTRAP_SERVERS", kafka.bootstrap_servers)
    with Screen(Console(file=shown, width=200)) as screen:
        options = Options(kills=3, plain=False, spark_workers=2)
        report = Demo(Settings(home=tmp_path), [load_example(name)], options, screen).run()
        screen.verdict(report.outcomes())
    assert report.clean, shown.getvalue()
    assert [gap.kind for gap in report.jobs[name].gaps] == ["cold", "executor", "standby"], shown.getvalue()
