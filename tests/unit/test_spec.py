"""The job's specification: what is wrong is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from clonos.errors import SpecError
from clonos.spec import JobSpec, check_name, read_spec


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    return path


def spec(tmp_path: Path, body: str) -> JobSpec:
    return read_spec(written(tmp_path, f"metadata: {{name: a}}\nspec:\n{body}"))


def test_all_defaults(tmp_path: Path) -> None:
    got = read_spec(written(tmp_path, "metadata: {name: shout}"))
    assert (got.name, got.spec.delivery, got.spec.sharing_depth, got.spec.checkpoint) == (
        "shout",
        "exactly-once",
        "full",
        None,
    )


@pytest.mark.parametrize("name", ["a", "0", "a-b", "a--b", "a" * 100])
def test_good_names(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a.b", "a_b", "ä", "a" * 101, "a\n", "a b", "a/b"])
def test_bad_names(tmp_path: Path, name: str) -> None:
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
        ("  driverMemoryMb: 1", "spec.driverMemoryMb"),
        ("  sharingDepth: 2", "spec.sharingDepth"),
        ("  trigger: {intervalMs: -1}", "spec.trigger.intervalMs"),
        ("  trigger: {every: 1}", "spec.trigger.every"),
        ("  restartPolicy: {attempts: many}", "spec.restartPolicy.attempts"),
        ("  params: [a]", "spec.params"),
        ("  params: {a: [1]}", "spec.params.a"),
        ("  params: {a: null}", "spec.params.a"),
    ],
)
def test_the_field_is_named(tmp_path: Path, body: str, field: str) -> None:
    with pytest.raises(SpecError) as refused:
        spec(tmp_path, body)
    assert f"{field}: " in refused.value.what
    assert refused.value.kept == "nothing was started."


@pytest.mark.parametrize(
    ("text", "says"),
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
def test_files_that_are_no_specification(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(SpecError) as refused:
        read_spec(written(tmp_path, text))
    assert says in refused.value.what
    assert "job.yaml" in refused.value.what


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be read: No such file"):
        read_spec(tmp_path / "job.yaml")
    with pytest.raises(SpecError, match="cannot be read"):
        read_spec(tmp_path)
    (tmp_path / "job.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="is not YAML"):
        read_spec(tmp_path / "job.yaml")


def test_numbers_and_booleans_become_text(tmp_path: Path) -> None:
    got = spec(tmp_path, "  params: {a: 1, b: true, c: 0.5, d: x}\n  sparkConf: {e: false, f: 4}\n  sharingDepth: 0")
    assert got.spec.params == {"a": "1", "b": "true", "c": "0.5", "d": "x"}
    assert got.spec.spark_conf == {"e": "false", "f": "4"}
    assert got.spec.sharing_depth == "0"


def test_more_params_win_and_nothing_is_changed_in_place(tmp_path: Path) -> None:
    got = spec(tmp_path, "  params: {a: 1, b: 2}")
    assert got.with_params({"b": "3", "c": "4"}).spec.params == {"a": "1", "b": "3", "c": "4"}
    assert got.spec.params == {"a": "1", "b": "2"}
