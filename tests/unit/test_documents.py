"""All problems of a document are explained at once, with lines and suggestions."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from clonos.documents import explain, meanings, read_yaml
from clonos.errors import SpecError
from clonos.jobs.spec import JobSpec

HEAD = "apiVersion: clonos/v1\nkind: Job\nmetadata: {name: words}\nspec:\n"


@pytest.mark.parametrize(
    ("body", "problems"),
    [
        ("  standbys: 1\n", ["line 5, spec.standbys: unknown field; did you mean standby.replicas?"]),
        ("  shuflePartitions: 8\n", ["line 5, spec.shuflePartitions: unknown field; did you mean shufflePartitions?"]),
        ("  nonsense: 8\n", ["line 5, spec.nonsense: unknown field"]),
        (
            "  main: job.py\n  trigger:\n    intervall: 1s\n",
            ["line 7, spec.trigger.intervall: unknown field; did you mean interval?"],
        ),
        (
            "  standby: {replicas: many}\n  nonsense: 8\n",
            ["line 5, spec.standby.replicas: must be a valid integer", "line 6, spec.nonsense: unknown field"],
        ),
    ],
)
def test_each_problem_has_its_line(tmp_path: Path, body: str, problems: list[str]) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(HEAD + body)
    with pytest.raises(SpecError) as refused:
        read_yaml(file, JobSpec, "a job specification")
    assert refused.value.what.startswith(f"{file} is not a job specification: ")
    for problem in problems:
        assert problem in refused.value.what
    assert refused.value.what.count("line ") == len(problems)


def test_the_position_of_a_syntax_error_comes_first(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("kind: Job\nmetadata: {name: words\nspec:\n  main: job.py\n")
    with pytest.raises(SpecError) as refused:
        read_yaml(file, JobSpec, "a job specification")
    assert refused.value.what == f"{file}, line 3, column 5, is not YAML: expected ',' or '}}', but got ':'."


def test_a_key_of_a_mapping_is_there_once(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(HEAD + "  main: job.py\n  main: other.py\n")
    with pytest.raises(SpecError, match=r"line \d+, column 3, is not YAML: the key 'main' is repeated"):
        read_yaml(file, JobSpec, "a job specification")


def test_a_field_that_is_missing_is_required() -> None:
    with pytest.raises(ValidationError) as refused:
        JobSpec.model_validate({})
    assert explain(refused.value) == "metadata: is required"


class _Place(BaseModel):
    street: str
    """The street, and
    the number.
    """
    town: str
    """The town."""
    land: str


class _Office(_Place):
    town: str
    """The town of the office."""


def test_the_meaning_of_a_field_stands_below_it_and_is_inherited() -> None:
    assert meanings(_Office) == {"street": "The street, and the number.", "town": "The town of the office."}
    assert meanings(int) == {}, "there is no source"
