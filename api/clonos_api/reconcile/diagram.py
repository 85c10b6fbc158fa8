"""Draws the page of job states: ``python -m clonos_api.reconcile.diagram > docs/job-states.md``."""

from __future__ import annotations

import sys

from clonos.resources.jobs import JobState
from clonos_api.reconcile.transitions import TABLE, TRANSIENT

_HEAD = """\
# Job states

Drawn from the table in `clonos_api.reconcile.transitions` by `python -m clonos_api.reconcile.diagram`;
a test fails when the two differ. What is not here never happens.
[Deadlines](control-plane.md#job-states) hold for the states in bold.

"""


def page() -> str:
    """The whole page."""
    lines = [_HEAD + "```mermaid", "stateDiagram-v2", "    [*] --> CREATED"]
    lines += [f"    {one.source} --> {one.target}: {one.when}" for one in TABLE]
    ends = [state for state in JobState if all(one.source is not state for one in TABLE)]
    lines += [f"    {state} --> [*]" for state in ends]
    lines += ["```", "", "| from | to | when | needs |", "|---|---|---|---|"]
    for one in TABLE:
        needs = (one.guard.__doc__ or "").strip().splitlines()[0]
        lines.append(f"| {_name(one.source)} | {_name(one.target)} | {one.when} | {needs} |")
    return "\n".join(lines) + "\n"


def _name(state: JobState) -> str:
    return f"**{state}**" if state in TRANSIENT else str(state)


if __name__ == "__main__":
    sys.stdout.write(page())
