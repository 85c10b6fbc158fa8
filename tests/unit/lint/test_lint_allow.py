"""Comments ``# clonos: allow``."""

from __future__ import annotations

import pytest

from support.linting import Lint, codes, in_udf, only


@pytest.mark.parametrize(
    "comment",
    [
        "# clonos: allow",
        "# clonos: allow CL001",
        "#clonos:allow cl001",
        "# clonos: allow CL002, CL001 CL003 -- all of them",
        "# clonos: allow -- only for a log line",
        "# clonos: allow CL001 -- see issue 4, not CL002",
        "# noqa: S311  # clonos: allow CL001",
    ],
)
def test_allow_silences_its_line(linted: Lint, comment: str) -> None:
    three = "CL002" in comment.partition("--")[0]
    value = "time.time(), random.random(), uuid.uuid4()" if three else "time.time()"
    assert not linted(in_udf(f"value = {value}  {comment}", "import random, time, uuid")).findings


def test_allow_covers_only_its_rule_and_line(linted: Lint) -> None:
    body = "value = time.time(), random.random()  # clonos: allow CL001\nvalue = time.time()"
    findings = linted(in_udf(body, "import random, time")).findings
    assert [(finding.code, finding.line) for finding in findings] == [("CL002", 7), ("CL001", 8)]


@pytest.mark.parametrize("line", [0, 2])
def test_allow_on_the_first_or_last_line_of_a_call(linted: Lint, line: int) -> None:
    lines = ["value = requests.get(", "    word", ")"]
    lines[line] += "  # clonos: allow"
    assert not linted(in_udf("\n".join(lines), "import requests")).findings


def test_unused_allow_is_reported(linted: Lint) -> None:
    finding = only(linted(in_udf("value = len(word)  # clonos: allow -- old")))
    assert (finding.code, finding.severity.value, finding.line, finding.column) == ("CL900", "warning", 7, 24)
    assert finding.call == "# clonos: allow -- old"


def test_partly_unused_allow_is_reported(linted: Lint) -> None:
    finding = only(linted(in_udf("value = time.time()  # clonos: allow CL001, CL002", "import time")))
    assert finding.code == "CL900"
    assert "breaks CL002" in finding.why


def test_allow_for_another_rule_is_reported(linted: Lint) -> None:
    report = linted(in_udf("value = time.time()  # clonos: allow CL002", "import time"))
    assert codes(report) == ["CL001", "CL900"]


def test_allow_for_an_unknown_rule_is_reported(linted: Lint) -> None:
    assert "no rule CL999" in only(linted(in_udf("value = 1  # clonos: allow CL999"))).why


def test_allow_in_a_string_is_ignored(linted: Lint) -> None:
    body = "value = '# clonos: allow'\n# clonos: the allow comment\n# allow"
    assert not linted(in_udf(body)).findings


def test_tools_in_the_folder_are_not_checked(linted: Lint) -> None:
    report = linted(in_udf("value = 1"), folder=True, tool="import time\ntime.time()  # clonos: allow\n")
    assert not report.findings
