"""The alerts of the runbook: those of the rules for Prometheus, and those that webhooks receive."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from markdown_text import NOTE, table

from clonos_api.fleet.alerts import MEANINGS


def rules(root: Path) -> Sequence[dict[str, Any]]:
    """The alert rules, in the order of their file.

    Args:
        root: The repository.
    """
    groups = yaml.safe_load((root / "docker/compose/alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def index(root: Path) -> str:
    """The page that lists all alerts."""
    rows = [
        (f"[{rule['alert']}]({rule['alert']}.md)", rule["labels"]["severity"], _plain(rule, "summary"))
        for rule in rules(root)
    ]
    return "\n".join(
        [
            "# Runbook",
            "",
            NOTE,
            "",
            "One page for each alert: what it means, what is safe, what to do. An alert without a page fails "
            "the build. Without an alert, start with [troubleshooting](../troubleshooting.md).",
            "",
            "Alerts of Prometheus, by the rules of `docker/compose/alerts.yml`:",
            "",
            table(["alert", "severity", "summary"], rows),
            "",
            "[Alerts by webhook](../operating.md#alerts-by-webhook):",
            "",
            table(["alert", "meaning"], [(f"[{name}]({name}.md)", meaning) for name, meaning in MEANINGS.items()]),
            "",
            "Causes to which these pages lead:",
            "",
            *(f"- [{name}]({name}.md)" for name in causes(root)),
        ]
    )


def causes(root: Path) -> list[str]:
    """The pages of the runbook without an alert of their name."""
    alerts = {str(rule["alert"]) for rule in rules(root)} | set(MEANINGS)
    return sorted({page.stem for page in (root / "docs/runbook").glob("*.md")} - alerts)


def with_rule(root: Path, page: str, markdown: str) -> str:
    """A page of the runbook, with the rule of its name if Prometheus has one."""
    rule = next((rule for rule in rules(root) if f"runbook/{rule['alert']}.md" == page), None)
    if rule is None:
        return markdown
    waits = f" for {rule['for']}" if "for" in rule else ""
    return (
        f"{markdown.rstrip()}\n\n## The rule\n\n{_plain(rule, 'summary')} Severity: {rule['labels']['severity']}. "
        f"It fires when this holds{waits}:\n\n```promql\n{rule['expr'].strip()}\n```\n"
    )


def _plain(rule: dict[str, Any], annotation: str) -> str:
    """An annotation with the names of labels in the place of their values."""
    text: str = rule["annotations"][annotation]
    for label in ("job_name", "topic", "host", "instance"):
        text = text.replace("{{ $labels." + label + " }}", label.upper().removesuffix("_NAME"))
    return text
