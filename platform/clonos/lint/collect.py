"""Collects the calls in each function of a job, and the call graph between the functions."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Literal

from clonos.lint import spark
from clonos.lint.names import Annotated, Definition, Imported, Module, Result, Role, Site, Use, defaults
from clonos.lint.resolve import Resolver, Target

_PARTIAL = "functools.partial"


@dataclass(slots=True)
class Graph:
    """The call graph of a job's code."""

    definitions: list[Definition] = field(default_factory=list)  # all functions, classes and module-level variables
    # Functions that are passed to Spark or `clonos` to run on rows.
    row_functions: list[Use] = field(default_factory=list)


def collect(modules: Collection[Module], resolver: Resolver) -> Graph:
    """Collect the calls and references of all functions in `modules`, as a call graph."""
    graph = Graph()
    for module in modules:
        graph.definitions += [*module.definitions.values(), *module.variables.values()]
    for definition in graph.definitions:
        definition.role = _role(definition, resolver)
    for module in modules:
        _Collector(module, resolver, graph).module()
    return graph


def _role(definition: Definition, resolver: Resolver) -> Role:
    """Return the role by the decorators, or by decorators of the job around decorators of `clonos` and Spark."""
    node = definition.node
    if node is None or isinstance(node, ast.Lambda) or definition.scope.parent is None:
        return Role.PLAIN
    role = Role.PLAIN
    for decorator in node.decorator_list:
        for target in resolver.targets(decorator, definition.scope.parent):
            if isinstance(target, Result):
                target = target.definition
            if isinstance(target, str):
                role = max(role, _role_of_name(target), Role.JOB if target == "clonos.job()" else role)
            elif isinstance(target, Definition) and target.node is not None:
                expressions = (inner for inner in ast.walk(target.node) if isinstance(inner, ast.Name | ast.Attribute))
                names = (name for inner in expressions for name in resolver.names(inner, target.scope))
                role = max([role, *map(_role_of_name, names)])
    return role


def _role_of_name(name: str) -> Role:
    """Return the role that a call of `name` gives to its argument."""
    maker = name.removesuffix("()")
    if maker == "clonos.service":
        return Role.SERVICE
    return Role.UDF if maker in spark.UDF_MAKERS else Role.PLAIN


class _Collector:
    """Walks one file.

    `runner` is the definition whose code is being read. `holders` are the variables or the class that store the objects
    of module-level code, which runs once at start and whose objects are used later.
    """

    def __init__(self, module: Module, resolver: Resolver, graph: Graph) -> None:
        self._module = module
        self._resolver = resolver
        self._graph = graph
        self._runner = module.start
        self._holders: tuple[Definition, ...] = ()
        self._scope = module.scope
        self._argument_role = Role.PLAIN
        self._settled: set[ast.expr] = set()
        self._aliased: set[ast.expr] = set()
        self._on_rows: set[Definition] = set()

    def module(self) -> None:
        for statement in self._module.tree.body:
            self._runner = self._module.guarded if _is_main_guard(statement) else self._module.start
            self._visit(statement)

    def _visit(self, node: ast.AST) -> None:
        before = self._runner, self._holders, self._scope, self._argument_role
        self._scope = self._module.scopes.get(node, self._scope)
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._function(node)
            case ast.Lambda():
                self._lambda(node)
            case ast.ClassDef():
                self._class(node)
            case ast.Assign(targets=targets, value=value):
                self._assign(targets, value)
            case ast.AnnAssign(target=target, value=value):
                if value is not None:
                    self._assign([target], value)
            case ast.Call():
                self._call(node)
            case ast.Name(ctx=ast.Load()) | ast.Attribute(ctx=ast.Load()):
                self._reference(node, called=False)
            case ast.Import() | ast.ImportFrom():
                pass
            case _:
                self._visit_all(ast.iter_child_nodes(node))
        self._runner, self._holders, self._scope, self._argument_role = before

    def _visit_all(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self._visit(node)

    def _assign(self, targets: list[ast.expr], value: ast.expr) -> None:
        self._visit_all(targets)
        if self._scope is self._module.scope:
            names = (node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))
            self._holders = tuple(self._module.variables[name] for name in names if name in self._module.variables)
        # An alias is reported where it is used.
        if isinstance(value, ast.Name | ast.Attribute):
            self._aliased.add(value)
        elif isinstance(value, ast.Call) and value.args and _PARTIAL in self._resolver.names(value.func, self._scope):
            self._aliased.add(value.args[0])
        self._visit(value)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        definition = self._module.definitions[node]
        for decorator in node.decorator_list:
            self._visit(decorator)
            for target in self._resolver.targets(decorator, self._scope):
                # The wrapper that a decorator of the job returns runs with the function.
                if isinstance(target, Result | Definition):
                    decorating = target.definition if isinstance(target, Result) else target
                    definition.uses.append(Use(decorating, body=False, inner=True))
        self._visit_all(defaults(node))
        self._enter(definition, node.body)

    def _lambda(self, node: ast.Lambda) -> None:
        definition = self._module.definitions[node]
        if self._argument_role is Role.SERVICE:
            definition.role = Role.SERVICE
        elif self._argument_role is Role.PLAIN and definition.parent is self._runner:
            definition.parent.inner.append(definition)
        else:
            self._use(definition, called=False)
        if self._argument_role is Role.UDF:
            self._on_rows.add(definition)
        self._visit_all(defaults(node))
        self._enter(definition, [node.body])

    def _class(self, node: ast.ClassDef) -> None:
        definition = self._module.definitions[node]
        self._visit_all([*node.decorator_list, *(keyword.value for keyword in node.keywords), *node.bases])
        for base in node.bases:
            for target in self._resolver.targets(base, self._scope):
                if isinstance(target, Definition):
                    definition.uses.append(Use(target, body=True, inner=True))
        self._enter(definition, node.body)

    def _enter(self, definition: Definition, body: Iterable[ast.AST]) -> None:
        if definition.parent is not None and not isinstance(definition.node, ast.Lambda):
            definition.parent.inner.append(definition)
        if isinstance(definition.node, ast.ClassDef):
            self._holders = (definition,)
        else:
            self._runner, self._holders = definition, ()
        self._scope, self._argument_role = definition.scope, Role.PLAIN
        self._visit_all(body)

    def _call(self, node: ast.Call) -> None:
        names = self._resolver.names(node.func, self._scope)
        self._settle(node, names)
        self._reference(node.func, called=True, call=node)
        role = max([Role.UDF if _runs_on_rows(node.func) else Role.PLAIN, *map(_role_of_name, names)])
        # A helper inside such an argument decides where its own arguments run.
        if role is not Role.PLAIN or _PARTIAL not in names:
            self._argument_role = role
        self._visit_all([*node.args, *(keyword.value for keyword in node.keywords)])

    def _settle(self, node: ast.Call, names: tuple[str, ...]) -> None:
        """Remember aggregates whose order does not matter: sorted at once, or over a window."""
        if any(name.removeprefix(spark.FUNCTIONS) in spark.SORTS for name in names) and node.args:
            self._settled.add(node.args[0])
        if isinstance(node.func, ast.Attribute) and node.func.attr == "over":
            self._settled.add(node.func.value)

    def _reference(self, node: ast.expr, *, called: bool, call: ast.Call | None = None) -> None:
        """Collect a read, or a call, of a name or an attribute."""
        targets = self._refer(node, called=called)
        names = tuple(target for target in targets if isinstance(target, str))
        services = tuple(
            target
            for target in targets
            if isinstance(target, Definition) and target.role is Role.SERVICE and self._runner is not target
        )
        # Methods of DataFrames cannot be resolved to a name; the rules match the call itself.
        if call is not None or (names and node not in self._aliased):
            site = Site(
                node=call or node,
                names=names,
                called=called,
                origin=self._origin(node),
                services=services,
                settled=call in self._settled,
            )
            for owner in self._holders if self._holders and not called else (self._runner,):
                owner.sites.append(site)

    def _refer(self, node: ast.expr, *, called: bool) -> tuple[Target, ...]:
        """Collect the uses of the job's functions in a name or an attribute chain, and visit the start of the chain."""
        targets = self._resolver.targets(node, self._scope)
        for target in targets:
            if isinstance(target, Definition):
                self._use(target, called=called)
            elif isinstance(target, Result):
                self._use(target.definition, called=False, result=True)
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name | ast.Attribute):
                self._refer(node.value, called=False)
            else:
                self._visit(node.value)
        elif not isinstance(node, ast.Name):
            self._visit(node)
        return targets

    def _use(self, target: Definition, *, called: bool, result: bool = False) -> None:
        """Record that `target`, or only its result, is called or passed on."""
        passes = Use(target, body=not (called or result), inner=True)
        if self._argument_role is Role.UDF:
            self._graph.row_functions.append(passes)
        elif self._argument_role is Role.PLAIN and self._holders:
            for holder in self._holders:
                holder.uses.append(passes)
        elif self._argument_role is Role.PLAIN:
            # A function that returns an inner function does not run it.
            if called or result or target.parent is not self._runner:
                self._runner.uses.append(Use(target, body=not result, inner=True))
            return
        if called:
            self._runner.uses.append(Use(target, body=True, inner=False))

    def _origin(self, node: ast.expr) -> Literal["local", "shared", "argument"]:
        """Return the origin of the object whose method is read."""
        while isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                return "shared"
            node = node.value
        if not isinstance(node, ast.Name):
            return "local"
        bound = self._scope.find(node.id)
        if bound is None:
            return "local"
        where, bindings = bound
        if any(isinstance(binding, Annotated) for binding in bindings):
            return "argument"
        if any(isinstance(binding, Imported) for binding in bindings) and where.kind == "module":
            return "shared"
        here = self._scope.function()
        while here.owner and isinstance(here.owner.node, ast.Lambda) and here.owner not in self._on_rows:
            if where.function() is here or here.parent is None:
                break
            here = here.parent.function()  # a lambda runs with its enclosing function
        return "local" if where.function() is here else "shared"


def _runs_on_rows(function: ast.expr) -> bool:
    """Whether this is ``df.mapInArrow`` or a similar method, or ``spark.udf.register``."""
    if not isinstance(function, ast.Attribute):
        return False
    if function.attr in spark.PYTHON_METHODS:
        return True
    return function.attr == "register" and isinstance(function.value, ast.Attribute) and function.value.attr == "udf"


def _is_main_guard(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Compare)
        and isinstance(node.test.left, ast.Name)
        and node.test.left.id == "__name__"
    )
