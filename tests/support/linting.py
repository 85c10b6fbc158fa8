"""Job files for the linter's tests (the fixture `linted` runs the linter), and helpers that read its reports."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

from clonos.lint import Finding, Report

Lint = Callable[..., Report]

HEAD = "import clonos\nfrom pyspark.sql import functions as F\n"


def codes(report: Report) -> list[str]:
    return [finding.code for finding in report.findings]


def only(report: Report) -> Finding:
    assert len(report.findings) == 1, report.findings
    return report.findings[0]


def in_udf(body: str, before: str = "") -> str:
    """A job whose one UDF does `body`."""
    return (
        textwrap.dedent(before)
        + "\n\n@clonos.udf('string')\ndef work(word, value):\n"
        + textwrap.indent(textwrap.dedent(body).strip(), "    ")
        + "\n    return word\n\n\n"
        + in_job("rows = rows.withColumn('made', work('word', 'value'))")
    )


def in_job(body: str) -> str:
    """A job that does `body` with a frame `rows`."""
    return (
        "\n@clonos.job(name='linted')\ndef linted(ctx):\n    rows = ctx.source('words')\n"
        + textwrap.indent(textwrap.dedent(body).strip(), "    ")
        + "\n    ctx.sink(rows, topic='made')\n"
    )
