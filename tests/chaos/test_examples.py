"""The examples as a user plays them: `clonos demo` kills each one once, and its own checker judges the output."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from clonos.demo.scenes import SCENES
from clonos.demo.screen import Screen
from clonos.demo.story import Demo, Wishes
from clonos.settings import KafkaSettings, Settings

pytestmark = [pytest.mark.chaos, pytest.mark.broad]


# `make demo` and `make chaos-full` play wordcount.
@pytest.mark.story
@pytest.mark.parametrize("name", ["orders", "enrich"])
def test_an_example_is_exactly_once_through_a_kill(
    kafka: KafkaSettings, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = io.StringIO()
    # By the environment, as users say it: the control plane that the demo starts hears it too.
    monkeypatch.setenv("CLONOS_KAFKA__BOOTSTRAP_SERVERS", kafka.bootstrap_servers)
    settings = Settings(home=tmp_path)
    with Screen(Console(file=shown, width=200)) as screen:
        report = Demo(settings, [SCENES[name]], Wishes(kills=1, plain=False), screen).play()
        screen.verdict(report.outcomes())
    assert report.clean, shown.getvalue()
    outcome = report.jobs[name]
    assert outcome.kills == 1
    assert outcome.counters is not None
    assert outcome.counters.generation == 2
    assert outcome.verdict.expected >= outcome.verdict.records_in >= 100
