"""``clonos lint``: reads a job's code without importing it, and reports code that may differ in a replay.

- `clonos.lint.files`: the files of a job.
- `clonos.lint.names`, `clonos.lint.resolve`: Python's scopes, and the meaning of a name.
- `clonos.lint.collect`, `clonos.lint.reach`: the call graph, and the *stage* in which code runs (on rows, in the job
  function, at start, or in services only).
- `clonos.lint.dataflow`: the steps of DataFrames, in order.
- `clonos.lint.rules`: the rules; `clonos.lint.calls`, `clonos.lint.spark`: the calls that violate them;
  `clonos.lint.check` applies them. `clonos.lint.scan` runs all of this.

The linter reads text only, so it misses calls behind dynamic code and may report code that never runs. A comment
``# clonos: allow CL001 -- reason`` silences a finding on its line.

The package must not import other packages of `clonos` except `clonos.errors`.
"""

from clonos.lint.report import Finding, Report
from clonos.lint.rules import RULES, Rule, Severity
from clonos.lint.scan import lint

__all__ = ["RULES", "Finding", "Report", "Rule", "Severity", "lint"]
