"""Finding a job in its file, and the YAML's fields over the decorator's."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from clonos.errors import (
    ClonosError,
    JobCodeError,
    JobMissing,
    JobNotImportable,
    SessionNeeded,
    SpecError,
    TopicMissing,
)
from clonos.job import Job, JobContext, Query, job, load_job
from clonos.settings import KafkaSettings

GOOD = """
import clonos

@clonos.job(name="shout", params={"a": "code", "b": "code"}, spark_conf={"x": "1"},
            trigger={"intervalMs": 500}, restart_policy={"attempts": 3}, master="local[3]")
def shout(ctx):
    pass
"""


@pytest.fixture(autouse=True)
def _clean_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Job files are imported under names of their own, and their folder is put on the path."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in set(sys.modules) - before:
        if name.startswith("clonos_job_"):
            del sys.modules[name]


def file(tmp_path: Path, text: str, name: str = "job.py") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_python_file(tmp_path: Path) -> None:
    loaded = load_job(file(tmp_path, GOOD))
    assert loaded.spec.name == "shout"
    assert loaded.directory == tmp_path.resolve()
    assert len(loaded.code) == 16


def test_the_code_is_told_by_its_hash(tmp_path: Path) -> None:
    first = load_job(file(tmp_path, GOOD)).code
    assert load_job(file(tmp_path, GOOD)).code == first
    assert load_job(file(tmp_path, GOOD + "# changed\n")).code != first


def test_a_folder(tmp_path: Path) -> None:
    file(tmp_path, GOOD)
    assert load_job(tmp_path).spec.name == "shout"
    file(tmp_path, "metadata: {name: louder}", "job.yaml")
    assert load_job(tmp_path).spec.name == "louder"


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("x = 1", JobMissing, "holds no job"),
        (GOOD + GOOD.replace("shout", "whisper"), JobMissing, "holds 2 jobs: shout, whisper"),
        ("x = 1\nimport no_such_module_here", JobNotImportable, "line 2, does not import: ModuleNotFoundError"),
        ("x = 1\ndef (", JobNotImportable, "line 2, does not import: SyntaxError"),
        ("raise SystemExit(3)", JobNotImportable, "line 1, does not import: SystemExit"),
        ("from pyspark.sql import functions as F\nx = F.col('x')", SessionNeeded, "line 2, does not import"),
        ('import clonos\n@clonos.job(name="A")\ndef a(ctx): ...', SpecError, "'A'"),
        ('import clonos\n@clonos.job(name="a", colour=1)\ndef a(ctx): ...', SpecError, "colour: "),
        ('import clonos\n@clonos.job(name="a", trigger={"every": 1})\ndef a(ctx): ...', SpecError, "trigger.every: "),
    ],
)
def test_files_without_a_usable_job(tmp_path: Path, text: str, error: type[ClonosError], says: str) -> None:
    with pytest.raises(error) as refused:
        load_job(file(tmp_path, text))
    assert type(refused.value) is error
    assert says in refused.value.what


def test_a_file_is_imported_anew_with_what_is_beside_it(tmp_path: Path) -> None:
    helper = file(tmp_path, "word = 1 / 0", "beside_the_job.py")
    path = file(tmp_path, f"import beside_the_job\n{GOOD}")
    with pytest.raises(JobNotImportable, match=r"job\.py, line 1, does not import: ZeroDivisionError"):
        load_job(path)
    helper.write_text("word = 'mended'")
    assert load_job(path).spec.name == "shout"
    assert sys.modules.pop("beside_the_job").word == "mended"


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(JobMissing, match="There is no job file"):
        load_job(tmp_path / "job.py")
    with pytest.raises(JobMissing, match=r"holds neither a job\.yaml nor a job\.py"):
        load_job(tmp_path)
    with pytest.raises(JobMissing, match=r"There is no job file .*gone\.py"):
        load_job(file(tmp_path, "metadata: {name: a}\nspec: {main: gone.py}", "job.yaml"))
    with pytest.raises(SpecError, match=r"names job\.yaml as its job file"):
        load_job(file(tmp_path, "metadata: {name: a}\nspec: {main: job.yaml}", "job.yaml"))


def test_what_is_no_python_file(tmp_path: Path) -> None:
    with pytest.raises(JobMissing, match="is not a Python file"):
        load_job(file(tmp_path, GOOD, "job.txt"))


def test_the_yaml_wins(tmp_path: Path) -> None:
    file(tmp_path, GOOD, "code.py")
    text = """
metadata: {name: louder, labels: {team: x}}
spec:
  main: code.py
  params: {b: yaml, c: 1}
  sparkConf: {y: 2}
  trigger: {availableNow: true}
  delivery: at-least-once
  standby: {replicas: 2, aloneAfterS: 9}
"""
    spec = load_job(file(tmp_path, text, "job.yaml")).spec
    assert (spec.name, spec.metadata.labels) == ("louder", {"team": "x"})
    assert spec.spec.params == {"a": "code", "b": "yaml", "c": "1"}
    assert spec.spec.spark_conf == {"x": "1", "y": "2"}
    assert spec.spec.trigger.available_now
    assert spec.spec.delivery == "at-least-once"
    assert (spec.spec.standby.wanted, spec.spec.standby.alone_after_s) == (2, 9.0)
    # What the YAML does not say stays the decorator's.
    assert spec.spec.restart_policy.attempts == 3
    assert spec.spec.master == "local[3]"


def test_a_yaml_that_says_little_changes_little(tmp_path: Path) -> None:
    plain = load_job(file(tmp_path, GOOD)).spec.spec
    merged = load_job(file(tmp_path, "metadata: {name: shout}", "job.yaml")).spec.spec
    assert merged == plain


def test_nested_parts_are_models_after_merging(tmp_path: Path) -> None:
    file(tmp_path, GOOD)
    text = "metadata: {name: a}\nspec: {restartPolicy: {backoffMs: 7}, trigger: {intervalMs: 9}}"
    spec = load_job(file(tmp_path, text, "job.yaml")).spec.spec
    assert spec.restart_policy.backoff_ms == 7
    assert spec.trigger.interval_ms == 9
    assert type(spec.restart_policy).__name__ == "RestartPolicy"


def context(made: Job) -> JobContext:
    return JobContext(cast("Any", None), made.spec, KafkaSettings())


def test_define_without_a_sink() -> None:
    made = job(name="a")(lambda ctx: None)
    with pytest.raises(SpecError, match="has no sink"):
        made.define(context(made))


def test_define_that_raises() -> None:
    @job(name="a")
    def broken(ctx: JobContext) -> None:
        raise KeyError("colour")

    with pytest.raises(JobCodeError, match="KeyError: 'colour'") as failed:
        broken.define(context(broken))
    assert failed.value.kept == "nothing was started."


def test_define_passes_typed_errors() -> None:
    @job(name="a")
    def missing(ctx: JobContext) -> None:
        raise TopicMissing("no such topic")

    with pytest.raises(TopicMissing):
        missing.define(context(missing))


class Frame:
    isStreaming = False  # noqa: N815


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"mode": "overwrite"}, "mode 'overwrite'"),
        ({"delivery": "at-most-once"}, "delivery 'at-most-once'"),
        ({"name": "a.b"}, "'a.b'"),
        ({}, "without a streaming source"),
    ],
)
def test_sinks_are_checked_first(more: dict[str, str], says: str) -> None:
    made = job(name="a")(lambda ctx: None)
    with pytest.raises(SpecError, match=says):
        context(made).sink(cast("Any", Frame()), topic="t", **more)


def test_dead_letters_need_a_sink_that_publishes_them() -> None:
    made = job(name="a")(lambda ctx: None)
    one = context(made)
    one.check_dead_letters()
    one._dead_letters["clonos_decode_1"] = "dead"
    one.queries.append(Query(cast("Any", object()), cast("Any", None)))
    with pytest.raises(SpecError, match="No sink gets all poison records for 'dead'"):
        one.check_dead_letters()


def test_an_unknown_connector_names_what_is_there() -> None:
    made = job(name="a")(lambda ctx: None)
    with pytest.raises(SpecError, match="No connector 'pulsar'") as refused:
        context(made).source("t", connector="pulsar")
    assert "kafka" in refused.value.hint
