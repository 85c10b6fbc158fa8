"""`clonos kafka consume -o json`: values arrive as they are, and terminals execute nothing."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from clonos.cli.kafka import _as_json
from clonos.cli.options import echo


class Record:
    """A message of a consumer."""

    def __init__(self, value: str) -> None:
        self._value = value

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 0

    def timestamp(self) -> tuple[int, int]:
        return (1, 0)

    def key(self) -> None:
        return None

    def value(self) -> bytes:
        return self._value.encode()

    def headers(self) -> list[tuple[str, bytes]]:
        return [("h", self.value())]


@pytest.mark.parametrize("value", ["\x1b[31mred\x1b[0m", "a\x7fb", "\x9b31m", "x\u202ey", "é\t\n\x00"])
def test_control_characters_of_a_record_are_escaped(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    echo(_as_json(cast("Any", Record(value))))
    line = capsys.readouterr().out
    assert json.loads(line)["value"] == value
    assert json.loads(line)["headers"] == [["h", value]]
    assert line.removesuffix("\n").isprintable()
