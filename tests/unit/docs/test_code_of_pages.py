"""The code that pages show: its tests pass, its jobs lint clean, and all of it is Python."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Final

import pytest

from support.page_shell import ROOT, PageFile, steps

PAGES: Final = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_PYTHON: Final = re.compile(r"^( *)```python\n(.*?)^\1```", re.DOTALL | re.MULTILINE)


# A file of this repository, and a name in it: `api/clonos_api/reconcile/standbys.py:decide`.
_REFERENCE: Final = re.compile(r"`((?:platform|api|sinks|connectors)/clonos[\w/]+\.(?:py|java))(?::([\w.]+))?`")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def files_of(page: Path) -> list[PageFile]:
    """The files that the reader of a page writes. A page of outputs without commands has none."""
    return [step for step in steps(page) if isinstance(step, PageFile)] if "```python" in page.read_text() else []


FILES: Final = {name_of(page): files for page in PAGES if (files := files_of(page))}
TESTED: Final = [page for page, files in FILES.items() if any("test_" in file.path for file in files)]
JOBS: Final = [
    pytest.param(file.text, id=f"{page}:{file.path}")
    for page, files in FILES.items()
    for file in files
    if "@clonos.job" in file.text
]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_of_a_page_is_python(page: Path) -> None:
    for fence in _PYTHON.finditer(page.read_text()):
        ast.parse(textwrap.dedent(fence[2]).replace("…", "..."), f"{name_of(page)}: {fence[2]}")


@pytest.mark.parametrize("page", TESTED)
def test_the_tests_of_a_page_pass(page: str, tmp_path: Path) -> None:
    for file in FILES[page]:
        path = tmp_path / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text)
    process = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stdout + process.stderr


@pytest.mark.parametrize("text", JOBS)
def test_a_job_of_a_page_lints_clean(text: str, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(text)
    process = subprocess.run(
        [sys.executable, "-m", "clonos", "lint", "job.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert process.returncode == 0, process.stdout + process.stderr


@pytest.mark.parametrize("page", [page for page in PAGES if "adr" not in page.parts], ids=name_of)
def test_files_and_names_of_code_exist(page: Path) -> None:
    for path, name in _REFERENCE.findall(page.read_text()):
        assert (ROOT / path).is_file(), f"{name_of(page)} refers to {path}"
        last = name.rpartition(".")[2]
        assert re.search(rf"\b{last}\b", (ROOT / path).read_text()), f"{name_of(page)} refers to {path}:{name}"
