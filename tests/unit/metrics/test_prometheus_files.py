"""Alert rules and dashboards use only metrics and labels that the control plane exposes."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from clonos_api.alerts.sending import webhook_metrics
from clonos_api.fleet.alerts import Kind
from clonos_api.guards.request_metrics import request_metrics
from clonos_api.metrics.families import exposition
from clonos_api.metrics.queries import HostSample, JobSample, MetricsSample, RecoverySample, StandbySample
from clonos_api.store.columns import QueryFigures
from clonos_api.store.tokens import Expiring, ExpiringToken

COMPOSE = Path(__file__).parents[3] / "docker" / "compose"
ALERTS = COMPOSE / "alerts.yml"
DASHBOARDS = sorted((COMPOSE / "grafana" / "dashboards").glob("*.json"))
SAMPLE = MetricsSample(
    jobs=(
        JobSample(
            "1",
            "orders",
            "RUNNING",
            2,
            {"out": QueryFigures(lag={"in": 3}, retention={"in": 90})},
            {},
            {"out": 10},
            1,
            0.5,
            datetime.now(UTC),
            {"words": datetime.now(UTC)},
            datetime.now(UTC),
            True,
        ),
    ),
    standbys=(StandbySample("7", "orders", "host-2", "READY", 0),),
    recoveries=(RecoverySample("orders", "crash", 440.0, {"claim": 80.0}),),
    hosts=(HostSample("host-1", "READY", 2, 1, 0, datetime(2026, 3, 2, tzinfo=UTC)),),
    tokens=Expiring(1, (ExpiringToken("a1", "host-1", "agent", "host-1", datetime.now(UTC), datetime.now(UTC)),)),
)


def labels() -> dict[str, set[str]]:
    """Returns the exposed metrics: name → labels."""
    actual: dict[str, set[str]] = {}
    text = exposition(SAMPLE, leads=True, free_bytes=1) + _of_the_replica()
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            actual.setdefault(sample.name, set()).update(sample.labels)
    return actual


def _of_the_replica() -> bytes:
    """The metrics of a replica's process, after one request, with one webhook."""
    registry = CollectorRegistry()
    deliveries, queue = webhook_metrics(registry)
    deliveries.labels("pager", "failed")
    queue.labels("pager")
    durations, _ = request_metrics(registry)
    durations.labels("GET", "/health", "200").observe(0.1)
    return generate_latest(registry)


def rules() -> list[dict[str, object]]:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    return list(group["rules"])


def expressions() -> dict[str, str]:
    actual = {str(rule["alert"]): str(rule["expr"]) for rule in rules()}
    for file in DASHBOARDS:
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel["targets"]:
                actual[f"{file.stem}: {panel['title']}"] = target["expr"]
    return actual


@pytest.mark.parametrize("name", expressions())
def test_queries_use_exported_metrics(name: str) -> None:
    actual, expression = labels(), expressions()[name]
    for metric, matchers in re.findall(r"(clonos_\w+)(?:\{([^}]*)\})?", expression):
        assert metric in actual, f"{name} asks for {metric}"
        known = actual[metric] | {"job", "instance"}  # Prometheus adds these two
        assert set(re.findall(r"(\w+)=", matchers)) <= known, f"{name}: {metric} has {actual[metric]}"
    grouped = {label for names in re.findall(r"(?:by|on) \(([^)]*)\)", expression) for label in names.split(", ")}
    own = set().union(*(actual[metric] for metric in re.findall(r"clonos_\w+", expression)))
    assert grouped <= own | {"job", "instance"}, f"{name} groups by {grouped - own}"


def test_each_rule_has_summary_and_description() -> None:
    for rule in rules():
        annotations: dict[str, str] = rule["annotations"]  # type: ignore[assignment]
        assert set(annotations) == {"summary", "description", "runbook_url"}, rule["alert"]
        page = f"/docs/runbook/{rule['alert']}"
        assert annotations["runbook_url"] == "{{ $externalLabels.clonos_url }}" + page
    assert "clonos_url" in yaml.safe_load((COMPOSE / "prometheus.yml").read_text())["global"]["external_labels"]


def test_each_kind_of_alert_has_one_rule_of_its_severity() -> None:
    actual = [(str(rule["alert"]), rule["labels"]["severity"]) for rule in rules()]  # type: ignore[index]
    assert sorted(actual) == sorted((kind.name, kind.severity) for kind in Kind)


def test_the_operators_manual_lists_what_webhooks_receive() -> None:
    page = (COMPOSE.parents[1] / "docs/operating.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (critical|warning) \|.*\| \[\1\]\(runbook/\1\.md\) \|$", page, re.MULTILINE)
    assert sorted(rows) == sorted((kind.name, kind.severity) for kind in Kind if kind.webhook)


def test_each_dashboard_has_variables_and_each_query_uses_one() -> None:
    for file in DASHBOARDS:
        dashboard = json.loads(file.read_text())
        variables = {variable["name"] for variable in dashboard["templating"]["list"]}
        assert variables >= ({"job", "host"} if file.stem == "jobs" else {"instance"})
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                used = set(re.findall(r"\$(\w+)", target["expr"]))
                assert used, f"{file.stem}: {panel['title']}"
                assert used <= variables
    shown = " ".join(expression for name, expression in expressions().items() if name.startswith("jobs:"))
    assert "clonos_dead_letters_total" in shown


def test_series_are_distinguished_by_their_labels() -> None:
    """Two standbys of a job on one host, two topics of a query: Prometheus refuses repeated series."""
    two = MetricsSample(
        jobs=(JobSample("1", "orders", "RUNNING", 2, {"out": QueryFigures(lag={"a": 3, "b": 4})}, {}, {}, 2),),
        standbys=(
            StandbySample("7", "orders", "host-2", "READY", 0),
            StandbySample("8", "orders", "host-2", "READY", 0),
        ),
        recoveries=(),
        hosts=(),
    )
    lines = [line for line in exposition(two, leads=False).decode().splitlines() if not line.startswith("#")]
    series = [line.rsplit(" ", 1)[0] for line in lines]
    assert len(set(series)) == len(series)
