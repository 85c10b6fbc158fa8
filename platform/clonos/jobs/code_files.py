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
from importlib.machinery import all_suffixes
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import Final

import msgspec

from clonos import python_source
from clonos.errors import JobNotImportable
from clonos.jobs.packages import LOCK

# Known by their versions, also where they are installed beside the job file.
_LIBRARIES: Final = ("clonos", "pyspark", "pandas", "pyarrow", "numpy")
PACKAGE: Final = "package "  # prefix of the parts that are installed packages
_LONGEST_NAME: Final = 255
# Suffixes of files that a job writes: logs and embedded databases.
_WRITTEN: Final = frozenset({".log", ".out", ".pid", ".lock", ".tmp", ".db", ".sqlite", ".sqlite3"})
_DIGITS: Final = 16


def code_files(path: Path, *, outputs: Collection[Path] = ()) -> dict[str, str]:
    """Hash the files of a job and name the versions of the packages that it imports.

    The files are the job file, the modules in its folder and below that it imports (also inside functions), the lock of
    its packages, and the files there that the text of these modules names, such as a model or a query. An import by a
    computed name is not found. Logs and embedded databases are not code: the job itself writes them.

    Args:
        path: The job file.
        outputs: Other files that the job writes.

    Returns:
        File name (relative to the folder) → hash; ``package NAME`` → version, for installed packages.

    Raises:
        JobNotImportable: A module is not Python, or a file cannot be read.

    Example:
        >>> code_files(Path("examples/wordcount/job.py"))
        {'job.py': '5c1e8a0f2b7d4e63', 'package clonos': '0.1.0', 'package pyspark': '4.2.0'}
    """
    folder = path.parent
    trees, imported = _modules(path)
    sources = {file for file in map(Path.resolve, trees) if file.is_relative_to(folder)}
    named = {file for source, tree in trees.items() for file in _named_files(tree, source, folder)}
    named -= {file for file in named if file.suffix in _WRITTEN} | {file.resolve() for file in outputs}
    named |= {lock} if (lock := folder / LOCK).is_file() else set()
    parts = {file.relative_to(folder).as_posix(): _file_hash(file) for file in sorted(sources | named)}
    return parts | _versions(imported - sys.stdlib_module_names | set(_LIBRARIES))


def _modules(path: Path) -> tuple[dict[Path, ast.Module], set[str]]:
    """Return the job file and the modules below its folder that it imports, and the names of its other imports."""
    trees: dict[Path, ast.Module] = {}
    others: set[str] = set()
    pending = [(path, path.parent)]
    while pending:
        file, package = pending.pop()
        if file in trees:
            continue
        tree = trees[file] = _parsed(file)
        for name, base in _imports(tree, package, path.parent):
            files, complete = _found(name, base)
            pending += files
            if not complete and base == path.parent:
                others.add(name.partition(".")[0])
    return trees, others


def _parsed(file: Path) -> ast.Module:
    try:
        if file.suffix != ".py":
            file.open("rb").close()  # a compiled module
            return ast.Module([], [])
        return python_source.parse(file.read_bytes())
    except OSError as error:
        raise JobNotImportable(f"{file} cannot be read: {error.strerror}.") from error
    except SyntaxError as error:
        raise JobNotImportable(f"{file}, line {error.lineno}, does not import: SyntaxError: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise JobNotImportable(f"{file} does not import: {type(error).__name__}: {error}") from error


def _imports(tree: ast.Module, package: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the names that a module of `package` imports, each with the folder where Python searches it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, folder) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [folder, package, *package.parents][min(node.level, len(package.parents) + 1)]
            if base.is_relative_to(folder):
                prefix = f"{node.module}." if node.module else ""
                yield from ((prefix + alias.name, base) for alias in node.names)


def _found(name: str, base: Path) -> tuple[list[tuple[Path, Path]], bool]:
    """Return the files of a module and of the packages around it, below `base`, each with the folder of its package;
    and whether all parts of `name` were found: the last may be an attribute, or the module is not the job's.

    A package without ``__init__.py`` has no file.
    """
    files: list[tuple[Path, Path]] = []
    package = base
    if name.partition(".")[0] in _LIBRARIES:
        return files, False
    for part in name.split("."):
        inner = package / part
        candidates = [inner / "__init__.py", *(package / f"{part}{suffix}" for suffix in all_suffixes())]
        file = next(filter(Path.is_file, candidates), None)
        if file is not None:
            files.append((file, file.parent))
        elif not inner.is_dir():
            return files, False
        package = inner
    return files, True


def short_hash(data: bytes) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of `data`."""
    return hashlib.sha256(data).hexdigest()[:_DIGITS]


def _file_hash(file: Path) -> str:
    try:
        with file.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()[:_DIGITS]
    except OSError as error:
        raise JobNotImportable(f"{file}, which the job's code names, cannot be read: {error.strerror}.") from error


def code_hash(parts: Mapping[str, str]) -> str:
    """One hash over all parts of a job's code."""
    return short_hash(msgspec.json.encode(sorted(parts.items())))


def _named_files(tree: ast.Module, source: Path, folder: Path) -> Iterator[Path]:
    """Yield the files below `folder` whose names a module holds as text, relative to its own folder or to `folder`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        name = node.value
        if not 0 < len(name) <= _LONGEST_NAME or "\n" in name or "\0" in name:
            continue
        for base in (source.parent, folder):
            # Not every text can be a file's name: a lone surrogate, too many bytes, a loop of symbolic links.
            with contextlib.suppress(OSError, ValueError, RuntimeError):
                file = (base / name).resolve()
                if file.is_relative_to(folder) and file.is_file():
                    yield file


def _versions(modules: set[str]) -> dict[str, str]:
    """``package NAME`` → version, for each of `modules` that an installed package has."""
    versions: dict[str, str] = {}
    for module in modules:
        with contextlib.suppress(PackageNotFoundError):
            versions[f"{PACKAGE}{module}"] = version(module)
    others = [module for module in modules if f"{PACKAGE}{module}" not in versions]
    if others:  # packages with another name than their module; to find them takes longer
        distributions = packages_distributions()
        versions |= {f"{PACKAGE}{name}": version(name) for module in others for name in distributions.get(module, ())}
    return dict(sorted(versions.items()))
