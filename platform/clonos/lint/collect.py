"""What each function of a job calls, hands on and refers to: the sites that rules look at, and the call graph."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from clonos.lint import spark
from clonos.lint.names import Annotated, Definition, Imported, Module, Role, Site, Use
from clonos.lint.resolve import Made, Resolver, Target

_NOT_UDF_MAKERS = frozenset(
    {
        "clonos.Job",
        "clonos.JobContext",
        "clonos.clock",
        "clonos.epoch",
        "clonos.exactly_once",
        "clonos.job",
        "clonos.load_job",
        "clonos.now",
        "clonos.param",
        "clonos.random",
        "clonos.rng",
        "clonos.service",
        "clonos.source",
        "clonos.spark_conf",
        "clonos.uuid4",
    }
)

_PARTIAL = "functools.partial"

Spot = Literal["code", "udf", "service"]


@dataclass(slots=True)
class Graph:
    """The call graph of a job.

    Attributes:
        definitions: Every function, class and module-level variable.
        handed: What is handed to Spark or `clonos` to be run on rows.
    """

    definitions: list[Definition] = field(default_factory=list)
    handed: list[Use] = field(default_factory=list)


def collect(modules: Iterable[Module], resolver: Resolver) -> Graph:
    """Fill sites and uses of everything in `modules`."""
    graph = Graph()
    for module in modules:
        graph.definitions += [*module.definitions.values(), *module.variables.values()]
        _Collector(module, resolver, graph).module()
    return graph


def is_service_maker(name: str) -> bool:
    """Whether a call of `name` makes a causal service of its argument."""
    return name in {"clonos.service", "clonos.service()"}


def is_udf_maker(name: str) -> bool:
    """Whether a call of `name` makes a UDF of its argument."""
    made = name.removesuffix("()")
    if made.startswith("clonos."):
        return made.count(".") == 1 and "()" not in made and made not in _NOT_UDF_MAKERS
    return made in spark.UDF_MAKERS


class _Collector:
    """Walks one file.

    `runner` runs the code that is being read; `holders` are the variables or the class that keep what is made there
    (outside of functions, where code runs once at start and is used later).
    """

    def __init__(self, module: Module, resolver: Resolver, graph: Graph) -> None:
        self._module = module
        self._resolver = resolver
        self._graph = graph
        self._runner = module.start
        self._holders: tuple[Definition, ...] = ()
        self._scope = module.scope
        self._spot: Spot = "code"
        self._settled: set[ast.expr] = set()
        self._aliased: set[ast.expr] = set()
        self._on_rows: set[Definition] = set()

    def module(self) -> None:
        for statement in self._module.tree.body:
            if _is_main_guard(statement):
                self._runner = self._module.guarded
                self._visit(statement)
                self._runner = self._module.start
            else:
                self._visit(statement)

    def _visit(self, node: ast.AST) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._function(node)
            case ast.Lambda():
                self._lambda(node)
            case ast.ClassDef():
                self._class(node)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                self._comprehension(node)
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
                self._children(node)

    def _children(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            self._visit(child)

    def _assign(self, targets: list[ast.expr], value: ast.expr) -> None:
        for target in targets:
            self._visit(target)
        before = self._holders
        if self._scope is self._module.scope:
            names = (one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name))
            self._holders = tuple(self._module.variables[name] for name in names if name in self._module.variables)
        # Of an alias it matters where it is used.
        if isinstance(value, ast.Name | ast.Attribute):
            self._aliased.add(value)
        elif isinstance(value, ast.Call) and value.args and _PARTIAL in self._resolver.names(value.func, self._scope):
            self._aliased.add(value.args[0])
        self._visit(value)
        self._holders = before

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        made = self._module.definitions[node]
        for decorator in node.decorator_list:
            self._visit(decorator)
            targets = self._resolver.targets(decorator, self._scope)
            made.role = max((made.role, *map(self._role, targets)), key=lambda role: role.value)
            for target in targets:
                # The wrapper that an own decorator makes runs with the function.
                if isinstance(target, Made | Definition):
                    made.uses.append(Use(target.definition if isinstance(target, Made) else target, False, True))
        for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
            self._visit(default)
        self._enter(made, node.body)

    def _role(self, target: Target) -> Role:
        if isinstance(target, str):
            if is_service_maker(target):
                return Role.SERVICE
            if target == "clonos.job()":
                return Role.JOB
            return Role.UDF if is_udf_maker(target) else Role.PLAIN
        decorator = target.definition if isinstance(target, Made) else target
        if not isinstance(decorator, Definition) or decorator.node is None:
            return Role.PLAIN
        # A decorator of the job's own, around @clonos.service or @clonos.udf.
        role = Role.PLAIN
        for inner in ast.walk(decorator.node):
            if isinstance(inner, ast.Name | ast.Attribute):
                for name in self._resolver.names(inner, decorator.scope):
                    if is_service_maker(name):
                        return Role.SERVICE
                    role = Role.UDF if is_udf_maker(name) else role
        return role

    def _lambda(self, node: ast.Lambda) -> None:
        made = self._module.definitions[node]
        if self._spot == "service":
            made.role = Role.SERVICE
        elif self._spot == "code" and made.parent is self._runner:
            made.parent.inner.append(made)
        else:
            self._use(made, called=False)
        if self._spot == "udf":
            self._on_rows.add(made)
        for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
            self._visit(default)
        self._enter(made, [node.body])

    def _class(self, node: ast.ClassDef) -> None:
        made = self._module.definitions[node]
        for decorator in node.decorator_list:
            self._visit(decorator)
            if any(map(is_udf_maker, self._resolver.names(decorator, self._scope))):
                made.role = Role.UDF  # a UDTF, say
        for keyword in node.keywords:
            self._visit(keyword.value)
        for base in node.bases:
            self._visit(base)
            for target in self._resolver.targets(base, self._scope):
                if isinstance(target, Definition):
                    made.uses.append(Use(target, True, True))
        if made.parent is not None:
            made.parent.inner.append(made)
        before = self._scope, self._holders, self._spot
        self._scope, self._holders, self._spot = made.scope, (made,), "code"
        for statement in node.body:
            self._visit(statement)
        self._scope, self._holders, self._spot = before

    def _enter(self, made: Definition, body: Iterable[ast.AST]) -> None:
        if made.parent is not None and isinstance(made.node, ast.FunctionDef | ast.AsyncFunctionDef):
            made.parent.inner.append(made)
        before = self._runner, self._holders, self._scope, self._spot
        self._runner, self._holders, self._scope, self._spot = made, (), made.scope, "code"
        for node in body:
            self._visit(node)
        self._runner, self._holders, self._scope, self._spot = before

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        self._visit(node.generators[0].iter)
        before, self._scope = self._scope, self._module.scopes[node]
        for index, generator in enumerate(node.generators):
            if index:
                self._visit(generator.iter)
            for condition in generator.ifs:
                self._visit(condition)
        for part in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
            self._visit(part)
        self._scope = before

    def _call(self, node: ast.Call) -> None:
        names = self._resolver.names(node.func, self._scope)
        self._settle(node, names)
        self._reference(node.func, called=True, call=node)
        before = self._spot
        if any(map(is_service_maker, names)):
            self._spot = "service"
        elif any(map(is_udf_maker, names)) or _runs_on_rows(node.func):
            self._spot = "udf"
        elif _PARTIAL not in names:
            # A function that is an argument of a helper in such a spot is the helper's affair.
            self._spot = "code"
        for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
            self._visit(argument)
        self._spot = before

    def _settle(self, node: ast.Call, names: tuple[str, ...]) -> None:
        """Note aggregates whose order does not matter: sorted at once, or over a window."""
        if any(name.removeprefix(spark.FUNCTIONS) in spark.SORTS for name in names) and node.args:
            self._settled.add(node.args[0])
        if isinstance(node.func, ast.Attribute) and node.func.attr == "over":
            self._settled.add(node.func.value)

    def _reference(self, node: ast.expr, *, called: bool, call: ast.Call | None = None) -> None:
        """A name or an attribute is read, and perhaps called."""
        targets = self._refer(node, called=called)
        names = tuple(one for one in targets if isinstance(one, str))
        services = tuple(
            one for one in targets if isinstance(one, Definition) and self._service(one) and self._runner is not one
        )
        # Methods of Spark's frames have no name that could be told; the rules know them by the call.
        if call is not None or (names and node not in self._aliased):
            site = Site(
                node=call or node,
                names=names,
                called=called,
                held=self._held(node),
                answered=services,
                settled=call in self._settled,
            )
            keepers = self._holders if self._holders and not called else (self._runner,)
            for keeper in keepers:
                keeper.sites.append(site)

    def _service(self, definition: Definition) -> bool:
        # Roles of functions further down in the file are not known yet: look at the decorators.
        node = definition.node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or definition.scope.parent is None:
            return False
        outside = definition.scope.parent
        return any(is_service_maker(name) for one in node.decorator_list for name in self._resolver.names(one, outside))

    def _refer(self, node: ast.expr, *, called: bool) -> tuple[Target, ...]:
        """Note the uses of own functions in a name or an attribute chain; visit what it starts from."""
        targets = self._resolver.targets(node, self._scope)
        for target in targets:
            if isinstance(target, Definition):
                self._use(target, called=called)
            elif isinstance(target, Made):
                self._use_made(target.definition)
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name | ast.Attribute):
                self._refer(node.value, called=False)
            else:
                self._visit(node.value)
        elif not isinstance(node, ast.Name):
            self._visit(node)
        return targets

    def _use(self, target: Definition, *, called: bool) -> None:
        runner = self._runner.uses
        if self._spot == "service":
            if called:
                runner.append(Use(target, body=True, inner=False))
        elif self._spot == "udf":
            self._graph.handed.append(Use(target, body=not called, inner=True))
            if called:
                runner.append(Use(target, body=True, inner=False))
        elif self._holders:
            for holder in self._holders:
                holder.uses.append(Use(target, body=not called, inner=True))
            if called:
                runner.append(Use(target, body=True, inner=False))
        elif called or target.parent is not self._runner:
            runner.append(Use(target, body=True, inner=True))
        # A function that hands out one made in it does not run it.

    def _use_made(self, target: Definition) -> None:
        use = Use(target, body=False, inner=True)
        if self._spot == "service":
            return
        if self._spot == "udf":
            self._graph.handed.append(use)
        elif self._holders:
            for holder in self._holders:
                holder.uses.append(use)
        else:
            self._runner.uses.append(use)

    def _held(self, node: ast.expr) -> Literal["made", "shared", "given"]:
        """Where the object comes from whose method is read."""
        while isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                return "shared"
            node = node.value
        if not isinstance(node, ast.Name):
            return "made"
        found = self._scope.find(node.id)
        if found is None:
            return "made"
        where, bindings = found
        if any(isinstance(one, Annotated) for one in bindings):
            return "given"
        if any(isinstance(one, Imported) for one in bindings) and where.kind == "module":
            return "shared"
        here = self._scope.function()
        while here.owner and isinstance(here.owner.node, ast.Lambda) and here.owner not in self._on_rows:
            if where.function() is here or here.parent is None:
                break
            here = here.parent.function()  # a lambda runs with the function it is in
        return "made" if where.function() is here else "shared"


def _runs_on_rows(function: ast.expr) -> bool:
    """``df.mapInArrow`` and its like, or ``spark.udf.register``."""
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
