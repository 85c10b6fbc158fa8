"""Alert rules and dashboards ask for what the control plane tells, by the labels that it gives."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from clonos_api.metrics.families import exposition
from clonos_api.metrics.reading import Host, Job, Reading, Recovered, Waiting

COMPOSE = Path(__file__).parents[2] / "docker" / "compose"
ALERTS = COMPOSE / "alerts.yml"
DASHBOARDS = sorted((COMPOSE / "grafana" / "dashboards").glob("*.json"))
TOLD = Reading(
    jobs=(
        Job(
            "1",
            "orders",
            "RUNNING",
            2,
            {"out": {"lag": {"in": 3}, "retention": {"in": 90}}},
            {},
            {"out": 10},
            1,
            0.5,
            datetime.now(UTC),
            {"words": datetime.now(UTC)},
        ),
    ),
    standbys=(Waiting("7", "orders", "host-2", "READY", 0),),
    recoveries=(Recovered("orders", "crash", 440.0, {"claim": 80.0}),),
    hosts=(Host("host-1", "READY", 2, 1, 0),),
)


def labels() -> dict[str, set[str]]:
    """Name → labels of what is told."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(exposition(TOLD, leads=True).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def rules() -> list[dict[str, object]]:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    return list(group["rules"])


def expressions() -> dict[str, str]:
    found = {str(rule["alert"]): str(rule["expr"]) for rule in rules()}
    for file in DASHBOARDS:
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel["targets"]:
                found[f"{file.stem}: {panel['title']}"] = target["expr"]
    return found


@pytest.mark.parametrize("name", expressions())
def test_it_asks_for_what_is_told(name: str) -> None:
    told, expression = labels(), expressions()[name]
    for metric, matchers in re.findall(r"(eos_\w+)(?:\{([^}]*)\})?", expression):
        assert metric in told, f"{name} asks for {metric}"
        assert set(re.findall(r"(\w+)=", matchers)) <= told[metric], f"{name}: {metric} has {told[metric]}"
    grouped = {label for names in re.findall(r"(?:by|on) \(([^)]*)\)", expression) for label in names.split(", ")}
    own = set().union(*(told[metric] for metric in re.findall(r"eos_\w+", expression)))
    assert grouped <= own | {"job", "instance"}, f"{name} groups by {grouped - own}"


def test_each_rule_says_what_happened_and_what_to_do() -> None:
    assert len({rule["alert"] for rule in rules()}) == len(rules()) >= 8
    for rule in rules():
        assert set(rule["annotations"]) == {"summary", "description"}, rule["alert"]  # type: ignore[call-overload]


def test_what_differs_between_series_is_told_apart() -> None:
    """Two standbys of one job on one host, two topics of one query: a scrape with one series twice is refused."""
    two = Reading(
        jobs=(Job("1", "orders", "RUNNING", 2, {"out": {"lag": {"a": 3, "b": 4}}}, {}, {}, 2),),
        standbys=(Waiting("7", "orders", "host-2", "READY", 0), Waiting("8", "orders", "host-2", "READY", 0)),
        recoveries=(),
        hosts=(),
    )
    lines = [line for line in exposition(two, leads=False).decode().splitlines() if not line.startswith("#")]
    series = [line.rsplit(" ", 1)[0] for line in lines]
    assert len(set(series)) == len(series)
