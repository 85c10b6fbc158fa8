"""The generators of the documentation site: what they must cover, and links between documents."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from clonos.errors import CLASSES
from clonos_api.fleet.alerts import Kind
from clonos_api.http.problems import FRAMEWORK_PROBLEMS, problem_of

ROOT = Path(__file__).parents[3]
RUNBOOK = ROOT / "docs/runbook"
ALERTS = {kind.name for kind in Kind}


def generator(name: str) -> ModuleType:
    if (folder := str(ROOT / "docs/generate")) not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)


def test_each_problem_has_a_page_at_its_type() -> None:
    pages = generator("error_pages").pages()
    types = {problem_of(cls("x")).type for cls in CLASSES} | {f"/docs/errors/{slug}" for slug in FRAMEWORK_PROBLEMS}
    assert types == {f"/docs/{path.removesuffix('.md')}" for path in pages}
    for cls in CLASSES:
        page = pages[f"errors/{cls.slug}.md"]
        assert cls.hint_default in page
        assert f"`{cls.exit_code}`" in page


def test_each_alert_has_a_page_and_each_page_an_alert() -> None:
    pages = {page.stem for page in RUNBOOK.glob("*.md")}
    assert pages >= ALERTS
    # The other pages are causes that a page of an alert leads to.
    causes = generator("alerts").causes(ROOT)
    assert {*ALERTS, *causes} == pages
    linked = "".join((RUNBOOK / f"{alert}.md").read_text() for alert in ALERTS)
    assert [cause for cause in causes if f"({cause}.md)" not in linked] == []
    index = generator("alerts").index(ROOT)
    assert [page for page in pages if f"({page}.md)" not in index] == []


@pytest.mark.parametrize("alert", sorted(page.stem for page in RUNBOOK.glob("*.md")))
def test_a_page_of_the_runbook_says_what_is_safe_and_what_to_do(alert: str) -> None:
    page = (RUNBOOK / f"{alert}.md").read_text()
    for title in ("## What it means", "## What is safe", "## What to do", "```sh"):
        assert title in page
    assert "expr" not in page, "the build adds the rule"
    with_rule = generator("alerts").with_rule(ROOT, f"runbook/{alert}.md", page)
    assert ("```promql" in with_rule) is (alert in ALERTS)


def test_the_reference_of_commands_is_complete() -> None:
    page = generator("commands").page()
    for part in ("## clonos run", "## clonos job start", "## clonos kafka consume", "`--standbys", "`--publish-again`"):
        assert part in page, part
    assert "pool-driver" not in page, "it is hidden"


def test_the_references_have_fields_with_their_meaning() -> None:
    pages = generator("settings_pages")
    assert (
        "| `spec.restartPolicy.attempts` | integer, at least 0 | `8` | Number of consecutive restarts"
        in pages.job_page()
    )
    assert "`CLONOS_KAFKA__SASL_MECHANISM`" in pages.settings_page()
    assert "`CLONOS_API__LIMITS__STREAM_S` | number, more than 0 | `600.0` | Maximum duration" in pages.settings_page()
    assert "`job.recovery.ended`" in generator("events").page()
    metrics = generator("metrics").page()
    assert "| `clonos_job_state` | gauge | `job_name`, `state` |" in metrics
    assert "`clonos_driver_memory_bytes`" in metrics
    assert "### GET /api/v1/jobs" in generator("rest").page(ROOT / "api/openapi.json")


def test_observing_names_each_metric() -> None:
    page = (ROOT / "docs/observing.md").read_text()
    named = re.findall(r"^\| `(\w+)`", generator("metrics").page(), re.MULTILINE)
    assert len(named) > 20
    assert sorted(metric for metric in named if metric not in page) == []


@pytest.mark.parametrize(
    ("page", "text", "expected"),
    [
        ("agent.md", "[a](security.md#trust)", "[a](security.md#trust)"),
        ("start/platform.md", "[a](../../docker/README.md#x)", "[a](../deploy/containers.md#x)"),
        ("internals/benchmarks.md", "[a](../docs/agent.md)", "[a](../agent.md)"),
        ("internals/benchmarks.md", "![a](../docs/img/job-light.png)", "![a](../img/job-light.png)"),
        ("agent.md", "[the code](../platform/clonos/errors/base.py)", "the code"),
        ("agent.md", "[a](https://example.org) [b](#here)", "[a](https://example.org) [b](#here)"),
        ("agent.md", "```\n[a](../README.md)\n```", "```\n[a](../README.md)\n```"),
    ],
)
def test_links_hold_in_the_site(page: str, text: str, expected: str) -> None:
    assert generator("links").in_site(text, page, ROOT) == expected


def test_inline_scripts_become_files_and_other_origins_are_refused(tmp_path: Path) -> None:
    policy = generator("policy")
    scripts = policy.InlineScripts()
    moved = scripts.moved('<script>a()</script><script src="b.js"></script>', "errors/x.html")
    assert moved.count("<script src=") == 2
    assert "a()" not in moved
    scripts.write(tmp_path)
    (file,) = (tmp_path / "assets/inline").iterdir()
    assert file.read_text() == "a()"
    assert f'src="../assets/inline/{file.name}"' in moved
    for refused in ('<script src="https://x.org/a.js"></script>', '<p style="color: red">', '<a onclick="b()">'):
        with pytest.raises(Exception, match="policy of the site refuses"):
            scripts.moved(refused, "index.html")
