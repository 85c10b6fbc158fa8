"""The table of all chaos tests in README.md, from their ``chaos`` marks: ``python tests/chaos/matrix.py`` writes it."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

README = Path(__file__).parent / "README.md"
BEGIN, END = "<!-- matrix -->\n", "<!-- end of matrix -->\n"
HEAD = "| test | fault | target | topology | cases |\n|---|---|---|---|---|\n"


class _Collected:
    def __init__(self) -> None:
        self.items: list[pytest.Item] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.items = session.items


def table(items: list[pytest.Item]) -> str:
    """A row for each test function: its mark, and the number of its parametrised cases."""
    cases = Counter((item.path.name, getattr(item, "originalname", item.name)) for item in items)
    rows = {}
    for item in items:
        mark = item.get_closest_marker("chaos")
        assert mark is not None, f"{item.nodeid} has no chaos mark"
        key = (item.path.name, getattr(item, "originalname", item.name))
        fault, target, topology = (mark.kwargs[name] for name in ("fault", "target", "topology"))
        rows[topology, *key] = f"| `{key[0]}` `{key[1]}` | {fault} | {target} | {topology} | {cases[key]} |\n"
    return HEAD + "".join(rows[key] for key in sorted(rows))


def main() -> int:
    """Write the table; with ``--check`` only compare it."""
    collected = _Collected()
    code = pytest.main(["--collect-only", "-qq", "--no-header", str(README.parent)], plugins=[collected])
    if code:
        return int(code)
    text = README.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    new = before + BEGIN + table(collected.items) + END + after
    if "--check" in sys.argv:
        return int(new != text)
    README.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
