"""The reference of metrics, from the families that the processes export."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from markdown_text import NOTE, code, prose, table
from prometheus_client import Metric

from clonos.agent.exposition import AgentCollector, AgentSnapshot
from clonos_api.metrics import families
from clonos_api.metrics.queries import MetricsSample

_HEAD = ["metric", "kind", "labels", "meaning"]


def page() -> str:
    """Return the page of all metrics."""
    service = families.metric_families(MetricsSample((), (), (), ()), leads=False, free_bytes=1)
    idle = AgentSnapshot(drivers=(), slots=0, pool_drivers=0, unanswered_s=0)
    agent = AgentCollector(lambda: idle).collect()
    return "\n".join(
        [
            "# Metrics",
            "",
            NOTE,
            "",
            "How to scrape them, and which queries hold with several replicas: "
            "[observing](../observing.md#prometheus). A counter's sample has the suffix `_total`.",
            "",
            "## The control plane",
            "",
            table(_HEAD, _rows(service)),
            "## An agent",
            "",
            table(_HEAD, _rows(agent)),
        ]
    )


def _rows(metrics: Iterable[Metric]) -> Iterator[tuple[str, str, str, str]]:
    for metric in metrics:
        labels = getattr(metric, "_labelnames", ())
        yield code(metric.name), metric.type, ", ".join(map(code, labels)), prose(metric.documentation)
