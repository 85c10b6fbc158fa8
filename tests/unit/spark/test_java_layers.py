"""Java has the layers of Python: Clonos names no class of a source or a sink, and these do not name each other's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PARTS = {
    "clonos": ROOT / "platform/clonos/spark",
    "the Kafka source": ROOT / "connectors/clonos_connectors/kafka",
    "the Kafka sink": ROOT / "sinks/clonos_sinks/kafka",
}
NO_CODE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.DOTALL)


def sources(part: str) -> dict[str, Path]:
    """Class name → file."""
    return {file.stem: file for kind in ("java", "scala") for file in PARTS[part].glob(f"{kind}/*.{kind}")}


def named(file: Path) -> set[str]:
    """The words of a file, without its comments and texts."""
    return set(re.findall(r"\w+", NO_CODE.sub(" ", file.read_text())))


@pytest.mark.parametrize(
    ("part", "hidden"),
    [
        ("clonos", {"the Kafka source", "the Kafka sink"}),
        ("the Kafka source", {"the Kafka sink"}),
        ("the Kafka sink", {"the Kafka source"}),
    ],
)
def test_arrows_point_one_way(part: str, hidden: set[str]) -> None:
    above = {name for other in hidden for name in sources(other)}
    assert {file.name: words for file in sources(part).values() if (words := named(file) & above)} == {}


PYTHON = {
    "clonos": ROOT / "platform/clonos",
    "the Kafka source": ROOT / "connectors/clonos_connectors",
    "the Kafka sink": ROOT / "sinks/clonos_sinks",
}


@pytest.mark.parametrize("part", PARTS)
def test_python_calls_java_of_its_own_part_and_of_clonos(part: str) -> None:
    called = {
        (str(file), name)
        for file in PYTHON[part].rglob("*.py")
        for name in re.findall(r"\.clonos\.([A-Z]\w+)", file.read_text())
    }
    known = sources("clonos") | sources(part)
    assert {(file, name) for file, name in called if name not in known} == set()


def test_each_part_has_classes_and_uses_those_of_clonos() -> None:
    own = set(sources("clonos"))
    assert len(own) > 20
    for part in ("the Kafka source", "the Kafka sink"):
        assert any(named(file) & own for file in sources(part).values())


def test_no_class_has_two_files() -> None:
    names = [name for part in PARTS for name in sources(part)]
    assert len(names) == len(set(names))
