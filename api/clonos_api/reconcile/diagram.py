"""Generates docs/job-states.md from the table of transitions.

``python -m clonos_api.reconcile.diagram > docs/job-states.md``
"""

from __future__ import annotations

import sys

from clonos.resources.jobs import JobState
from clonos_api.reconcile.transitions import RULES, TRANSIENT

_HEAD = """\
# Job states

Generated from the table in `clonos_api.reconcile.transitions` by `python -m clonos_api.reconcile.diagram`;
a test fails when the two differ. Transitions that are not listed cannot happen.
States in bold have [deadlines](control-plane.md#job-states).

A *new start* clears the previous run and the stop request, and satisfies a pending restart request.
It runs the job's version: the newest, unless its upgrade failed or `clonos job rollback` chose another. While other
versions finish their epochs in doubt ([ADR 57](adr/0057-versions-finish-their-epochs.md)), the job stays STARTING or
RECOVERING.

"""


def page() -> str:
    """Return docs/job-states.md as Markdown."""
    lines = [_HEAD + "```mermaid", "stateDiagram-v2", "    [*] --> CREATED"]
    lines += [f"    {rule.source} --> {rule.target}: {rule.when}" for rule in RULES]
    final = [state for state in JobState if all(rule.source is not state for rule in RULES)]
    lines += [f"    {state} --> [*]" for state in final]
    lines += ["```", "", "| from | to | when | condition | effect |", "|---|---|---|---|---|"]
    for rule in RULES:
        condition = (rule.guard.__doc__ or "").strip().splitlines()[0].removeprefix("Check that ").rstrip(".")
        effect = "new start" if rule.new_start else ""
        lines.append(f"| {_name(rule.source)} | {_name(rule.target)} | {rule.when} | {condition} | {effect} |")
    return "\n".join(lines) + "\n"


def _name(state: JobState) -> str:
    return f"**{state}**" if state in TRANSIENT else str(state)


if __name__ == "__main__":
    sys.stdout.write(page())
