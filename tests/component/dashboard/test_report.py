"""The report page: its content, that it is self-contained, and invalid input."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clonos.demo.demo import Report
from clonos.demo.gaps import Gap
from clonos.demo.screen import Outcome
from clonos.demo.verdict import Verdict
from clonos.errors import SpecError
from clonos_api.dashboard.report import read, report, result

GAPS = {"p50_s": 0.44, "p99_s": 0.9, "n": 3, "samples": [0.4, 0.44, 0.9]}
CLEAN = {"duplicates": 0, "lost": 0, "order_breaks": 0, "state_breaks": 0}
PARTS = {
    "cores": 2,
    "standby": {**GAPS, "phases_ms": {"replay": 300, "detect": 40, "claim": 100}, "records": 1000, **CLEAN},
    **CLEAN,
    "times_faster": 27.3,
}
MIXED = {"kills": 100, "seed": 7, "gaps": {"driver": GAPS, "host": GAPS}, **CLEAN, "orphans": 0}


def page(raw: dict[str, Any], name: str = "bench") -> str:
    return report([result(name, raw)])


def test_a_report_has_verdict_downtimes_and_phases() -> None:
    text = page(PARTS)
    assert "Exactly once." in text
    assert "440 ms" in text
    assert "900 ms" in text
    assert re.findall(r'scope="row">(\w+)<', text) == ["standby", "detect", "claim", "replay"], "in their order"
    assert "27.3" in text
    assert re.findall(r'scope="row">(\w+)<', page(MIXED)) == ["driver", "host"]


def test_violations_come_first() -> None:
    text = page({**PARTS, "duplicates": 3, "orphans": 1})
    assert "Not exactly once." in text
    assert "3 published twice, 1 processes left behind" in text
    assert "● Exactly once." not in text
    for changes in ({"contradictions": 7}, {"left_after_down": [{"pid": 1}]}):
        assert "Not exactly once." in page({**PARTS, **changes})


def test_a_result_that_checked_nothing_does_not_look_clean() -> None:
    for raw in ({"standby_cost": {"cpu_share": 0.02}}, {"orphans": 0}):
        text = page(raw)
        assert "Not checked." in text
        assert "xactly once." not in text


def test_systems_are_compared_in_a_table_for_each_part() -> None:
    peers = {
        "throughput": {
            "python": {"clonos": {"rows_per_s": 91_000, "peak_pss_mb": 900}, "quix": {"rows_per_s": 37_000}},
        },
        "throughput_samples": {"python": {"clonos": [{"rows_per_s": 91_000}]}},
        "latency_ms": {"clonos": {"p50": 80.5, "samples": [80.5]}, "flink": {"p50": 114.0, "samples": [114.0]}},
    }
    text = page(peers)
    assert re.findall("<h2>(.*?)</h2>", text) == ["throughput python", "latency ms"]
    assert re.findall(r'scope="row">([\w ]+)<', text) == ["Clonos", "Quix Streams", "Clonos", "Flink"]
    assert re.findall(r'<td class="num">(.*?)</td>', text) == ["91 000", "900", "37 000", "", "80.5", "114.0"]


def test_a_demo_result_renders() -> None:
    verdict = Verdict(
        records_in=9, expected=9, published=9, duplicates=0, lost=0, order_breaks=0, contradictions=1, pending=0
    )
    outcome = Outcome("orders", verdict, 2, 11.8, None, (Gap("cold", 11.8), Gap("standby", 0.5)))
    text = page(Report(7, {"orders": outcome}).as_json())
    assert "Not exactly once." in text
    assert "1 contradicting the causal log" in text
    assert re.findall(r'scope="row">([\w ]+)<', text)[:2] == ["cold", "standby"]
    assert "500 ms" in text


@pytest.mark.parametrize(
    "raw", [{"duplicates": "2", "lost": 0}, {"a": {"p50_s": 1, "samples": [None]}}, {"phases_ms": {"claim": {}}}]
)
def test_a_non_number_is_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="is not a number"):
        page(raw)


def test_a_report_is_self_contained() -> None:
    text = page(PARTS)
    assert "<script" not in text
    assert not re.findall(r'(?:src|href)="', text)
    assert "url(" not in text
    assert text.startswith("<!doctype html>")


def test_a_report_escapes_its_input() -> None:
    bad = "<img src=x onerror=alert(1)>"
    assert "<img" not in page({bad: bad, "gaps": {bad: GAPS}, "x": {"phases_ms": {bad: 1}}}, name=bad)


@pytest.mark.parametrize(
    "raw", [{}, {"gaps": {}}, {"a": {"samples": [], "p50_s": 0, "p99_s": 0}}, {"phases_ms": {"claim": 0}}]
)
def test_an_almost_empty_result_renders(raw: dict[str, Any]) -> None:
    assert "</html>" in page(raw)


def test_a_file_without_a_result_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be read"):
        read(str(tmp_path / "none.json"))
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(SpecError, match="no JSON object"):
        read(str(tmp_path / "list.json"))


def test_the_report_command(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text(json.dumps(PARTS))
    command = [sys.executable, "-m", "clonos", "report", "one.json", "-", "-o", "out.html"]
    done = subprocess.run(command, cwd=tmp_path, input=json.dumps(MIXED), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "out.html\n"), done.stderr
    text = (tmp_path / "out.html").read_text()
    assert "<h1>one</h1>" in text
    assert "<h1>standard input</h1>" in text
    failed = subprocess.run([*command[:4], "no.json"], cwd=tmp_path, capture_output=True, text=True)
    assert failed.returncode == SpecError.exit_code
    assert "no.json cannot be read" in failed.stderr
    assert not (tmp_path / "report.html").exists()
