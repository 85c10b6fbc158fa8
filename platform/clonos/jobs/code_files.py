"""Finds the files that belong to a job's code, and hashes them.

The files follow from the job file alone, not from the modules that a process happens to have imported: a driver, its
standby and a later start find the same ones.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import sys
from collections.abc import Collection, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Final

import msgspec

# Known by their versions, also where they are installed beside the job file.
_LIBRARIES: Final = ("clonos", "pyspark", "pandas", "pyarrow", "numpy")
PACKAGE: Final = "package "  # prefix of the parts that are installed packages
_LONGEST_NAME: Final = 255
# Suffixes of files that a job writes: logs and embedded databases.
_WRITTEN: Final = frozenset({".log", ".out", ".pid", ".lock", ".tmp", ".db", ".sqlite", ".sqlite3"})
_DIGITS: Final = 16


def code_files(path: Path, *, outputs: Collection[Path] = ()) -> dict[str, str]:
    """Hash the files of a job and name the versions of the packages that it imports.

    The files are the job file, the modules in its folder and below that it imports (also inside functions), and the
    files there that the text of these modules names, such as a model or a query. An import by a computed name is not
    found. Logs and embedded databases are no code: the job itself writes them.

    Args:
        path: The job file.
        outputs: Other files that the job writes.

    Returns:
        File name (relative to the folder) → hash; ``package NAME`` → version, for installed packages.

    Example:
        >>> code_files(Path("examples/wordcount/job.py"))
        {'job.py': '5c1e8a0f2b7d4e63', 'package clonos': '0.1.0', 'package pyspark': '4.2.0'}
    """
    folder = path.parent
    finder = ModuleFinder(path=[str(folder)], excludes=list(_LIBRARIES))
    finder.run_script(str(path))
    loaded = (getattr(module, "__file__", None) for module in finder.modules.values())
    modules = {Path(file).resolve() for file in loaded if file}
    sources = {file for file in modules if file.is_relative_to(folder)}
    named = {file for source in sources if source.suffix == ".py" for file in _named_files(source, folder)}
    named -= {file for file in named if file.suffix in _WRITTEN} | {file.resolve() for file in outputs}
    parts = {file.relative_to(folder).as_posix(): _file_hash(file) for file in sorted(sources | named)}
    imported = {name.partition(".")[0] for name in finder.badmodules} - sys.stdlib_module_names
    return parts | _versions(imported | set(_LIBRARIES))


def short_hash(data: bytes) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of `data`."""
    return hashlib.sha256(data).hexdigest()[:_DIGITS]


def _file_hash(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()[:_DIGITS]


def code_hash(parts: Mapping[str, str]) -> str:
    """One hash over all parts of a job's code."""
    return short_hash(msgspec.json.encode(sorted(parts.items())))


def _named_files(source: Path, folder: Path) -> Iterator[Path]:
    """The files below `folder` whose names a module holds as text, relative to its own folder or to `folder`."""
    for node in ast.walk(ast.parse(source.read_bytes())):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        name = node.value
        if not 0 < len(name) <= _LONGEST_NAME or "\n" in name or "\0" in name:
            continue
        for base in (source.parent, folder):
            file = (base / name).resolve()
            if file.is_relative_to(folder) and file.is_file():
                yield file


def _versions(modules: set[str]) -> dict[str, str]:
    """``package NAME`` → version, for those of `modules` that an installed package has."""
    versions: dict[str, str] = {}
    for module in modules:
        with contextlib.suppress(PackageNotFoundError):
            versions[f"{PACKAGE}{module}"] = version(module)
    others = [module for module in modules if f"{PACKAGE}{module}" not in versions]
    if others:  # packages whose name is not that of their module; to find them takes longer
        distributions = packages_distributions()
        versions |= {f"{PACKAGE}{name}": version(name) for module in others for name in distributions.get(module, ())}
    return dict(sorted(versions.items()))
