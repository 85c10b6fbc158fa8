"""Follows DataFrames through a job function, and finds the UDFs that are used after a shuffle."""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from clonos.lint import spark
from clonos.lint.names import Definition, Module, Role, Scope
from clonos.lint.resolve import Resolver

_DEEPEST = 8
_MOST_RESULTS = 10_000  # a few lines of hostile code can ask for more than any machine computes
_FRAME_TYPES = frozenset({"pyspark.sql.DataFrame()"})


@dataclass(frozen=True, slots=True)
class Shuffle:
    """A DataFrame method after which rows may arrive in another order, and the line of its call."""

    method: str
    line: int


@dataclass(frozen=True, slots=True)
class Flow:
    """The properties of a value in a job's code, as far as the linter can derive them."""

    shuffle: Shuffle | None = None  # the first shuffle of the value's rows; None if there is none
    # Functions (such as UDFs) that compute the value, or to which it refers.
    functions: frozenset[Definition] = frozenset()
    frame: bool = False  # whether the value is a DataFrame
    context: bool = False  # whether the value is the `JobContext`, the argument of a job function

    def __or__(self, other: Flow) -> Flow:
        return Flow(
            self.shuffle or other.shuffle,
            self.functions | other.functions,
            self.frame or other.frame,
            self.context or other.context,
        )


_NOTHING = Flow()
_NO_VALUES: Mapping[str, Flow] = {}


class Dataflow:
    """Follows the DataFrames of a job through its code."""

    def __init__(self, resolver: Resolver) -> None:
        self.resolver = resolver  # resolves names
        self._modules: dict[Module, dict[str, Flow]] = {}
        self._running: list[Definition] = []
        self._results: dict[Hashable, Flow] = {}
        self.after: dict[Definition, Shuffle] = {}  # function that runs on rows after a shuffle → that shuffle
        # Call of a method in `spark.FIRST_ROWS` on a DataFrame → its module.
        self.first_rows: dict[ast.Call, Module] = {}
        self.samples: dict[ast.Call, Module] = {}  # call of ``sample`` or ``randomSplit`` on a DataFrame → its module

    def modules(self, modules: Iterable[Module]) -> None:
        """Follow the DataFrames in the module-level code of `modules`."""
        for module in modules:
            self._module(module)

    def _module(self, module: Module) -> dict[str, Flow]:
        if module not in self._modules:
            values: dict[str, Flow] = {}
            self._modules[module] = values
            _Statements(self, module.scope, values).run(module.tree.body)
        return self._modules[module]

    def function(
        self,
        definition: Definition,
        positional: Sequence[Flow] = (),
        named: Mapping[str, Flow] = _NO_VALUES,
        around: Mapping[str, Flow] = _NO_VALUES,
    ) -> Flow:
        """Analyse a call of `definition` without running it, record the findings in it, and return the `Flow` of its
        result.

        The other arguments are what is known about the arguments, and about the variables of the enclosing function.
        """
        node = definition.node
        if (
            node is None
            or isinstance(node, ast.ClassDef)
            or definition in self._running
            or len(self._running) >= _DEEPEST
        ):
            return _NOTHING
        key = definition, len(self._running), (*positional,), frozenset(named.items()), frozenset(around.items())
        if key in self._results or len(self._results) >= _MOST_RESULTS:
            return self._results.get(key, _NOTHING)
        self._results[key] = _NOTHING
        values = dict(around)
        arguments = [*node.args.posonlyargs, *node.args.args]
        method = definition.parent is not None and isinstance(definition.parent.node, ast.ClassDef)
        for index, argument in enumerate([*arguments, *node.args.kwonlyargs]):
            value = _NOTHING
            position = index - method
            if 0 <= position < len(positional) and index < len(arguments):
                value = positional[position]
            value |= named.get(argument.arg, _NOTHING)
            if argument.annotation is not None:
                types = self.resolver.names(ast.Name(argument.arg, ast.Load()), definition.scope)
                value |= Flow(frame=not _FRAME_TYPES.isdisjoint(types))
            values[argument.arg] = value
        if definition.role is Role.JOB and arguments:
            values[arguments[0].arg] = Flow(context=True)
        self._running.append(definition)
        try:
            statements = _Statements(self, definition.scope, values)
            if isinstance(node, ast.Lambda):
                statements.result = statements.value(node.body)
            else:
                statements.run(node.body)
            self._results[key] = statements.result
            return statements.result
        finally:
            self._running.pop()

    def of_name(self, name: ast.expr, scope: Scope) -> Flow:
        """Return the properties of the value of a name that is not bound in the current function."""
        flow = _NOTHING
        for target in self.resolver.targets(name, scope):
            if isinstance(target, Definition):
                if target.node is None:
                    flow |= self._module(target.module).get(target.name, _NOTHING)
                elif not isinstance(target.node, ast.ClassDef):
                    flow |= Flow(functions=frozenset({target}))
        return flow

    def called(
        self, function: Definition, positional: list[Flow], named: Mapping[str, Flow], statements: _Statements
    ) -> Flow:
        """Return the `Flow` of the value that a call of one of the job's functions returns.

        `statements` is the function body with the call: an inner function sees its variables.
        """
        if function.role is not Role.PLAIN:
            return Flow(functions=frozenset({function}))
        around = statements.values if function.parent is statements.scope.function().owner else _NO_VALUES
        return self.function(function, positional, named, around)


class _Statements:
    """Follows the statements of one function in order. Branches are merged, and a loop runs once."""

    def __init__(self, flows: Dataflow, scope: Scope, values: dict[str, Flow]) -> None:
        self._flows = flows
        self.scope = scope
        self.values = values
        self.result = _NOTHING
        self._branches = 0

    def run(self, statements: Iterable[ast.stmt]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(target, value)
            case ast.AnnAssign(target=target, value=value) | ast.AugAssign(target=target, value=value):
                if value is not None:
                    self._assign(target, value)
            case ast.Return(value=value):
                if value is not None:
                    self.result |= self.value(value)
            case ast.For(target=target, iter=source, body=body, orelse=rest):
                self._bind(target, self.value(source))
                self._branch(body, rest)
            case ast.If(test=test, body=body, orelse=rest) | ast.While(test=test, body=body, orelse=rest):
                self.value(test)
                self._branch(body, rest)
            case ast.With(items=items, body=body):
                for item in items:
                    self.value(item.context_expr)
                self.run(body)
            case ast.Try(body=body, handlers=handlers, orelse=rest, finalbody=last):
                self._branch(body, *(handler.body for handler in handlers), rest)
                self.run(last)
            case ast.Expr(value=value):
                self.value(value)

    def _branch(self, *bodies: list[ast.stmt]) -> None:
        self._branches += 1
        for body in bodies:
            self.run(body)
        self._branches -= 1

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for element, part in zip(target.elts, value.elts, strict=True):
                self._assign(element, part)
        else:
            self._bind(target, self.value(value))

    def _bind(self, target: ast.expr, value: Flow) -> None:
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                before = self.values.get(node.id, _NOTHING) if self._branches else _NOTHING
                self.values[node.id] = before | value

    def value(self, node: ast.expr) -> Flow:
        match node:
            case ast.Name(id=name):
                return self.values[name] if name in self.values else self._flows.of_name(node, self.scope)
            case ast.Call():
                return self._call(node)
            case ast.Attribute(value=value, attr="readStream" | "read"):
                return self.value(value) | Flow(frame=True)
            case ast.Attribute(value=value):
                return self.value(value) | self._flows.of_name(node, self.scope)
            case ast.Lambda():
                definition = self.scope.module.definitions.get(node)
                return Flow(functions=frozenset({definition})) if definition else _NOTHING
            case ast.Constant():
                return _NOTHING
        flow = _NOTHING
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                flow |= self.value(child)
            elif isinstance(child, ast.comprehension):
                flow |= self.value(child.iter)
        return flow

    def _call(self, node: ast.Call) -> Flow:
        function = node.func
        receiver = self.value(function.value) if isinstance(function, ast.Attribute) else _NOTHING
        method = function.attr if isinstance(function, ast.Attribute) else ""
        own = (
            list(self._flows.of_name(function, self.scope).functions)
            if isinstance(function, ast.Name | ast.Attribute)
            else []
        )
        # Each argument is evaluated once: twice would take exponential time for nested calls.
        positional = [self.value(argument) for argument in node.args]
        keywords = [(keyword.arg, self.value(keyword.value)) for keyword in node.keywords]
        named = {name: value for name, value in keywords if name is not None}
        values = [*positional, *(value for _, value in keywords)]
        arguments = _merged(values)
        if own and not receiver.frame:
            result = _NOTHING
            for definition in own:
                result |= self._flows.called(definition, positional, named, self)
            return result | arguments if own[0].role is Role.UDF else result
        if receiver.context and method == "source":
            return Flow(frame=True)
        if "clonos.source" in self._flows.resolver.names(function, self.scope):
            return Flow(frame=True)
        frame = receiver.frame or method in spark.FRAME_METHODS
        if not frame:
            called = self.value(function) if not isinstance(function, ast.Attribute) else receiver
            return Flow(arguments.shuffle or called.shuffle, arguments.functions | called.functions)
        shuffle = receiver.shuffle or arguments.shuffle
        if method in spark.SHUFFLES and not _is_broadcast_join(method, node):
            shuffle = shuffle or Shuffle(method, (function.end_lineno or node.lineno))
        if receiver.shuffle is not None:
            for definition in _merged(value for value in values if not value.frame).functions:
                self._flows.after.setdefault(definition, receiver.shuffle)
        if method in spark.SAMPLES and receiver.frame:
            self._flows.samples.setdefault(node, self.scope.module)
        count = len(node.args) + len(node.keywords)
        if method in spark.FIRST_ROWS and receiver.frame and count > spark.FIRST_ROWS[method]:
            self._flows.first_rows.setdefault(node, self.scope.module)
        if method == "transform":
            for definition in arguments.functions:
                result = self._flows.function(definition, [receiver])
                shuffle = shuffle or result.shuffle
        return Flow(shuffle, frame=True)


def _merged(values: Iterable[Flow]) -> Flow:
    return functools.reduce(operator.or_, values, _NOTHING)


def _is_broadcast_join(method: str, node: ast.Call) -> bool:
    """Whether this is a join that does not shuffle the rows of its left side."""
    if method != "join" or not node.args or not isinstance(node.args[0], ast.Call):
        return False
    function = node.args[0].func
    return (function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")) == "broadcast"
