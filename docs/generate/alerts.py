"""The pages of the runbook: one for each alert of the catalogue, with its rule for Prometheus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from markdown_text import NOTE, table

from clonos_api.fleet.alerts import Kind


def rules(root: Path) -> dict[str, dict[str, Any]]:
    """Return the rules for Prometheus, by the names of their alerts.

    Args:
        root: The repository.
    """
    groups = yaml.safe_load((root / "docker/compose/alerts.yml").read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def index(root: Path) -> str:
    """Return the page that lists all alerts."""
    rows = [
        (f"[{kind.name}]({kind.name}.md)", kind.severity, kind.meaning, "yes" if kind.webhook else "") for kind in Kind
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
            "Prometheus has a rule for each (`docker/compose/alerts.yml`). Most are also sent "
            "[by webhook](../operating.md#alerts-by-webhook).",
            "",
            table(["alert", "severity", "meaning", "webhook"], rows),
            "",
            "Causes to which these pages lead:",
            "",
            *(f"- [{name}]({name}.md)" for name in causes(root)),
        ]
    )


def causes(root: Path) -> list[str]:
    """Return the pages of the runbook without an alert of their name."""
    return sorted({page.stem for page in (root / "docs/runbook").glob("*.md")} - set(Kind.__members__))


def with_rule(root: Path, page: str, markdown: str) -> str:
    """Return a page of the runbook, with the rule of its name if there is one."""
    rule = rules(root).get(Path(page).stem)
    if rule is None:
        return markdown
    waits = f" for {rule['for']}" if "for" in rule else ""
    return (
        f"{markdown.rstrip()}\n\n## The rule\n\nSeverity: {rule['labels']['severity']}. "
        f"It fires when this holds{waits}:\n\n```promql\n{rule['expr'].strip()}\n```\n"
    )
