"""``clonos lint``: reads a job's code, without importing it, and names what makes a replay differ.

- `clonos.lint.files`: the files of a job.
- `clonos.lint.names`, `clonos.lint.resolve`: what a name stands for.
- `clonos.lint.collect`, `clonos.lint.reach`: what runs on rows, while the job is built, at start, or in services only.
- `clonos.lint.dataflow`: what happens to frames, in order.
- `clonos.lint.rules`: the rules; `clonos.lint.calls`, `clonos.lint.spark`, `clonos.lint.sql`: what breaks them;
  `clonos.lint.check`: applied.
"""

from clonos.lint.report import Finding, Report
from clonos.lint.rules import RULES, Rule, Severity
from clonos.lint.scan import lint

__all__ = ["RULES", "Finding", "Report", "Rule", "Severity", "lint"]
