"""How frames flow through a job function, as far as its text tells: which UDFs are used after a shuffle."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from clonos.lint import spark
from clonos.lint.names import Definition, Module, Role, Scope
from clonos.lint.resolve import Resolver

_DEEPEST = 8
_FRAME_TYPES = frozenset({"pyspark.sql.DataFrame()"})


@dataclass(frozen=True, slots=True)
class Shuffle:
    """A method after which rows may come in another order, and its line."""

    method: str
    line: int


@dataclass(frozen=True, slots=True)
class Flow:
    """What is known of a value.

    Attributes:
        shuffle: The shuffle that its rows went through.
        functions: Functions that a column computes, or that the value stands for.
        frame: It is a DataFrame.
        context: It is the argument of a job function.
    """

    shuffle: Shuffle | None = None
    functions: frozenset[Definition] = frozenset()
    frame: bool = False
    context: bool = False

    def __or__(self, other: Flow) -> Flow:
        return Flow(
            self.shuffle or other.shuffle,
            self.functions | other.functions,
            self.frame or other.frame,
            self.context or other.context,
        )


_NOTHING = Flow()


class Dataflow:
    """Follows the frames of a job.

    Attributes:
        after: Functions that are used after a shuffle.
        samples: Calls of ``sample`` and ``randomSplit`` on DataFrames.
    """

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._modules: dict[Module, dict[str, Flow]] = {}
        self._running: list[Definition] = []
        self.after: dict[Definition, Shuffle] = {}
        self.samples: dict[ast.Call, Module] = {}

    def modules(self, modules: Iterable[Module]) -> None:
        """Follow the code of the modules themselves."""
        for module in modules:
            self._module(module)

    def function(self, definition: Definition) -> None:
        """Follow a function whose arguments are not known."""
        self._function(definition, [], {})

    def _module(self, module: Module) -> dict[str, Flow]:
        if module not in self._modules:
            values: dict[str, Flow] = {}
            self._modules[module] = values
            _Statements(self, module.scope, values).run(module.tree.body)
        return self._modules[module]

    def _function(
        self,
        definition: Definition,
        positional: list[Flow],
        named: Mapping[str, Flow],
        around: Mapping[str, Flow] | None = None,
    ) -> Flow:
        node = definition.node
        if (
            node is None
            or isinstance(node, ast.ClassDef)
            or definition in self._running
            or len(self._running) >= _DEEPEST
        ):
            return _NOTHING
        values = dict(around or {})
        arguments = [*node.args.posonlyargs, *node.args.args]
        method = definition.parent is not None and isinstance(definition.parent.node, ast.ClassDef)
        for index, argument in enumerate([*arguments, *node.args.kwonlyargs]):
            value = _NOTHING
            place = index - method
            if 0 <= place < len(positional) and index < len(arguments):
                value = positional[place]
            value |= named.get(argument.arg, _NOTHING)
            if argument.annotation is not None:
                types = self._resolver.names(ast.Name(argument.arg, ast.Load()), definition.scope)
                value |= Flow(frame=not _FRAME_TYPES.isdisjoint(types))
            values[argument.arg] = value
        if definition.role is Role.JOB and arguments:
            values[arguments[0].arg] = Flow(context=True)
        self._running.append(definition)
        try:
            statements = _Statements(self, definition.scope, values)
            if isinstance(node, ast.Lambda):
                return statements.value(node.body)
            statements.run(node.body)
            return statements.result
        finally:
            self._running.pop()

    def of_name(self, name: ast.expr, scope: Scope) -> Flow:
        """What a name that is bound elsewhere stands for."""
        found = _NOTHING
        for target in self._resolver.targets(name, scope):
            if isinstance(target, Definition):
                if target.node is None:
                    found |= self._module(target.module).get(target.name, _NOTHING)
                elif not isinstance(target.node, ast.ClassDef):
                    found |= Flow(functions=frozenset({target}))
        return found

    def names(self, node: ast.expr, scope: Scope) -> tuple[str, ...]:
        """The dotted names that an expression may stand for."""
        return self._resolver.names(node, scope)

    def called(self, function: Definition, call: ast.Call, statements: _Statements) -> Flow:
        """What a call of an own function returns."""
        positional = [statements.value(one) for one in call.args]
        named = {one.arg: statements.value(one.value) for one in call.keywords if one.arg}
        if function.role is not Role.PLAIN:
            return Flow(functions=frozenset({function}))
        around = statements.values if function.parent is statements.scope.function().owner else None
        return self._function(function, positional, named, around)

    def transformed(self, frame: Flow, function: Definition) -> Flow:
        """``df.transform(function)``."""
        return self._function(function, [frame], {})


class _Statements:
    """The statements of one function, in order; a branch adds to what is known, a loop runs once."""

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
            for one, its in zip(target.elts, value.elts, strict=True):
                self._assign(one, its)
        else:
            self._bind(target, self.value(value))

    def _bind(self, target: ast.expr, value: Flow) -> None:
        for one in ast.walk(target):
            if isinstance(one, ast.Name):
                before = self.values.get(one.id, _NOTHING) if self._branches else _NOTHING
                self.values[one.id] = before | value

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
                made = self.scope.module.definitions.get(node)
                return Flow(functions=frozenset({made})) if made else _NOTHING
            case ast.Constant():
                return _NOTHING
        found = _NOTHING
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                found |= self.value(child)
            elif isinstance(child, ast.comprehension):
                found |= self.value(child.iter)
        return found

    def _call(self, node: ast.Call) -> Flow:
        function = node.func
        receiver = self.value(function.value) if isinstance(function, ast.Attribute) else _NOTHING
        method = function.attr if isinstance(function, ast.Attribute) else ""
        own = [
            one
            for one in self._flows.of_name(function, self.scope).functions
            if isinstance(function, ast.Name | ast.Attribute)
        ]
        if own and not receiver.frame:
            result = _NOTHING
            for one in own:
                result |= self._flows.called(one, node, self)
            return result | self._arguments(node) if own[0].role is Role.UDF else result
        if receiver.context and method == "source":
            return Flow(frame=True)
        if "clonos.source" in self._flows.names(function, self.scope):
            return Flow(frame=True)
        frame = receiver.frame or method in spark.FRAME_METHODS
        arguments = self._arguments(node)
        if not frame:
            called = self.value(function) if not isinstance(function, ast.Attribute) else receiver
            return Flow(arguments.shuffle or called.shuffle, arguments.functions | called.functions)
        shuffle = receiver.shuffle or arguments.shuffle
        if method in spark.SHUFFLES and not _is_broadcast_join(method, node):
            shuffle = shuffle or Shuffle(method, (function.end_lineno or node.lineno))
        if receiver.shuffle is not None:
            for one in self._arguments(node, frames=False).functions:
                self._flows.after.setdefault(one, receiver.shuffle)
        if method in spark.SAMPLES and receiver.frame:
            self._flows.samples.setdefault(node, self.scope.module)
        if method == "transform":
            for one in arguments.functions:
                result = self._flows.transformed(receiver, one)
                shuffle = shuffle or result.shuffle
        return Flow(shuffle, frame=True)

    def _arguments(self, node: ast.Call, *, frames: bool = True) -> Flow:
        found = _NOTHING
        for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
            value = self.value(argument)
            if frames or not value.frame:
                found |= value
        return found


def _is_broadcast_join(method: str, node: ast.Call) -> bool:
    """A join that leaves the rows of its left side where they are."""
    if method != "join" or not node.args or not isinstance(node.args[0], ast.Call):
        return False
    function = node.args[0].func
    return (function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")) == "broadcast"
