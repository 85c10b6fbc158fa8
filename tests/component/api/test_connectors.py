"""Installed sources and sinks, their options, and the validation of options."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from clonos.errors import NotFound, SpecError
from clonos_api.admission.connectors import Plugin, _model, find, installed


class Shout:
    """Shouts lines.

    Twice.

    Args:
        words: What to shout,
            loudly.
        times: How often.
    """

    def __init__(
        self, words: tuple[str, ...], *, times: int = 1, where: dict[str, dict[int, int]] | None = None
    ) -> None:
        if times > 3:
            raise SpecError(f"times={times} is too often.", hint="at most three.")
        if not words:
            raise ValueError("no words")


SHOUT = Plugin("sink", "shout", "1.0", Shout, _model(Shout))


def test_options_come_from_the_signature() -> None:
    said = SHOUT.describe()
    assert said.summary == "Shouts lines."
    assert said.options["words"] == {
        "type": "array",
        "items": {"type": "string"},
        "required": True,
        "description": "What to shout, loudly.",
    }
    assert said.options["times"] == {"type": "integer", "required": False, "default": 1, "description": "How often."}


@pytest.mark.parametrize(
    ("options", "problems"),
    [
        ({"words": ["a"], "times": 2, "where": {"t": {"0": 5}}}, []),
        ({}, [("words", "is required")]),
        ({"words": ["a"], "times": "2"}, [("times", "valid integer")]),
        ({"words": ["a"], "loud": True}, [("loud", "unknown field")]),
        ({"words": ["a"], "times": 9}, [("times", "too often")]),
        ({"words": []}, [("", "no words")]),
        ({"words": ["a"], "where": {"t": {"x": 5}}}, [("where.t.x.[key]", "valid integer")]),
    ],
)
def test_options_are_validated(options: dict[str, Any], problems: list[tuple[str, str]]) -> None:
    said = SHOUT.validate(options)
    assert said.valid == (not problems)
    assert [problem.field for problem in said.problems] == [field for field, _ in problems]
    for problem, (_, what) in zip(said.problems, problems, strict=True):
        assert what in problem.what


def test_installed_connectors_are_listed() -> None:
    assert {(connector.kind, connector.name) for connector in installed()} >= {
        ("source", "kafka"),
        ("sink", "kafka"),
        ("sink", "files"),
    }
    assert all(connector.describe().options for connector in installed())
    with pytest.raises(NotFound, match="nothing"):
        find("sink", "nothing")


def test_connector_routes(admin: httpx.Client) -> None:
    listed = admin.get("/connectors", params={"kind": "sink"}).json()["data"]
    assert [connector["name"] for connector in listed] == ["files", "kafka", "sql"]
    kafka = admin.get("/connectors/source/kafka").json()
    assert kafka["options"]["max_per_epoch"]["default"] is None
    assert admin.get("/connectors/source/nothing").status_code == 404
    assert admin.get("/connectors/nothing/kafka").status_code == 422

    def validate(**options: Any) -> dict[str, Any]:
        answer = admin.post("/connectors/source/kafka/validate", json={"options": options})
        assert answer.status_code == 200, answer.text
        said: dict[str, Any] = answer.json()
        return said

    assert validate(topics=["lines"])["valid"]
    assert not validate(topics=["lines"], starting="nowhere")["valid"]
    assert validate(topics=["lines"], max_per_epoch=0)["problems"][0]["field"] == "max_per_epoch"
    dangerous = validate(topics=["lines"], options={"kafka.sasl.kerberos.kinit.cmd": "rm -rf /"})
    assert not dangerous["valid"]
