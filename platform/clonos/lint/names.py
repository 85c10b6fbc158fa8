"""The names in a Python file, and what each is bound to: imports, functions, variables.

One pass over a file collects all bindings. `clonos.lint.resolve` resolves names after all files are read.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Literal, TypeAlias

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Role(IntEnum):
    """The role of a function in a job, by its decorators: job function, UDF, service and so on."""

    PLAIN = 0  # a function of the job without one of these decorators
    UDF = 1  # Spark calls it on rows
    JOB = 2  # the job function, which builds the queries
    SERVICE = 3  # a causal service, whose answers are recorded


@dataclass(frozen=True, slots=True)
class Site:
    """A place in a function that calls a name, or passes a name as an argument.

    The linter's rules are applied to it.
    """

    node: ast.expr  # the expression
    names: tuple[str, ...]  # the dotted names to which the expression may refer
    called: bool  # whether the name is called
    # For a call of a method: the object was created in this function (``local``), is ``shared`` with other calls of the
    # function, or is an ``argument`` of the function.
    origin: Literal["local", "shared", "argument"] = "local"
    services: tuple[Definition, ...] = ()  # the causal services of the job that the expression calls
    # Whether the expression is an order-sensitive aggregate (such as ``first``) whose order is fixed, by a sort or a
    # window.
    settled: bool = False


@dataclass(frozen=True, slots=True)
class Use:
    """A reference to `target`: because of it, the code of `target` may run (`body`), or the functions inside `target`,
    such as methods (`inner`).
    """

    target: Definition
    body: bool
    inner: bool


@dataclass(eq=False, slots=True)
class Definition:
    """A function, class or module-level variable of a job's code: a node of the call graph."""

    name: str  # name in the code
    module: Module  # the file
    node: Function | ast.ClassDef | None  # the function or class; None for a variable and for module-level code
    scope: Scope  # the names that are bound inside it
    parent: Definition | None = None  # the enclosing class or function
    role: Role = Role.PLAIN  # the role by its decorators
    inner: list[Definition] = field(default_factory=list)  # the functions and classes inside it
    uses: list[Use] = field(default_factory=list)  # references to other definitions
    sites: list[Site] = field(default_factory=list)  # the calls to which the rules are applied


@dataclass(frozen=True, slots=True)
class Imported:
    """A name that an import binds: to the module `name` (relative: with `level` dots before it), or to its `member`."""

    name: str
    level: int
    member: str | None


@dataclass(frozen=True, slots=True)
class Result:
    """The value that a call of one of the job's functions or classes returns: an inner function, or an instance."""

    definition: Definition


@dataclass(frozen=True, slots=True)
class Assigned:
    """A name that an assignment binds to the value of an expression."""

    value: ast.expr
    scope: Scope  # in which the names in `value` are resolved


@dataclass(frozen=True, slots=True)
class Annotated:
    """A parameter or variable that has an annotation but no value."""

    annotation: ast.expr
    scope: Scope  # in which the names in `annotation` are resolved


Binding: TypeAlias = Imported | Assigned | Annotated | Definition | Result


@dataclass(eq=False, slots=True)
class Scope:
    """The names that are bound in a module, class, function or comprehension."""

    kind: Literal["module", "class", "function", "comprehension"]  # what the scope belongs to
    module: Module  # the file
    parent: Scope | None = None  # the enclosing scope
    owner: Definition | None = None  # the class or function; None for a module or comprehension
    names: dict[str, list[Binding]] = field(default_factory=dict)  # name → what it is bound to
    module_names: set[str] = field(default_factory=set)  # names that a ``global`` statement binds in the module instead
    # For a class: attribute that a method assigns (``self.client = …``) → what it is bound to.
    attributes: dict[str, list[Binding]] = field(default_factory=dict)

    def bind(self, name: str, *bindings: Binding) -> None:
        """Add bindings of `name` to this scope."""
        self.names.setdefault(name, []).extend(bindings)

    def find(self, name: str) -> tuple[Scope, list[Binding]] | None:
        """Return the scope in which code of this scope finds `name`, and its bindings; None if it is not bound."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.module_names:
                scope = self.module.scope
            # Methods do not see the names of their class.
            if (scope.kind != "class" or scope is self) and name in scope.names:
                return scope, scope.names[name]
            scope = scope.parent
        return None

    def function(self) -> Scope:
        """Return the innermost enclosing scope that is not a comprehension, or this scope itself."""
        scope = self
        while scope.kind == "comprehension" and scope.parent is not None:
            scope = scope.parent
        return scope


@dataclass(eq=False, slots=True)
class Module:
    """One parsed Python file of a job."""

    path: Path  # the path of the file
    directories: tuple[Path, ...]  # the folders that its absolute imports search for modules of the job, in order
    tree: ast.Module  # the syntax tree
    lines: list[str]  # the source lines
    scope: Scope = field(init=False)  # the module-level names
    start: Definition = field(init=False)  # the code that runs when the module is imported
    # The code that runs only if the file is the program (``if __name__ == "__main__"``).
    guarded: Definition = field(init=False)
    # Comprehension → its scope; the first iterable of a comprehension → the scope outside.
    scopes: dict[ast.AST, Scope] = field(default_factory=dict)
    definitions: dict[ast.AST, Definition] = field(default_factory=dict)  # syntax node → its function or class
    variables: dict[str, Definition] = field(default_factory=dict)  # name → module-level variable
    imports: list[Imported] = field(default_factory=list)  # all imports in the file
    stars: list[Imported] = field(default_factory=list)  # the imports of all names of a module (``from … import *``)

    def __post_init__(self) -> None:
        """Collect the bindings."""
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
        scope = self._module.scopes.get(node, scope)
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                self._function(node, scope)
                return
            case ast.ClassDef():
                self._class(node, scope)
                return
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                inner = Scope("comprehension", self._module, scope)
                self._module.scopes |= {node: inner, node.generators[0].iter: scope}
                scope = inner
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
            case ast.For(target=target) | ast.AsyncFor(target=target) | ast.comprehension(target=target):
                self._target(target, None, scope)
            case ast.withitem(context_expr=value, optional_vars=target) if target is not None:
                self._target(target, value, scope)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                scope.bind(name)
            case ast.MatchMapping(rest=str(name)):
                scope.bind(name)
            case ast.Global(names=names):
                scope.module_names.update(names)
        for child in ast.iter_child_nodes(node):
            self._visit(child, scope)

    def _function(self, node: Function, scope: Scope) -> None:
        definition = self._define(node, scope, "function", "lambda" if isinstance(node, ast.Lambda) else node.name)
        arguments = node.args
        for default in defaults(node):
            self._visit(default, scope)
        inner = definition.scope
        positional = [*arguments.posonlyargs, *arguments.args]
        rest = [*arguments.kwonlyargs, *filter(None, (arguments.vararg, arguments.kwarg))]
        for argument in [*positional, *rest]:
            inner.bind(argument.arg, *([Annotated(argument.annotation, scope)] if argument.annotation else []))
        if isinstance(node, ast.Lambda):
            self._visit(node.body, inner)
            return
        scope.bind(node.name, definition)
        for decorator in node.decorator_list:
            self._visit(decorator, scope)
        if scope.kind == "class" and positional and scope.owner is not None:
            static = any(isinstance(item, ast.Name) and item.id == "staticmethod" for item in node.decorator_list)
            if not static:
                inner.names[positional[0].arg] = [Result(scope.owner)]
        self.statements(node.body, inner)

    def _class(self, node: ast.ClassDef, scope: Scope) -> None:
        definition = self._define(node, scope, "class", node.name)
        scope.bind(node.name, definition)
        for expression in [*node.decorator_list, *node.bases, *(keyword.value for keyword in node.keywords)]:
            self._visit(expression, scope)
        self.statements(node.body, definition.scope)

    def _define(
        self, node: Function | ast.ClassDef, scope: Scope, kind: Literal["class", "function"], name: str
    ) -> Definition:
        inner = Scope(kind, self._module, scope)
        definition = Definition(name, self._module, node, inner, parent=scope.function().owner)
        inner.owner = definition
        self._module.definitions[node] = definition
        return definition

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
                where.bind(name, *([Assigned(value, scope)] if value is not None else []))
                if where is self._module.scope and name not in self._module.variables:
                    self._module.variables[name] = Definition(name, self._module, None, where)
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                parts: Sequence[ast.expr | None] = value.elts if isinstance(value, ast.Tuple | ast.List) else []
                if len(parts) != len(targets) or any(isinstance(part, ast.Starred) for part in parts):
                    parts = [None] * len(targets)
                for element, part in zip(targets, parts, strict=True):
                    self._target(element, part, scope)
            case ast.Starred(value=element):
                self._target(element, None, scope)
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if value is not None:
                # self.client = …, visible in all methods
                for binding in scope.names.get(name, ()):
                    if isinstance(binding, Result):
                        own = binding.definition.scope
                        own.attributes.setdefault(attribute, []).append(Assigned(value, scope))


def defaults(node: Function) -> list[ast.expr]:
    """Return the default values of a function's parameters, which Python evaluates where the function is defined."""
    return [*node.args.defaults, *filter(None, node.args.kw_defaults)]
