"""Loading a job from its files, and running its function."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from clonos.errors import (
    ClonosError,
    JobCodeError,
    JobFileInvalid,
    JobNotImportable,
    SessionRequired,
    SpecError,
    TopicMissing,
)
from clonos.jobs import context as context_module
from clonos.jobs.context import JobContext, Query
from clonos.jobs.definition import Job, job
from clonos.jobs.loading import load_job
from clonos.settings import KafkaSettings

GOOD = """
import clonos

@clonos.job(name="shout", params={"a": "code", "b": "code"}, spark_conf={"x": "1"},
            trigger={"interval": "500ms"}, restart_policy={"attempts": 3}, master="local[3]")
def shout(ctx):
    pass
"""


@pytest.fixture(autouse=True)
def _clean_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove the modules and path entries that the import of job files adds."""
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


def test_load_job_reads_a_python_file(tmp_path: Path) -> None:
    loaded = load_job(file(tmp_path, GOOD))
    assert loaded.spec.name == "shout"
    assert loaded.directory == tmp_path.resolve()
    assert len(loaded.code) == 16


def test_code_hash_follows_the_file(tmp_path: Path) -> None:
    first = load_job(file(tmp_path, GOOD)).code
    assert load_job(file(tmp_path, GOOD)).code == first
    assert load_job(file(tmp_path, GOOD + "# changed\n")).code != first


def test_load_job_prefers_the_yaml_file_of_a_folder(tmp_path: Path) -> None:
    file(tmp_path, GOOD)
    assert load_job(tmp_path).spec.name == "shout"
    file(tmp_path, "metadata: {name: louder}", "job.yaml")
    assert load_job(tmp_path).spec.name == "louder"


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("x = 1", JobFileInvalid, "holds no job"),
        (GOOD + GOOD.replace("shout", "whisper"), JobFileInvalid, "holds 2 jobs: shout, whisper"),
        ("x = 1\nimport no_such_module_here", JobNotImportable, "line 2, does not import: ModuleNotFoundError"),
        ("x = 1\ndef (", JobNotImportable, "line 2, does not import: SyntaxError"),
        ("raise SystemExit(3)", JobNotImportable, "line 1, does not import: SystemExit"),
        ("from pyspark.sql import functions as F\nx = F.col('x')", SessionRequired, "line 2, does not import"),
        ('import clonos\n@clonos.job(name="A")\ndef a(ctx): ...', SpecError, "'A'"),
        ('import clonos\n@clonos.job(name="a", colour=1)\ndef a(ctx): ...', SpecError, "colour: "),
        (
            'import clonos\n@clonos.job(name="a", trigger={"every": 1})\ndef a(ctx): ...',
            SpecError,
            "trigger.every: ",
        ),
    ],
)
def test_invalid_job_file_is_refused(tmp_path: Path, text: str, error: type[ClonosError], message: str) -> None:
    with pytest.raises(error) as refused:
        load_job(file(tmp_path, text))
    assert type(refused.value) is error
    assert message in refused.value.what


def test_failed_import_is_repeated_with_the_modules_of_the_folder(tmp_path: Path) -> None:
    helper = file(tmp_path, "word = 1 / 0", "beside_the_job.py")
    path = file(tmp_path, f"import beside_the_job\n{GOOD}")
    with pytest.raises(JobNotImportable, match=r"job\.py, line 1, does not import: ZeroDivisionError"):
        load_job(path)
    helper.write_text("word = 'fixed'")
    assert load_job(path).spec.name == "shout"
    assert sys.modules.pop("beside_the_job").word == "fixed"


def test_missing_job_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JobFileInvalid, match="There is no job file"):
        load_job(tmp_path / "job.py")
    with pytest.raises(JobFileInvalid, match=r"holds neither a job\.yaml nor a job\.py"):
        load_job(tmp_path)
    with pytest.raises(JobFileInvalid, match=r"There is no job file .*missing\.py"):
        load_job(file(tmp_path, "metadata: {name: a}\nspec: {main: missing.py}", "job.yaml"))
    with pytest.raises(SpecError, match=r"names job\.yaml as its job file"):
        load_job(file(tmp_path, "metadata: {name: a}\nspec: {main: job.yaml}", "job.yaml"))


def test_other_file_types_are_refused(tmp_path: Path) -> None:
    with pytest.raises(JobFileInvalid, match="is not a Python file"):
        load_job(file(tmp_path, GOOD, "job.txt"))


def test_yaml_fields_take_precedence(tmp_path: Path) -> None:
    file(tmp_path, GOOD, "code.py")
    text = """
metadata: {name: louder, labels: {team: x}}
spec:
  main: code.py
  params: {b: yaml, c: 1}
  sparkConf: {y: 2}
  trigger: {availableNow: true}
  delivery: at-least-once
  standby: {replicas: 2, selfPromoteAfter: 9s}
"""
    spec = load_job(file(tmp_path, text, "job.yaml")).spec
    assert (spec.name, spec.metadata.labels) == ("louder", {"team": "x"})
    assert spec.spec.params == {"a": "code", "b": "yaml", "c": "1"}
    assert spec.spec.spark_conf == {"x": "1", "y": "2"}
    assert spec.spec.trigger.available_now
    assert spec.spec.delivery == "at-least-once"
    assert (spec.spec.standby.dedicated_replicas, spec.spec.standby.self_promote_after_s) == (2, 9.0)
    # Fields that the YAML file lacks come from the decorator.
    assert spec.spec.restart_policy.attempts == 3
    assert spec.spec.master == "local[3]"


def test_yaml_without_spec_keeps_the_decorators_fields(tmp_path: Path) -> None:
    plain = load_job(file(tmp_path, GOOD)).spec.spec
    merged = load_job(file(tmp_path, "metadata: {name: shout}", "job.yaml")).spec.spec
    assert merged == plain


def test_nested_fields_are_models_after_the_merge(tmp_path: Path) -> None:
    file(tmp_path, GOOD)
    text = "metadata: {name: a}\nspec: {restartPolicy: {initialBackoff: 7ms}, trigger: {interval: 9ms}}"
    spec = load_job(file(tmp_path, text, "job.yaml")).spec.spec
    assert spec.restart_policy.initial_backoff_ms == 7
    assert spec.trigger.interval_ms == 9
    assert type(spec.restart_policy).__name__ == "RestartPolicy"


def context(job: Job) -> JobContext:
    return JobContext(cast("Any", None), job.spec, KafkaSettings())


def test_define_refuses_a_job_without_a_sink() -> None:
    defined = job(name="a")(lambda ctx: None)
    with pytest.raises(SpecError, match="has no sink"):
        defined.define(context(defined))


def test_define_reports_an_error_of_the_job_function() -> None:
    @job(name="a")
    def broken(ctx: JobContext) -> None:
        raise KeyError("colour")

    with pytest.raises(JobCodeError, match="KeyError: 'colour'") as failed:
        broken.define(context(broken))
    assert failed.value.kept == "nothing was started."


def test_define_passes_typed_errors_on() -> None:
    @job(name="a")
    def missing(ctx: JobContext) -> None:
        raise TopicMissing("no such topic")

    with pytest.raises(TopicMissing):
        missing.define(context(missing))


class Frame:
    isStreaming = False  # noqa: N815


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "overwrite"}, "mode 'overwrite'"),
        ({"delivery": "at-most-once"}, "delivery 'at-most-once'"),
        ({"name": "a.b"}, "'a.b'"),
        ({}, "without a streaming source"),
    ],
)
def test_invalid_sink_is_refused(arguments: dict[str, str], message: str) -> None:
    defined = job(name="a")(lambda ctx: None)
    with pytest.raises(SpecError, match=message):
        context(defined).sink(cast("Any", Frame()), topic="t", **arguments)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda ctx: ctx.sink(None, topics="out"), "The connector 'kafka' has no option 'topics'. Did you mean topic?"),
        (lambda ctx: ctx.sink(None, dead_letter=1), "has no option 'dead_letter'. Did you mean dead_letters?"),
        (lambda ctx: ctx.sink(None, transaction_timeout=1), "Did you mean transaction_timeout_ms?"),
        (lambda ctx: ctx.sink(None, colour="x"), "The connector 'kafka' has no option 'colour'."),
        (lambda ctx: ctx.sink(None, connector="files", path="x", pathh="y"), "'pathh'. Did you mean path?"),
        (lambda ctx: ctx.sink(None, topic="t", producer={"linger_ms": "5"}), "'linger_ms'. Did you mean linger.ms?"),
        (lambda ctx: ctx.source("a", max_per_epochs=5), "Did you mean max_per_epoch?"),
        (lambda ctx: ctx.source("a", options={"minPartition": "5"}), "'minPartition'. Did you mean minPartitions?"),
        (lambda ctx: ctx.source("a", options={"isolation.level": "x"}), "has no option 'isolation.level'."),
        (lambda ctx: ctx.decode(None, None, on_poisson="drop"), "Did you mean on_poison?"),
    ],
)
def test_unknown_options_are_refused_with_the_similar_one(call: Any, message: str) -> None:
    unknown = job(name="unknown")(call)
    with pytest.raises(ClonosError) as refused:
        unknown.define(JobContext(None, unknown.spec, KafkaSettings()))  # type: ignore[arg-type]
    assert message in refused.value.what


def test_connectors_of_others_may_have_parameters_that_are_not_keyword_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def third_party(name: str, output_mode: str, delivery: str, address: str, port: int = 1) -> None:
        raise AssertionError("only its signature counts")

    monkeypatch.setattr(context_module, "find_connector", lambda _group, _name: third_party)
    assert context_module._connector("clonos.sinks", "theirs", ["address", "port"]) is third_party
    for option in ("adress", "name", "output_mode"):
        with pytest.raises(SpecError, match=f"no option '{option}'") as refused:
            context_module._connector("clonos.sinks", "theirs", [option])
        assert refused.value.hint == "its options are address, port."


def test_job_that_loses_dead_letters_is_refused() -> None:
    ctx = context(job(name="a")(lambda ctx: None))
    ctx.check_dead_letters()
    ctx.dead_letter_topics["clonos_decode_1"] = "dead"
    ctx.queries.append(Query(cast("Any", object()), cast("Any", None)))
    with pytest.raises(SpecError, match="No sink gets all poison records for 'dead'"):
        ctx.check_dead_letters()


@pytest.mark.parametrize(
    ("every", "problem"),
    [("30", "unit"), (30, "unit"), ("-1s", "unit"), ("8d", "604800000"), ("soon", "unit")],
)
def test_a_wrong_interval_of_a_sink_is_refused(every: Any, problem: str) -> None:
    sink, frame = (
        SimpleNamespace(name="out", output_mode="append", delivery="exactly-once"),
        SimpleNamespace(isStreaming=True),
    )
    with pytest.raises(SpecError, match="The sink 'out' has every=") as refused:
        context(job(name="a")(lambda ctx: None)).add(cast("Any", sink), cast("Any", frame), every=every)
    assert problem in refused.value.what


def test_unknown_connector_error_names_the_installed_ones() -> None:
    defined = job(name="a")(lambda ctx: None)
    with pytest.raises(SpecError, match="No connector 'pulsar'") as refused:
        context(defined).source("t", connector="pulsar")
    assert "kafka" in refused.value.hint
