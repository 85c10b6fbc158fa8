"""Documents name real files, functions and pages."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md")])
PLACES = re.findall(r"`([\w./]+\.py)(?::(\w+))?`", (ROOT / "ARCHITECTURE.md").read_text())

# A test of a page's own code, and the name of its file in the paragraph before it.
WRITTEN_BY_READER = r"^def (test_\w+)|^`(?:[\w/]*/)?(test_\w+)\.py`:$"


def definitions(file: Path) -> set[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, kinds)}


def test_the_map_names_many_places() -> None:
    assert len([name for _, name in PLACES if name]) > 15


@pytest.mark.parametrize(("path", "name"), PLACES)
def test_every_place_on_the_map_exists(path: str, name: str) -> None:
    file = next(
        (place for folder in ("", "platform/clonos", "api/clonos_api") if (place := ROOT / folder / path).is_file()),
        None,
    )
    assert file is not None, path
    assert not name or name in definitions(file), f"{path} has no {name}"


def test_the_map_has_every_module_of_the_library() -> None:
    box = (ROOT / "ARCHITECTURE.md").read_text().partition("```")[2].partition("```")[0]
    places = [place for place in (ROOT / "platform/clonos").iterdir() if place.suffix in ("", ".py")]
    modules = {place.stem for place in places if not place.stem.startswith("_")}
    assert modules - set(re.findall(r"\w+", box)) == set()


def test_private_api_of_spark_is_used_where_its_package_says() -> None:
    clonos = ROOT / "platform/clonos"
    named = set(re.findall(r"``(\w+/\w+\.py)``", (clonos / "spark/__init__.py").read_text()))
    private = re.compile(r"(?<!self)\._(?:jdf|jvm|jsc|jsparkSession)\b")
    used = {str(file.relative_to(clonos)) for file in clonos.rglob("*.py") if private.search(file.read_text())}
    assert {file for file in used if not file.startswith("spark/")} == named


def test_the_glossary_names_the_file_of_each_name() -> None:
    roots = [ROOT / folder for folder in ("platform", "api", "sinks", "connectors", "")]
    for row in (ROOT / "docs/glossary.md").read_text().splitlines():
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        if len(cells) != 4:
            continue
        paths = [
            next(root / path for root in roots if (root / path).exists()) for path in re.findall(r"`(.+?)`", cells[3])
        ]
        files = [file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path])]
        text = "".join(file.read_text() for file in files)
        names = [re.findall(r"\w+", name)[-1] for name in re.findall(r"`(.+?)`", cells[2])]
        assert [name for name in names if name not in text] == [], cells[0]


def test_the_notes_beside_the_code_name_real_functions() -> None:
    sources = [ROOT / "api", ROOT / "platform"]
    known = {name for source in sources for file in source.rglob("*.py") for name in definitions(file)}
    for page in sorted(ROOT.glob("api/clonos_api/*/README.md")):
        spans = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", page.read_text())
        called = {name for span in spans for name in re.findall(r"(?<![\w.])(?:\w+\.)*(\w+)\(", span)}
        assert called - known - {"Depends"} == set(), page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_to_a_file(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_named_test_exists() -> None:
    """A document claims what a test shows. A name that ends with ``_`` is the beginning of several names."""
    existing = {name for file in (ROOT / "tests").rglob("*.py") for name in (*definitions(file), file.stem)}
    for page in PAGES:
        text = page.read_text()
        written_by_reader = {name for names in re.findall(WRITTEN_BY_READER, text, re.MULTILINE) for name in names}
        for name in set(re.findall(r"\btest_\w+\b", text)) - written_by_reader:
            known = any(other.startswith(name) for other in existing) if name.endswith("_") else name in existing
            assert known, f"{page.relative_to(ROOT)} names {name}"


def test_each_test_file_has_a_name_of_its_own() -> None:
    """`pytest tests` cannot import two modules of one name."""
    names = Counter(file.name for file in ROOT.glob("tests/**/test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_a_route_with_a_session_opens_no_other_one() -> None:
    """Each holds a connection: requests that need two would wait for each other."""
    opening = []
    for file in (ROOT / "api/clonos_api/routes").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.AsyncFunctionDef) and re.search(r"ReadingDep|ReadJob", ast.unparse(node.args)):
                calls = re.findall(r"\.(?:reading|transaction)\(\)", ast.unparse(node.body))
                opening += [f"{file.name} {node.name}"] * bool(calls)
    assert opening == []
