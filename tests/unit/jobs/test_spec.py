"""The job specification: its defaults, its names and its errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from clonos.errors import SpecError
from clonos.jobs.spec import JobSpec, check_name, read_spec


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    return path


def spec(tmp_path: Path, body: str) -> JobSpec:
    return read_spec(written(tmp_path, f"metadata: {{name: a}}\nspec:\n{body}"))


def test_specification_has_defaults(tmp_path: Path) -> None:
    loaded = read_spec(written(tmp_path, "metadata: {name: shout}"))
    assert (loaded.name, loaded.spec.delivery, loaded.spec.sharing_depth, loaded.spec.checkpoint) == (
        "shout",
        "exactly-once",
        "full",
        None,
    )


@pytest.mark.parametrize("name", ["a", "0", "a-b", "a--b", "a" * 100])
def test_valid_names_are_accepted(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a.b", "a_b", "ä", "a" * 101, "a\n", "a b", "a/b"])
def test_invalid_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="use 1 to 100"):
        check_name(name)
    path = tmp_path / "job.yaml"
    path.write_text(f"metadata:\n  name: {name!r}\n".replace("'", '"'))
    with pytest.raises(SpecError, match=r"metadata\.name"):
        read_spec(path)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ("  colour: red", "spec.colour"),
        ("  delivery: twice", "spec.delivery"),
        ("  driver: {memory: 479m}", "spec.driver.memory"),
        ("  sharingDepth: 2", "spec.sharingDepth"),
        ("  trigger: {interval: -1ms}", "spec.trigger.interval"),
        ("  trigger: {every: 1}", "spec.trigger.every"),
        ("  trigger: {mode: live, commitInterval: 2s}", "spec.trigger.commitInterval"),
        ("  trigger: {commitInterval: 20ms}", "spec.trigger"),
        ("  trigger: {mode: live, availableNow: true}", "spec.trigger"),
        ("  restartPolicy: {attempts: many}", "spec.restartPolicy.attempts"),
        ("  params: [a]", "spec.params"),
        ("  params: {a: [1]}", "spec.params.a"),
        ("  params: {a: null}", "spec.params.a"),
        ("  connections: {crm: {url: 'oracle://db/crm'}}", "spec.connections.crm.url"),
        ("  connections: {crm: {url: 'postgresql://app:pw@db/crm'}}", "spec.connections.crm.url"),
        ("  connections: {crm: {url: 'postgresql://db/crm?password=pw'}}", "spec.connections.crm.url"),
        ("  connections: {crm: {url: 'sqlite:///crm.db'}}", "spec.connections.crm.url"),
    ],
)
def test_error_names_the_field(tmp_path: Path, body: str, field: str) -> None:
    with pytest.raises(SpecError) as refused:
        spec(tmp_path, body)
    assert f"{field}: " in refused.value.what
    assert refused.value.kept == "nothing was started."


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file: "),
        ("just text", "the file: "),
        ("kind: Cron\nmetadata: {name: a}", "kind: "),
        ("apiVersion: v9\nmetadata: {name: a}", "apiVersion: "),
        ("metadata: {}", "metadata.name: "),
        ("a: [", "is not YAML"),
        ("a: b: c", "is not YAML"),
        ("!!python/object:os.system {}", "is not YAML"),
    ],
)
def test_invalid_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SpecError) as refused:
        read_spec(written(tmp_path, text))
    assert message in refused.value.what
    assert "job.yaml" in refused.value.what


def test_unreadable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be read: No such file"):
        read_spec(tmp_path / "job.yaml")
    with pytest.raises(SpecError, match="cannot be read"):
        read_spec(tmp_path)
    (tmp_path / "job.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="is not YAML"):
        read_spec(tmp_path / "job.yaml")


def test_numbers_and_booleans_become_text(tmp_path: Path) -> None:
    loaded = spec(tmp_path, "  params: {a: 1, b: true, c: 0.5, d: x}\n  sparkConf: {e: false, f: 4}\n  sharingDepth: 0")
    assert loaded.spec.params == {"a": "1", "b": "true", "c": "0.5", "d": "x"}
    assert loaded.spec.spark_conf == {"e": "false", "f": "4"}
    assert loaded.spec.sharing_depth == "0"


def test_with_params_returns_a_copy_with_the_new_parameters(tmp_path: Path) -> None:
    loaded = spec(tmp_path, "  params: {a: 1, b: 2}")
    assert loaded.with_params({"b": "3", "c": "4"}).spec.params == {"a": "1", "b": "3", "c": "4"}
    assert loaded.spec.params == {"a": "1", "b": "2"}


def test_executors_need_the_memory_that_spark_needs() -> None:
    spec = {"metadata": {"name": "job"}, "spec": {"executor": {"memory": "300m"}}}
    with pytest.raises(ValidationError, match="450"):
        JobSpec.model_validate(spec)
