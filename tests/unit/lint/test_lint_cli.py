"""``clonos lint``: output, exit codes, the jobs of this repository, the documentation."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from clonos.cli.app import app, main
from clonos.errors import SpecError
from clonos.lint import RULES, lint
from support.linting import HEAD, in_job, in_udf

ROOT = Path(__file__).parents[3]
WORDCOUNT = ROOT / "examples" / "wordcount"
PLAIN = ROOT / "examples" / "clonos_demo" / "plain.py"

ERROR = in_udf("value = time.time()", "import time")
WARNING = "import time\nSTART = time.time()\n" + in_job("pass")


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["lint", *map(str, arguments)])


def file(tmp_path: Path, source: str) -> Path:
    path = tmp_path / "job.py"
    path.write_text(HEAD + source)
    return path


@pytest.mark.parametrize(
    ("source", "strict", "code"),
    [
        (ERROR, [], 1),
        (WARNING, [], 0),
        (WARNING, ["--strict"], 1),
        (in_job("pass"), ["--strict"], 0),
    ],
)
def test_exit_code_follows_the_findings(tmp_path: Path, source: str, strict: list[str], code: int) -> None:
    assert run(file(tmp_path, source), *strict).exit_code == code


def test_unusable_input_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, says in ((tmp_path / "none.py", "There is no file"), (file(tmp_path, "def ("), "line 3")):
        monkeypatch.setattr("sys.argv", ["clonos", "lint", str(path)])
        with pytest.raises(SystemExit) as left:
            main()
        assert left.value.code == 11
        assert says in capsys.readouterr().err.replace("\n", " ")


def test_output_is_two_lines_per_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = run(file(tmp_path, ERROR)).output.splitlines()
    assert lines == [
        "job.py:7:13 CL001 raw clock: time.time(): a replay reads another time",
        "    use clonos.now() for the epoch's time, or clonos.clock() for the true time, recorded",
        "1 error, 0 warnings in 1 file",
    ]


def test_json_has_all_fields(tmp_path: Path) -> None:
    path = file(tmp_path, ERROR + "\nSTART = time.time()  # clonos: allow\n# clonos: allow\n")
    report = json.loads(run(path, "-o", "json").stdout)
    assert list(report) == ["findings", "files", "errors", "warnings"]
    assert (report["files"], report["errors"], report["warnings"]) == (1, 1, 1)
    finding, unused = report["findings"]
    assert finding == {
        "file": str(path),
        "line": 7,
        "column": 13,
        "code": "CL001",
        "severity": "error",
        "call": "time.time()",
        "runs": "rows",
        "why": "a replay reads another time",
        "instead": RULES["CL001"].instead,
    }
    assert list(unused) == list(finding)
    assert (unused["code"], unused["severity"], unused["runs"]) == ("CL900", "warning", "")


def test_json_without_findings(tmp_path: Path) -> None:
    result = run(file(tmp_path, ""), "-o", "json")
    assert json.loads(result.stdout) == {"findings": [], "files": 1, "errors": 0, "warnings": 0}


def test_lint_follows_a_specification(tmp_path: Path) -> None:
    file(tmp_path, ERROR).rename(tmp_path / "main.py")
    spec = tmp_path / "job.yaml"
    spec.write_text("metadata: {name: linted}\nspec: {main: main.py}")
    assert run(spec).exit_code == 1
    spec.write_text("metadata: {name: linted}\nspec: {main: other.py}")
    assert isinstance(run(spec).exception, SpecError)


@pytest.mark.parametrize(
    "path", [WORDCOUNT, WORDCOUNT / "job.py", WORDCOUNT / "job.yaml", ROOT / "examples" / "orders"]
)
def test_examples_have_no_findings(path: Path) -> None:
    result = run(path, "--strict")
    assert result.exit_code == 0, result.output


def test_plain_job_of_the_demo_has_findings() -> None:
    findings = lint([PLAIN]).findings
    assert [(finding.code, finding.call, finding.runs, finding.severity.value) for finding in findings] == [
        ("CL006", "HTTPConnection(urlsplit(server).netloc, timeout=5.0)", "rows", "error"),
        ("CL001", "time.time()", "rows", "error"),
        ("CL002", "random.random()", "rows", "error"),
        ("CL003", "uuid.uuid4()", "rows", "error"),
    ]
    assert run(PLAIN).exit_code == 1


def test_lint_takes_linear_time(tmp_path: Path) -> None:
    """Twice the functions take about twice the calls; calls, not seconds, which differ by machine."""

    def calls(functions: int) -> int:
        helpers = [f"def helper{index}(value):\n    return value + time.time()\n" for index in range(functions)]
        body = [f"value{index} = helper{index}(value)" for index in range(functions)]
        path = file(tmp_path, in_udf("\n".join(body), "import time\n\n" + "\n".join(helpers)))
        events: Counter[str] = Counter()
        sys.setprofile(lambda _frame, event, _value: events.update([event]))
        try:
            assert len(lint([path]).findings) == functions
        finally:
            sys.setprofile(None)
        return events["call"]

    calls(1)  # fills caches
    assert calls(80) < 2.5 * calls(40)


def test_documentation_lists_the_rules() -> None:
    rows = [
        f"| {rule.code} | {rule.severity} | {rule.name} | {rule.finds} | {rule.instead} |" for rule in RULES.values()
    ]
    text = (ROOT / "docs" / "lint.md").read_text()
    assert [line for line in text.splitlines() if line.startswith("| CL")] == rows, "\n".join(rows)
