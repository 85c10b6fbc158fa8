"""Python's scopes: which name is bound where, and to what.

One pass over a file notes every binding; `clonos.lint.resolve` looks names up when all files are read.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Literal, TypeAlias

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Comprehension: TypeAlias = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


class Role(Enum):
    """What a function is for."""

    PLAIN = 0
    UDF = 1
    JOB = 2
    SERVICE = 3


@dataclass(frozen=True, slots=True)
class Site:
    """A call, or a name that is handed on.

    Attributes:
        node: Where it is written.
        names: The dotted names it may stand for.
        called: Whether it is called there.
        held: Whether the object it is a method of was made in this function (or inline), is shared with other calls
            of the function, or was given as an argument.
        answered: The own services it calls.
        settled: An order-sensitive aggregate that is sorted or taken over a window.
    """

    node: ast.expr
    names: tuple[str, ...]
    called: bool
    held: Literal["made", "shared", "given"] = "made"
    answered: tuple[Definition, ...] = ()
    settled: bool = False


@dataclass(frozen=True, slots=True)
class Use:
    """`target` is called or handed on: its own code may run, and the functions made in it."""

    target: Definition
    body: bool
    inner: bool


@dataclass(eq=False, slots=True)
class Definition:
    """A function, a class or a module-level variable: a piece of code that is reached or not.

    Attributes:
        name: As written.
        module: Its file.
        node: The function or class; None for a variable and for the code of a module.
        scope: The names inside it.
        parent: The class or function around it.
        role: What its decorators make of it.
        inner: Functions and classes inside it.
        uses: What it refers to.
        sites: What it calls, for the rules.
    """

    name: str
    module: Module
    node: Function | ast.ClassDef | None
    scope: Scope
    parent: Definition | None = None
    role: Role = Role.PLAIN
    inner: list[Definition] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    sites: list[Site] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Imported:
    """Bound by an import: module `name` (``level`` dots before it), or `member` of it."""

    name: str
    level: int
    member: str | None


@dataclass(frozen=True, slots=True)
class Defined:
    """Bound by ``def`` or ``class``."""

    definition: Definition


@dataclass(frozen=True, slots=True)
class Assigned:
    """Bound to an expression."""

    value: ast.expr
    scope: Scope


@dataclass(frozen=True, slots=True)
class Annotated:
    """A parameter or variable of which only the type is known."""

    annotation: ast.expr
    scope: Scope


@dataclass(frozen=True, slots=True)
class Instance:
    """The first parameter of a method."""

    definition: Definition


@dataclass(frozen=True, slots=True)
class Unknown:
    """Bound to something that cannot be told, so it is neither a module nor a function of one."""


Binding: TypeAlias = Imported | Defined | Assigned | Annotated | Instance | Unknown


@dataclass(eq=False, slots=True)
class Scope:
    """Names of a module, class, function or comprehension."""

    kind: Literal["module", "class", "function", "comprehension"]
    module: Module
    parent: Scope | None = None
    owner: Definition | None = None
    names: dict[str, list[Binding]] = field(default_factory=dict)
    module_names: set[str] = field(default_factory=set)
    attributes: dict[str, list[Binding]] = field(default_factory=dict)

    def bind(self, name: str, binding: Binding) -> None:
        """One more thing that `name` may stand for."""
        self.names.setdefault(name, []).append(binding)

    def find(self, name: str) -> tuple[Scope, list[Binding]] | None:
        """The scope that binds `name` as seen from here, and its bindings there."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.module_names:
                scope = self.module.scope
            # The names of a class are not seen from inside its methods.
            if (scope.kind != "class" or scope is self) and name in scope.names:
                return scope, scope.names[name]
            scope = scope.parent
        return None

    def function(self) -> Scope:
        """This scope without the comprehensions it is in."""
        scope = self
        while scope.kind == "comprehension" and scope.parent is not None:
            scope = scope.parent
        return scope


@dataclass(eq=False, slots=True)
class Module:
    """One file.

    Attributes:
        path: Where it is.
        directories: Where its absolute imports look for modules of the job, in order.
        tree: Its syntax tree.
        lines: Its source, by lines.
    """

    path: Path
    directories: tuple[Path, ...]
    tree: ast.Module
    lines: list[str]
    scope: Scope = field(init=False)
    start: Definition = field(init=False)
    guarded: Definition = field(init=False)
    scopes: dict[ast.AST, Scope] = field(default_factory=dict)
    definitions: dict[ast.AST, Definition] = field(default_factory=dict)
    variables: dict[str, Definition] = field(default_factory=dict)
    imports: list[Imported] = field(default_factory=list)
    stars: list[Imported] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Note what is bound where."""
        self.scope = Scope("module", self)
        self.start = Definition("the module", self, None, self.scope)
        self.guarded = Definition("the module as a program", self, None, self.scope)
        _Binder(self).statements(self.tree.body, self.scope)


class _Binder:
    def __init__(self, module: Module) -> None:
        self._module = module

    def statements(self, nodes: list[ast.stmt], scope: Scope) -> None:
        for node in nodes:
            self._visit(node, scope)

    def _visit(self, node: ast.AST, scope: Scope) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                self._function(node, scope)
                return
            case ast.ClassDef():
                self._class(node, scope)
                return
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                self._comprehension(node, scope)
                return
            case ast.Name() | ast.Constant():
                return
            case ast.Import() | ast.ImportFrom():
                self._import(node, scope)
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._target(target, value, scope)
            case ast.AnnAssign(target=ast.Name(id=name), value=None, annotation=annotation):
                scope.bind(name, Annotated(annotation, scope))
            case ast.AnnAssign(target=target, value=value) if value is not None:
                self._target(target, value, scope)
            case ast.NamedExpr(target=target, value=value):
                self._target(target, value, scope.function())
            case ast.For(target=target) | ast.AsyncFor(target=target):
                self._target(target, None, scope)
            case ast.withitem(context_expr=value, optional_vars=target) if target is not None:
                self._target(target, value, scope)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                scope.bind(name, Unknown())
            case ast.MatchMapping(rest=str(name)):
                scope.bind(name, Unknown())
            case ast.Global(names=names):
                scope.module_names.update(names)
        for child in ast.iter_child_nodes(node):
            self._visit(child, scope)

    def _function(self, node: Function, scope: Scope) -> None:
        made = self._define(node, scope, "function", "lambda" if isinstance(node, ast.Lambda) else node.name)
        arguments = node.args
        for default in [*arguments.defaults, *filter(None, arguments.kw_defaults)]:
            self._visit(default, scope)
        inner = made.scope
        positional = [*arguments.posonlyargs, *arguments.args]
        rest = [*arguments.kwonlyargs, *filter(None, (arguments.vararg, arguments.kwarg))]
        for argument in [*positional, *rest]:
            inner.bind(argument.arg, Annotated(argument.annotation, scope) if argument.annotation else Unknown())
        if isinstance(node, ast.Lambda):
            self._visit(node.body, inner)
            return
        scope.bind(node.name, Defined(made))
        for decorator in node.decorator_list:
            self._visit(decorator, scope)
        if scope.kind == "class" and positional and scope.owner is not None:
            static = any(isinstance(one, ast.Name) and one.id == "staticmethod" for one in node.decorator_list)
            if not static:
                inner.names[positional[0].arg] = [Instance(scope.owner)]
        self.statements(node.body, inner)

    def _class(self, node: ast.ClassDef, scope: Scope) -> None:
        made = self._define(node, scope, "class", node.name)
        scope.bind(node.name, Defined(made))
        for expression in [*node.decorator_list, *node.bases, *(keyword.value for keyword in node.keywords)]:
            self._visit(expression, scope)
        self.statements(node.body, made.scope)

    def _define(
        self, node: Function | ast.ClassDef, scope: Scope, kind: Literal["class", "function"], name: str
    ) -> Definition:
        inner = Scope(kind, self._module, scope)
        made = Definition(name, self._module, node, inner, parent=scope.function().owner)
        inner.owner = made
        self._module.definitions[node] = made
        return made

    def _comprehension(self, node: Comprehension, scope: Scope) -> None:
        inner = Scope("comprehension", self._module, scope)
        self._module.scopes[node] = inner
        self._visit(node.generators[0].iter, scope)
        for index, generator in enumerate(node.generators):
            self._target(generator.target, None, inner)
            if index:
                self._visit(generator.iter, inner)
            for condition in generator.ifs:
                self._visit(condition, inner)
        for part in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
            self._visit(part, inner)

    def _import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        module = self._module
        if isinstance(node, ast.Import):
            for alias in node.names:
                module.imports.append(Imported(alias.name, 0, None))
                first = alias.name.partition(".")[0]
                scope.bind(alias.asname or first, Imported(alias.name if alias.asname else first, 0, None))
            return
        for alias in node.names:
            imported = Imported(node.module or "", node.level, alias.name)
            module.imports.append(imported)
            if alias.name == "*":
                module.stars.append(imported)
            else:
                scope.bind(alias.asname or alias.name, imported)

    def _target(self, target: ast.expr, value: ast.expr | None, scope: Scope) -> None:
        match target:
            case ast.Name(id=name):
                where = self._module.scope if name in scope.module_names else scope
                where.bind(name, Assigned(value, scope) if value is not None else Unknown())
                if where is self._module.scope and name not in self._module.variables:
                    self._module.variables[name] = Definition(name, self._module, None, where)
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                for one, its in zip(targets, _parts(value, len(targets)), strict=True):
                    self._target(one, its, scope)
            case ast.Starred(value=one):
                self._target(one, None, scope)
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if value is not None:
                # self.client = …, seen by all methods
                for binding in scope.names.get(name, ()):
                    if isinstance(binding, Instance):
                        own = binding.definition.scope
                        own.attributes.setdefault(attribute, []).append(Assigned(value, scope))


def _parts(value: ast.expr | None, count: int) -> Iterator[ast.expr | None]:
    same = isinstance(value, ast.Tuple | ast.List) and len(value.elts) == count
    if same and not any(isinstance(one, ast.Starred) for one in value.elts):  # type: ignore[union-attr]
        yield from value.elts  # type: ignore[union-attr]
    else:
        yield from [None] * count
