"""Applies the linter's rules to the calls in each function of a job."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from clonos.lint import calls, spark
from clonos.lint.floats import is_float
from clonos.lint.names import Assigned, Definition, Scope, Site
from clonos.lint.reach import Stage
from clonos.lint.resolve import Resolver
from clonos.lint.rules import RULES, Severity

# The methods of their objects send a request, or draw a number, with each call.
_CLIENTS = frozenset({"CL002", "CL004", "CL006"})

_WARNING_AT_START = frozenset({"CL001", "CL002", "CL003", "CL004", "CL005", "CL006", "CL007", "CL010"})


@dataclass(frozen=True, slots=True)
class Violation:
    """One violation of a rule, at one expression."""

    node: ast.expr  # the expression
    code: str  # code of the rule
    severity: Severity  # severity of the rule in this stage
    stage: Stage  # stage in which the code runs (on rows, in the job function, at start)
    text: str = ""  # text of the call for the report; empty: the text of `node`
    more: str = ""  # further explanation for the report


class Checker:
    """Applies the linter's rules to functions; `floats` are the names of floating-point columns."""

    def __init__(self, resolver: Resolver, floats: frozenset[str]) -> None:
        self._resolver = resolver
        self._floats = floats

    def violations(self, definition: Definition, stage: Stage) -> Iterator[Violation]:
        """Yield the violations in the function `definition`, by the rules for code that runs in `stage`."""
        for site in definition.sites:
            yield from self._python(site, definition, stage)
            if isinstance(site.node, ast.Call):
                yield from self._spark(site, site.node, definition.scope, stage)

    def _python(self, site: Site, definition: Definition, stage: Stage) -> Iterator[Violation]:
        for name in site.names:
            violation = self._code(name, site, definition.scope)
            if violation is not None:
                code, more = violation
                if _matters(code, name, stage):
                    yield _violation(site.node, code, stage, more)
                    return
        if site.called and site.services and stage in (Stage.START, Stage.JOB):
            yield _violation(site.node, "CL010", stage, "")

    def _code(self, name: str, site: Site, scope: Scope) -> tuple[str, str] | None:
        node = site.node
        if not isinstance(node, ast.Call):
            if name in calls.VALUES:
                return calls.VALUES[name], ""
            code = calls.code_of(name)
            return (code, "passed on by name") if code in calls.BY_NAME and not _is_type(name) else None
        if name in calls.WITHOUT_ARGUMENTS:
            few = len(node.args) + len(node.keywords) <= calls.WITHOUT_ARGUMENTS[name]
            return ("CL001", "without a time it reads the clock") if few else None
        if name in calls.NOW_TEXT:
            return ("CL001", "") if node.args and _constant(node.args[0]) in ("now", "today") else None
        if name in calls.GENERATORS:
            return self._generator(node, scope)
        if name in calls.LISTS_OF_A_SET:
            return ("CL009", "") if node.args and self._is_set(node.args[0], scope) else None
        owner, dot, method = name.partition("().")
        if dot and "." not in method:
            violation = self._method(owner, method, site, node)
            if violation is not None:
                return violation
        code = calls.code_of(name)
        if code == "CL009" and node.args and isinstance(_constant(node.args[0]), int):
            return None
        return (code, "") if code else None

    def _generator(self, node: ast.Call, scope: Scope) -> tuple[str, str] | None:
        if not _has_argument(node):
            return "CL002", "it has no seed"
        if scope.function().kind == "module":
            return "CL002", "rows share it, and a replay finds it in another state"
        return None

    def _method(self, owner: str, method: str, site: Site, node: ast.Call) -> tuple[str, str] | None:
        if method in calls.QUIET_METHODS:
            return None
        if owner in calls.FRAMES and method == "sample":
            return (
                None
                if any(keyword.arg == "random_state" for keyword in node.keywords)
                else ("CL002", "no random_state=")
            )
        if owner in calls.GENERATORS and site.origin == "shared":
            return "CL002", "rows share the generator, and a replay finds it in another state"
        code = calls.code_of(owner)
        return (code, "") if code in _CLIENTS and site.origin != "local" else None

    def _is_set(self, node: ast.expr, scope: Scope) -> bool:
        if isinstance(node, ast.Set | ast.SetComp):
            return True
        names = self._resolver.names(node.func, scope) if isinstance(node, ast.Call) else ()
        return not calls.SETS.isdisjoint(names)

    def _spark(self, site: Site, node: ast.Call, scope: Scope, stage: Stage) -> Iterator[Violation]:
        for name in site.names:
            if name.startswith(spark.FUNCTIONS):
                code = self._function(name.removeprefix(spark.FUNCTIONS), node, settled=site.settled)
                if code is not None:
                    yield _violation(node, code, stage, "")
        function = node.func
        method = function.attr if isinstance(function, ast.Attribute) else ""
        if method == "join" and isinstance(function, ast.Attribute) and isinstance(function.value, ast.Constant):
            if node.args and self._is_set(node.args[0], scope):
                yield _violation(node, "CL009", stage, "")
        elif method == "agg":
            yield from self._dictionary(node, stage)
        elif method in spark.SUMS and not site.names:
            columns = [column for arg in node.args if isinstance(column := _constant(arg), str)]
            if any(column.rpartition(".")[2] in self._floats for column in columns):
                yield _violation(node, "CL105", stage, "")
        if method in spark.SQL_METHODS or f"{spark.FUNCTIONS}expr" in site.names:
            for argument in node.args:
                yield from self._sql(argument, node, scope, stage)

    def _function(self, name: str, node: ast.Call, *, settled: bool) -> str | None:
        if name in spark.SUMS:
            return "CL105" if node.args and is_float(node.args[0], self._floats) else None
        code = spark.CODES.get(name)
        count = len(node.args) + len(node.keywords)
        if name in spark.SEEDED and count > spark.SEEDED[name]:
            return "CL102"
        if code == "CL103" and settled:
            return None
        if name == "mode" and (count > 1 or settled):
            return None
        return code

    def _dictionary(self, node: ast.Call, stage: Stage) -> Iterator[Violation]:
        """``agg({"column": "first"})``."""
        if len(node.args) != 1 or not isinstance(node.args[0], ast.Dict):
            return
        for key, value in zip(node.args[0].keys, node.args[0].values, strict=True):
            if isinstance(name := _constant(value), str):
                for call in spark.sql_calls(f"{name}({_constant(key) or '_'})", self._floats):
                    yield _violation(value, call.code, stage, "", text=call.text)

    def _sql(self, argument: ast.expr, call: ast.Call, scope: Scope, stage: Stage) -> Iterator[Violation]:
        pieces = argument.elts if isinstance(argument, ast.List | ast.Tuple) else [argument]
        for piece in pieces:
            text = self._text(piece, scope, 0)
            if text:
                shown = piece if isinstance(piece, ast.Constant | ast.JoinedStr) else call
                for sql_call in spark.sql_calls(text, self._floats):
                    yield _violation(shown, sql_call.code, stage, "", text=sql_call.text)

    def _text(self, node: ast.expr, scope: Scope, depth: int) -> str:
        """Return the literal text of an expression; ``_`` stands for each part that is computed."""
        match node:
            case ast.Constant(value=str(text)):
                return text
            case ast.JoinedStr(values=values):
                return "".join(self._text(value, scope, depth) or "_" for value in values)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return f"{self._text(left, scope, depth) or '_'}{self._text(right, scope, depth) or '_'}"
            case ast.BinOp(left=left, op=ast.Mod()):
                return self._text(left, scope, depth)
            case ast.Call(func=ast.Attribute(value=value, attr="format" | "strip")):
                return self._text(value, scope, depth)
            case ast.Call(func=ast.Attribute(attr="dedent") | ast.Name(id="dedent"), args=[text]):
                return self._text(text, scope, depth)
            case ast.Name(id=name) if depth < 3:
                bound = scope.find(name)
                for binding in bound[1] if bound else ():
                    if isinstance(binding, Assigned):
                        return self._text(binding.value, binding.scope, depth + 1)
        return ""


def sample_code(node: ast.Call) -> str:
    """Return the rule that ``DataFrame.sample`` or ``randomSplit`` violates: ``CL102`` if seeded, else ``CL101``."""
    method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    count = len(node.args)
    if (
        method == "sample"
        and count
        and not (isinstance(node.args[0], ast.Constant) and node.args[0].value in (True, False, None))
    ):
        count += 1  # sample(fraction, seed) omits the first argument
    seeded = any(keyword.arg == "seed" for keyword in node.keywords) or count > spark.SAMPLES[method]
    return "CL102" if seeded else "CL101"


def is_keyless(site: Site) -> bool:
    """Whether `site` is a call of ``clonos.random``, ``clonos.rng`` or ``clonos.uuid4`` without a key.

    A key identifies the row of a random draw. Without a key the draw depends on the row's position in the task, and a
    replay repeats that position only before the first shuffle.
    """
    node = site.node
    return isinstance(node, ast.Call) and not calls.KEYED.isdisjoint(site.names) and not _has_argument(node)


def _has_argument(node: ast.Call) -> bool:
    """Whether the first argument is something else than ``None``."""
    values = [*node.args, *(keyword.value for keyword in node.keywords)]
    return bool(values) and not (isinstance(values[0], ast.Constant) and values[0].value is None)


def _constant(node: ast.expr | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def _matters(code: str, name: str, stage: Stage) -> bool:
    if code == "CL008":
        return stage is Stage.ROWS
    if code == "CL010":
        return stage in (Stage.START, Stage.JOB)
    # Creating a client at start sends no request; the calls of its methods on rows are reported.
    return not (code == "CL006" and stage is Stage.START and name.rpartition(".")[2] not in _SENDS_AT_ONCE)


_SENDS_AT_ONCE = frozenset(
    {"get", "post", "put", "patch", "delete", "head", "options", "request", "stream", "urlopen", "urlretrieve"}
)


def _violation(node: ast.expr, code: str, stage: Stage, more: str, text: str = "") -> Violation:
    severity = RULES[code].severity
    if stage is Stage.START and code in _WARNING_AT_START:
        severity = Severity.WARNING
    return Violation(node, code, severity, stage, text, more)


def _is_type(name: str) -> bool:
    return name.rpartition(".")[2][:1].isupper()
