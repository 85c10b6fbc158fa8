"""The maps of the code name what exists, and all of it: tiers, the glossary's places, the store's functions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from support.page_shell import ROOT

_ROOTS: Final = tuple(ROOT / folder for folder in ("", "platform", "api", "sinks", "connectors", "examples"))
_STORE: Final = ROOT / "api/clonos_api/store"
_PRIVATE_SPARK: Final = re.compile(
    r"\.(?:_jdf|_jsc|_jsparkSession|_active_spark_context)\b|sparkContext\._jvm|_parse_datatype_string"
)


def rows(page: Path, header: str) -> list[list[str]]:
    """The cells of each row of the table with this header."""
    lines = page.read_text().partition(f"\n{header}")[2].splitlines()[2:]
    table = lines[: next((number for number, line in enumerate(lines) if not line.startswith("|")), len(lines))]
    assert table, f"{page.name} has no table {header}"
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table]


def text_of(place: str) -> str:
    """The text of a file, or of all Python files of a folder."""
    found = next(path for root in _ROOTS if (path := root / place).exists())
    return "".join(file.read_text() for file in ([found] if found.is_file() else sorted(found.rglob("*.py"))))


@pytest.mark.parametrize("row", rows(ROOT / "docs/glossary.md", "| term |"), ids=lambda row: row[0])
def test_the_names_of_a_word_are_where_the_glossary_says(row: list[str]) -> None:
    text = "".join(map(text_of, re.findall(r"`([^`]+)`", row[-1])))
    names = re.findall(r"`([^`]+)`", row[-2])
    assert [name for name in names if re.sub(r"\(.*|.*\.", "", name) not in text] == []


@pytest.mark.parametrize("row", rows(_STORE / "README.md", "| module | functions |"), ids=lambda row: row[0])
def test_the_store_has_the_functions_of_its_table(row: list[str]) -> None:
    files = [_STORE / f"{module.replace('.', '/')}.py" for module in re.findall(r"`([^`]+)`", row[0])]
    text = "".join(file.read_text() for file in files)
    for name in re.findall(r"`([a-zA-Z_.]+)`", re.sub(r"\([^)]*\)", "", row[1])):
        owner, _, member = name.rpartition(".")
        other = _STORE / f"{owner}.py"
        source = other.read_text() if other.is_file() else text
        assert re.search(rf"^ *(?:(?:async )?def |class |self\.)?{member}\b", source, re.MULTILINE), name


def test_the_tiers_name_every_part() -> None:
    box = (ROOT / "ARCHITECTURE.md").read_text().split("```")[1]
    for package in (ROOT / "platform/clonos", ROOT / "api/clonos_api"):
        parts = {
            path.stem for path in package.glob("[a-z]*") if path.suffix == ".py" or (path / "__init__.py").exists()
        }
        assert parts <= set(re.findall(r"\w+", box))


def test_private_api_of_spark_is_used_where_the_map_says() -> None:
    users = {
        file.relative_to(ROOT / "platform/clonos").as_posix()
        for file in (ROOT / "platform/clonos").rglob("*.py")
        if "spark" not in file.relative_to(ROOT / "platform/clonos").parts and _PRIVATE_SPARK.search(file.read_text())
    }
    named = rows(ROOT / "ARCHITECTURE.md", "| private API of Spark |")
    assert users == {place for row in named for place in re.findall(r"`([\w/]+\.py)`", row[1])}
