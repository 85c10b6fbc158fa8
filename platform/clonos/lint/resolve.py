"""Resolves names in a job's code: to a dotted name of a library, or to a function, class or module of the job."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from clonos.lint.files import Sources
from clonos.lint.names import Annotated, Assigned, Binding, Definition, Imported, Module, Result, Scope


@dataclass(frozen=True, slots=True)
class Own:
    """A module or package that belongs to the job."""

    path: Path


_MOST_TARGETS = 200  # of one name; chains of conditional expressions can have exponentially many

Target: TypeAlias = str | Definition | Result | Own

_RENAMED = (
    ("pyspark.sql.functions.builtin.", "pyspark.sql.functions."),
    ("pyspark.sql.functions.partitioning.", "pyspark.sql.functions."),
    ("pyspark.sql.connect.functions.builtin.", "pyspark.sql.functions."),
    ("pyspark.sql.connect.functions.", "pyspark.sql.functions."),
    ("pyspark.sql.pandas.functions.", "pyspark.sql.functions."),
    ("pyspark.sql.udf.", "pyspark.sql.functions."),
    ("pyspark.sql.dataframe.", "pyspark.sql."),
    ("pyspark.taskcontext.", "pyspark."),
    ("clonos.jobs.context.", "clonos."),
    ("clonos.jobs.definition.", "clonos."),
    ("clonos.jobs.loading.", "clonos."),
    ("numpy.random.mtrand.", "numpy.random."),
    ("pandas.core.frame.", "pandas."),
    ("pandas.core.series.", "pandas."),
)

# Spark's functions with the name of a builtin that has a rule.
_HIDDEN_BY_SPARK = frozenset({"hash"})


def canonical(name: str) -> str:
    """Return the public name of an object, such as ``pandas.DataFrame`` for ``pandas.core.frame.DataFrame``."""
    for private, public in _RENAMED:
        if name.startswith(private):
            return public + name[len(private) :]
    if name.startswith("clonos.causal."):
        return "clonos." + name.split(".", 3)[-1]
    return name


class Resolver:
    """Finds what the names in a job's files refer to: dotted names of libraries, such as ``time.time``, or functions,
    classes, instances and modules of the job.
    """

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._resolving: set[int] = set()
        self._known: dict[tuple[int, str], tuple[Target, ...]] = {}

    def names(self, node: ast.expr, scope: Scope) -> tuple[str, ...]:
        """Return the dotted names of library objects to which an expression may refer."""
        return tuple(target for target in self.targets(node, scope) if isinstance(target, str))

    def targets(self, node: ast.expr, scope: Scope) -> tuple[Target, ...]:
        """Return the objects of the job or of libraries to which an expression may refer; empty if unknown."""
        return tuple(dict.fromkeys(self._targets(node, scope)))

    def _targets(self, node: ast.expr, scope: Scope) -> Iterator[Target]:
        match node:
            case ast.Name(id=name):
                yield from self._name(name, scope)
            case ast.Attribute(value=value, attr=attribute):
                for target in self._targets(value, scope):
                    yield from self._member(target, attribute)
            case ast.Call(func=function, args=arguments):
                for target in self._targets(function, scope):
                    if target == "functools.partial" and arguments:
                        yield from self._targets(arguments[0], scope)
                    else:
                        yield from _result(target)
            case ast.Await(value=value) | ast.NamedExpr(value=value):
                yield from self._targets(value, scope)
            case ast.IfExp(body=left, orelse=right):
                yield from self._targets(left, scope)
                yield from self._targets(right, scope)
            case ast.BoolOp(values=values):
                for value in values:
                    yield from self._targets(value, scope)

    def _name(self, name: str, scope: Scope) -> Iterator[Target]:
        bound = scope.find(name)
        if bound is not None:
            where, bindings = bound
            if where.kind == "module" and name in where.module.variables:
                yield where.module.variables[name]
            yield from self._bound(where, name, bindings)
            return
        module = scope.module
        hidden = False
        for star in module.stars:
            path = self._sources.find(module, star)
            if path is not None:
                yield from self._member(Own(path), name)
            else:
                yield canonical(f"{star.name}.{name}")
                hidden |= star.name == "pyspark.sql.functions" and name in _HIDDEN_BY_SPARK
        if not hidden and hasattr(builtins, name):
            yield f"builtins.{name}"

    def _bound(self, where: Scope, name: str, bindings: Iterable[Binding]) -> tuple[Target, ...]:
        """Return the targets of a name's bindings. A name that is bound to itself (``df = df.where(…)``) adds none."""
        key = (id(where), name)
        if key not in self._known:
            self._known[key] = ()
            targets = (target for binding in bindings for target in self._binding(binding, where.module))
            self._known[key] = tuple(dict.fromkeys(islice(targets, _MOST_TARGETS)))
        return self._known[key]

    def _binding(self, binding: Binding, module: Module) -> Iterator[Target]:
        match binding:
            case Imported():
                yield from self._imported(binding, module)
            case Assigned(value, scope):
                yield from self._targets(value, scope)
            case Annotated(annotation, scope):
                for target in self._types(annotation, scope):
                    yield from _result(target)
            case Definition() | Result():
                yield binding

    def _types(self, annotation: ast.expr, scope: Scope) -> Iterator[Target]:
        """Yield the types in an annotation; ``X | None`` and ``Optional[X]`` are X."""
        match annotation:
            case ast.BinOp(left=left, right=right):
                yield from self._types(left, scope)
                yield from self._types(right, scope)
            case ast.Subscript(value=ast.Name(id="Optional"), slice=inner):
                yield from self._types(inner, scope)
            case ast.Name() | ast.Attribute():
                yield from self._targets(annotation, scope)

    def _imported(self, binding: Imported, module: Module) -> Iterator[Target]:
        path = self._sources.find(module, binding)
        if path is None:
            if not binding.level:
                yield canonical(f"{binding.name}.{binding.member}" if binding.member else binding.name)
        elif binding.member is None:
            yield Own(path)
        else:
            yield from self._member(Own(path), binding.member)

    def _member(self, target: Target, name: str) -> Iterator[Target]:
        match target:
            case str():
                yield canonical(f"{target}.{name}")
            case Own(path):
                file = path / "__init__.py" if path.is_dir() else path
                module = self._sources.modules.get(file)
                if module is not None and (name in module.scope.names or module.stars):
                    yield from self._name(name, module.scope)
                below = self._sources.below(path, name)
                if below is not None:
                    yield Own(below)
            case Definition(node=ast.ClassDef(), scope=scope) | Result(Definition(node=ast.ClassDef(), scope=scope)):
                yield from self._bound(scope, f".{name}", [*scope.names.get(name, ()), *scope.attributes.get(name, ())])
                if name not in scope.names:
                    for base in self._bases(target):
                        yield from self._member(base, name)

    def _bases(self, target: Definition | Result) -> Iterator[Definition]:
        definition = target.definition if isinstance(target, Result) else target
        assert isinstance(definition.node, ast.ClassDef)
        outside = definition.scope.parent
        if outside is None or id(definition) in self._resolving:
            return
        self._resolving.add(id(definition))
        try:
            for base in definition.node.bases:
                yield from (target for target in self._targets(base, outside) if isinstance(target, Definition))
        finally:
            self._resolving.discard(id(definition))


def _result(target: Target) -> Iterator[Target]:
    if isinstance(target, str):
        yield f"{target}()"
    elif isinstance(target, Definition):
        yield Result(target)
