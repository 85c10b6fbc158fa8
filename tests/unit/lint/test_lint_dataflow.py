"""Derived services without a key, by the step of the query that uses their UDF."""

from __future__ import annotations

import textwrap

import pytest

from clonos.lint import Severity
from support.linting import Lint, codes, in_job, only

KEYLESS = """
@clonos.udf('string')
def draw(word):
    return str(clonos.{service}({key}))


"""
DRAW = KEYLESS.format(service="random", key="")


@pytest.mark.parametrize("service", ["random", "rng", "uuid4"])
@pytest.mark.parametrize("key", ["", "None", "key=None"])
def test_keyless_draw_after_a_shuffle_is_reported(linted: Lint, service: str, key: str) -> None:
    step = "rows = rows.repartition(4, 'word').withColumn('x', draw('word'))"
    finding = only(linted(KEYLESS.format(service=service, key=key) + in_job(step)))
    assert (finding.code, finding.severity, finding.line) == ("CL011", Severity.WARNING, 6)
    assert finding.call == f"clonos.{service}({key})"
    assert "draw is used after repartition in line 13" in finding.why


@pytest.mark.parametrize(
    "step",
    [
        "rows = rows.groupBy('word').count().withColumn('x', draw('word'))",
        "rows = rows.join(other, 'word').withColumn('x', draw('word'))",
        "rows = rows.join(other.groupBy('word').count(), 'word').select(draw('word'))",
        "rows = rows.distinct().select('word', F.to_json(F.struct(draw('word').alias('x'))))",
        "rows = rows.orderBy('word').withColumns({'x': draw('word')})",
        "rows = rows.coalesce(1)\nrows = rows.where('word')\nrows = rows.select(draw('word'))",
        "drawn = draw('word').alias('x')\nrows = rows.distinct().select('word', drawn)",
        "rows = rows.groupBy('word').applyInPandas(lambda frame: clonos.random(), 'x double')",
        "grouped = rows.groupBy('word')\nrows = grouped.agg(F.count('*')).select(draw('word'))",
        "def again(frame):\n    return frame.select(draw('word'))\nrows = rows.repartition(2).transform(again)",
        "def again(frame):\n    return frame.select(draw('word'))\nrows = again(rows.repartition(2))",
        "def spread(frame):\n    return frame.repartition(2)\nrows = spread(rows).select(draw('word'))",
        "if ctx.params:\n    rows = rows.repartition(2)\nrows = rows.select(draw('word'))",
        "with ctx.params as params:\n    rows = rows.repartition(2)\nrows = rows.select(draw('word'))",
        "try:\n    rows = rows.repartition(2)\nfinally:\n    rows = rows.select(draw('word'))",
        "for kind in (rows, rows.repartition(2)):\n    rows = kind.select(draw('word'))",
        "rows = rows.select(clonos.udf('string')(lambda word: clonos.random())('word')).repartition(2)"
        ".select(draw('word'))",
        "rows = ctx.source('a').unionByName(rows.repartition(3)).select(draw('word'))",
    ],
)
def test_shuffling_steps_are_recognised(linted: Lint, step: str) -> None:
    assert codes(linted(DRAW + in_job("other = ctx.source('other')\n" + step))) == ["CL011"]


@pytest.mark.parametrize(
    "step",
    [
        "rows = rows.withColumn('x', draw('word'))",
        "rows = rows.select('word', draw('word')).repartition(4)",
        "rows = rows.withColumn('x', draw('word')).groupBy('word').count()",
        "drawn = rows.withColumn('x', draw('word'))\nrows = rows.repartition(4).join(drawn, 'word')",
        "rows = rows.join(F.broadcast(other), 'word').select(draw('word'))",
        "rows = rows.groupBy(draw('word')).count()",
        "rows = rows.union(other).select(draw('word'))",
        "text = ', '.join(['a', 'b'])\nrows = rows.select(draw('word'))",
        "rows = rows.repartition(4).select(keyed('word'))",
        "rows = rows.groupBy('word').applyInPandas(lambda frame: clonos.random(frame), 'x double')",
    ],
)
def test_keyed_draw_or_draw_before_the_shuffle_is_allowed(linted: Lint, step: str) -> None:
    keyed = (
        "@clonos.udf('string')\ndef keyed(word):\n    return str(clonos.uuid4(word)) + str(clonos.random(key=word))\n"
    )
    assert not linted(DRAW + keyed + in_job("other = ctx.source('other')\n" + step)).findings


@pytest.mark.parametrize(
    "step",
    [
        f"rows = rows.select({'draw(' * 60}'word'{')' * 60})",
        f"either = again if ctx.params else spread\nrows = {'either(' * 60}rows{')' * 60}",
        f"rows = rows.groupBy('word')\nrows = {'rows.join(' * 60}rows{')' * 60}",
        "rows = f0(rows)",
    ],
)
def test_nested_calls_do_not_take_exponential_time(linted: Lint, step: str) -> None:
    """The control plane runs the linter on code that users upload."""
    before = "def again(frame):\n    return frame\n\ndef spread(frame):\n    return frame\n\n"
    for level in range(12):
        before += f"def f{level}(frame):\n" + f"    frame = f{level + 1}(frame)\n" * 20 + "    return frame\n\n"
    assert not linted(DRAW + before + in_job(step)).findings


def test_frames_are_followed_through_helpers_and_files(linted: Lint) -> None:
    draws = """
        import clonos

        def number():
            return clonos.random()

        @clonos.udf('string')
        def draw(word):
            return number()
    """
    steps = """
        from draws import draw

        def drawn(frame, *, column):
            return frame.withColumn(column, draw('word'))
    """
    job = "import steps\n" + in_job("rows = steps.drawn(frame=rows.repartition(2), column='x')")
    finding = only(linted(job, draws=draws, steps=steps))
    assert (finding.file, finding.line, finding.code) == ("draws.py", 5, "CL011")


@pytest.mark.parametrize("source", ["spark.readStream.format('kafka').load()", "clonos.source(spark, 'words')"])
def test_frames_of_a_program_are_followed(linted: Lint, source: str) -> None:
    program = """
        from pyspark.sql import SparkSession

        def drawn(frame):
            return frame.repartition(2).select(draw("word")).sample(0.1)

        spark = SparkSession.builder.getOrCreate()
        lines = {source}
        clonos.exactly_once(drawn(lines), None).start()
    """.replace("{source}", source)
    assert codes(linted(DRAW + "\n" + textwrap.dedent(program))) == ["CL011", "CL101"]
