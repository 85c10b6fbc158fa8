"""Which files belong to a job: those that are named or lie in named folders, and the modules they import."""

from __future__ import annotations

import ast
import io
import os
import sys
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from clonos.errors import SpecError
from clonos.lint.names import Imported, Module

_SKIPPED = {"__pycache__", "node_modules", "site-packages"}

LIBRARIES = frozenset({"clonos", "pyspark"})
"""A file that imports one of them is a job's own code; nothing beside it can stand in for them."""


class Sources:
    """The parsed files.

    Args:
        paths: Python files and folders.

    Attributes:
        modules: By their paths.
        named: The files that were named themselves, not found in a folder or followed.

    Raises:
        SpecError: A path is missing or is not Python.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self.modules: dict[Path, Module] = {}
        self.named: set[Path] = set()
        for path in paths:
            resolved = path.resolve()
            if resolved.is_dir():
                found = list(python_files(resolved))
                if not found:
                    raise SpecError(f"{path} holds no Python file.")
                for file in found:
                    self._load(file, resolved)
            elif not resolved.is_file():
                raise SpecError(f"There is no file {path}.")
            elif resolved.suffix != ".py":
                raise SpecError(f"{path} is not a Python file.")
            else:
                self.named.add(resolved)
                self._load(resolved, resolved.parent)

    def find(self, module: Module, imported: Imported) -> Path | None:
        """The file or package folder of the job that an import names, or None for an installed library."""
        if imported.level:
            parents = module.path.parents
            if imported.level > len(parents):
                return None
            start = parents[imported.level - 1]
            return _at(start.joinpath(*imported.name.split("."))) if imported.name else start
        parts = imported.name.split(".")
        if parts[0] in LIBRARIES:
            return None
        for directory in module.directories:
            found = _at(directory.joinpath(*parts))
            if found is not None:
                return found
        return None

    def below(self, package: Path, name: str) -> Path | None:
        """The submodule `name` of a package folder."""
        return _at(package / name) if package.is_dir() else None

    def imported(self, module: Module) -> Iterator[Module]:
        """The job's own modules that `module` imports."""
        for one in module.imports:
            found = self.find(module, one)
            if found is None:
                continue
            paths = [found]
            if one.member and (below := self.below(found, one.member)):
                paths.append(below)
            for path in paths:
                file = path / "__init__.py" if path.is_dir() else path
                if file in self.modules:
                    yield self.modules[file]

    def _load(self, path: Path, root: Path) -> None:
        """Read `path` and what it imports from below `root`."""
        pending = [path]
        while pending:
            file = pending.pop()
            if file in self.modules:
                continue
            module = self.modules[file] = read(file, root)
            for one in module.imports:
                found = self.find(module, one)
                for each in (found, found and one.member and self.below(found, one.member)):
                    if isinstance(each, Path) and each.is_relative_to(root):
                        inside = each / "__init__.py" if each.is_dir() else each
                        if inside.is_file():
                            pending.append(inside)


def python_files(folder: Path) -> Iterator[Path]:
    """All Python files below `folder`, sorted, without hidden folders and virtual environments."""
    for place, folders, files in os.walk(folder):
        here = Path(place)
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and name not in _SKIPPED and not (here / name / "pyvenv.cfg").exists()
        )
        yield from (here / name for name in sorted(files) if name.endswith(".py") and not name.startswith("."))


def read(path: Path, root: Path) -> Module:
    """One file, parsed.

    Raises:
        SpecError: It cannot be read or is not Python; the message names the line.
    """
    try:
        content = path.read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        text = content.decode(encoding)
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}.") from error
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise SpecError(f"{path} is not Python: {error}.") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the job's own text, such as invalid escapes
            tree = ast.parse(content, str(path))
    except SyntaxError as error:
        raise SpecError(f"{path}, line {error.lineno}: {error.msg}.", hint="mend the line; nothing was run.") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise SpecError(f"{path} is not Python: {error}.") from error
    return Module(path, _directories(path, root), tree, text.split("\n"))


def _directories(path: Path, root: Path) -> tuple[Path, ...]:
    """Where Python would look for modules of the job: the folder of its outermost package, and those above it."""
    directory = path.parent
    while directory != root and (directory / "__init__.py").exists():
        directory = directory.parent
    between = [directory, *(one for one in directory.parents if one.is_relative_to(root))]
    return tuple(between)


def _at(stem: Path) -> Path | None:
    # A package is found before a module of the same name, and a folder without __init__ after it.
    if (stem / "__init__.py").is_file():
        return stem
    file = stem.parent / f"{stem.name}.py"
    if file.is_file():
        return file
    # Such a folder yields to any installed module, so it must look like code.
    if stem.is_dir() and stem.name not in sys.stdlib_module_names and next(stem.rglob("*.py"), None):
        return stem
    return None
