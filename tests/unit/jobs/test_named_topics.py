"""The error about a missing topic names all missing topics of the job."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import MagicMock

import pytest

from clonos.errors import BrokerUnavailable, TopicMissing
from clonos.jobs import definition
from clonos.jobs.definition import named_topics, with_all_missing

CODE = """
def job(ctx):
    lines = ctx.source("liness", starting="latest")
    more = ctx.source(["a", "b"])
    named = ctx.source(topics=("c",))
    orders = ctx.decode(lines, Json(), dead_letters="dead")
    ctx.sink(orders, topic="outt", name="words")
    ctx.sink(orders, connector="files", topic="no topic")
    ctx.source(f"{computed}")
    ctx.source(pattern="x.*")
    sink("no method of a context")
"""


def test_literal_topics(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(CODE)
    assert sorted(named_topics(tmp_path / "job.py")) == ["a", "b", "c", "dead", "liness", "outt"]
    (tmp_path / "broken.py").write_text("def")
    assert named_topics(tmp_path / "broken.py") == named_topics(tmp_path / "none.py") == []


def test_the_error_names_all_missing_topics(tmp_path: Path) -> None:
    file = tmp_path / "job.py"
    file.write_text(CODE)
    first = TopicMissing("The source topic 'liness' does not exist.", hint="run it.")
    both = with_all_missing(first, file, lambda _names: ["liness", "outt"])
    assert (
        both.what
        == "The source topic 'liness' does not exist. 'outt', which the code names too, does not exist either."
    )
    assert both.hint == "run it. The same for outt."
    three = with_all_missing(first, file, lambda _names: ["liness", "outt", "dead"])
    assert "'outt', 'dead', which the code names too, do not exist either." in three.what
    assert with_all_missing(first, file, lambda _names: ["liness"]) is first

    def unavailable(_names: list[str]) -> list[str]:
        raise BrokerUnavailable("no answer")

    assert with_all_missing(first, file, unavailable) is first


def test_a_job_with_two_mistyped_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(ctx: MagicMock) -> None:
        ctx.source("liness")
        ctx.sink(None, topic="outt")

    context = MagicMock()
    context.source.side_effect = TopicMissing("The source topic 'liness' does not exist.")
    monkeypatch.setattr(
        definition, "topics_missing", lambda _kafka, names: [name for name in names if name in {"liness", "outt"}]
    )
    job = definition.job(name="words")(function)
    with pytest.raises(TopicMissing, match=r"'liness' does not exist\. 'outt', which"):
        job.define(context)


def test_an_error_that_already_names_all_topics_is_not_its_own_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that followed the causes of such an error never ended."""
    context = MagicMock()
    context.source.side_effect = TopicMissing("The source topic 'liness' does not exist.")
    monkeypatch.setattr(definition, "topics_missing", lambda _kafka, _names: ["liness"])
    job = definition.job(name="words")(lambda ctx: ctx.source("liness"))
    with pytest.raises(TopicMissing, match="'liness' does not exist") as refused:
        job.define(context)
    assert refused.value.__cause__ is None
