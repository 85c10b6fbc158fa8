"""The rules, applied to what each piece of code calls."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from clonos.lint import calls, spark, sql
from clonos.lint.floats import is_float
from clonos.lint.names import Assigned, Definition, Scope, Site
from clonos.lint.reach import Place
from clonos.lint.resolve import Resolver
from clonos.lint.rules import RULES, Severity

# What is made of them asks again, or draws on, with each call of a method.
_CLIENTS = frozenset({"CL002", "CL004", "CL006"})

_MILD_AT_START = frozenset({"CL001", "CL002", "CL003", "CL004", "CL005", "CL006", "CL007", "CL010"})


@dataclass(frozen=True, slots=True)
class Breach:
    """A rule is broken.

    Attributes:
        node: Where.
        code: Which rule.
        severity: How bad it is at this place.
        place: Where the code runs.
        text: What is broken, if it is not the text of `node`.
        more: What else is known.
    """

    node: ast.expr
    code: str
    severity: Severity
    place: Place
    text: str = ""
    more: str = ""


class Checker:
    """Applies the rules.

    Args:
        resolver: Looks names up.
        floats: Columns known to hold floating-point numbers.
    """

    def __init__(self, resolver: Resolver, floats: frozenset[str]) -> None:
        self._resolver = resolver
        self._floats = floats

    def breaches(self, definition: Definition, place: Place) -> Iterator[Breach]:
        """What `definition` does at `place` that makes a replay differ."""
        for site in definition.sites:
            yield from self._python(site, definition, place)
            if isinstance(site.node, ast.Call):
                yield from self._spark(site, site.node, definition.scope, place)

    def _python(self, site: Site, definition: Definition, place: Place) -> Iterator[Breach]:
        for name in site.names:
            found = self._code(name, site, definition.scope)
            if found is not None:
                code, more = found
                if _matters(code, name, place):
                    yield _breach(site.node, code, place, more)
                    return
        if site.called and site.answered and place in (Place.START, Place.JOB):
            yield _breach(site.node, "CL010", place, "")

    def _code(self, name: str, site: Site, scope: Scope) -> tuple[str, str] | None:
        node = site.node
        if not isinstance(node, ast.Call):
            if name in calls.VALUES:
                return calls.VALUES[name], ""
            handed = calls.code_of(name)
            return (handed, "handed on by name") if handed in calls.BY_NAME and not _is_type(name) else None
        if name in calls.WITHOUT_ARGUMENTS:
            few = len(node.args) + len(node.keywords) <= calls.WITHOUT_ARGUMENTS[name]
            return ("CL001", "without a time it reads the clock") if few else None
        if name in calls.NOW_TEXT:
            return ("CL001", "") if _is_now(node) else None
        if name in calls.GENERATORS:
            return self._generator(node, scope)
        if name in calls.LISTS_OF_A_SET:
            return ("CL009", "") if node.args and self._is_set(node.args[0], scope) else None
        held, dot, method = name.partition("().")
        if dot and "." not in method:
            asked = self._held(held, method, site, node)
            if asked is not None:
                return asked
        code = calls.code_of(name)
        if code == "CL009" and node.args and _is_number(node.args[0]):
            return None
        return (code, "") if code else None

    def _generator(self, node: ast.Call, scope: Scope) -> tuple[str, str] | None:
        seed = node.args[0] if node.args else next((one.value for one in node.keywords), None)
        if seed is None or (isinstance(seed, ast.Constant) and seed.value is None):
            return "CL002", "it has no seed"
        if scope.function().kind == "module":
            return "CL002", "rows share it, and a replay finds it in another state"
        return None

    def _held(self, held: str, method: str, site: Site, node: ast.Call) -> tuple[str, str] | None:
        """A method of a client, a generator or a frame."""
        if method in calls.QUIET_METHODS:
            return None
        if held in calls.FRAMES and method == "sample":
            return None if any(one.arg == "random_state" for one in node.keywords) else ("CL002", "no random_state=")
        if held in calls.GENERATORS and site.held == "shared":
            return "CL002", "rows share the generator, and a replay finds it in another state"
        code = calls.code_of(held)
        return (code, "") if code in _CLIENTS and site.held != "made" else None

    def _is_set(self, node: ast.expr, scope: Scope) -> bool:
        if isinstance(node, ast.Set | ast.SetComp):
            return True
        names = self._resolver.names(node.func, scope) if isinstance(node, ast.Call) else ()
        return not calls.SETS.isdisjoint(names)

    def _spark(self, site: Site, node: ast.Call, scope: Scope, place: Place) -> Iterator[Breach]:
        for name in site.names:
            if name.startswith(spark.FUNCTIONS):
                code = self._function(name.removeprefix(spark.FUNCTIONS), node, settled=site.settled)
                if code is not None:
                    yield _breach(node, code, place, "")
        function = node.func
        method = function.attr if isinstance(function, ast.Attribute) else ""
        if method == "join" and isinstance(function, ast.Attribute) and isinstance(function.value, ast.Constant):
            if node.args and self._is_set(node.args[0], scope):
                yield _breach(node, "CL009", place, "")
        elif method == "agg":
            yield from self._dictionary(node, place)
        elif method in spark.SUMS and not site.names:
            columns = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            if any(column.rpartition(".")[2] in self._floats for column in columns):
                yield _breach(node, "CL105", place, "")
        if method in spark.SQL_METHODS or f"{spark.FUNCTIONS}expr" in site.names:
            for argument in node.args:
                yield from self._sql(argument, node, scope, place)

    def _function(self, name: str, node: ast.Call, *, settled: bool) -> str | None:
        if name in spark.SUMS:
            return "CL105" if node.args and is_float(node.args[0], self._floats) else None
        code = spark.CODES.get(name)
        given = len(node.args) + len(node.keywords)
        if name in spark.SEEDED and given > spark.SEEDED[name]:
            return "CL102"
        if code == "CL103" and settled:
            return None
        if name == "mode" and (given > 1 or settled):
            return None
        return code

    def _dictionary(self, node: ast.Call, place: Place) -> Iterator[Breach]:
        """``agg({"column": "first"})``."""
        if len(node.args) != 1 or not isinstance(node.args[0], ast.Dict):
            return
        for key, value in zip(node.args[0].keys, node.args[0].values, strict=True):
            if not isinstance(value, ast.Constant) or not isinstance(value.value, str):
                continue
            column = key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else ""
            for one in sql.calls(f"{value.value}({column or '_'})", self._floats):
                yield _breach(value, one.code, place, "", text=one.text)

    def _sql(self, argument: ast.expr, call: ast.Call, scope: Scope, place: Place) -> Iterator[Breach]:
        pieces = argument.elts if isinstance(argument, ast.List | ast.Tuple) else [argument]
        for piece in pieces:
            text = self._text(piece, scope, 0)
            if text:
                here = piece if isinstance(piece, ast.Constant | ast.JoinedStr) else call
                for one in sql.calls(text, self._floats):
                    yield _breach(here, one.code, place, "", text=one.text)

    def _text(self, node: ast.expr, scope: Scope, depth: int) -> str:
        """The text of an expression as far as it is written down; what is filled in is ``_``."""
        match node:
            case ast.Constant(value=str(text)):
                return text
            case ast.JoinedStr(values=values):
                return "".join(self._text(one, scope, depth) or "_" for one in values)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return f"{self._text(left, scope, depth) or '_'}{self._text(right, scope, depth) or '_'}"
            case ast.BinOp(left=left, op=ast.Mod()):
                return self._text(left, scope, depth)
            case ast.Call(func=ast.Attribute(value=value, attr="format" | "strip")):
                return self._text(value, scope, depth)
            case ast.Call(func=ast.Attribute(attr="dedent") | ast.Name(id="dedent"), args=[text]):
                return self._text(text, scope, depth)
            case ast.Name(id=name) if depth < 3:
                found = scope.find(name)
                for binding in found[1] if found else ():
                    if isinstance(binding, Assigned):
                        return self._text(binding.value, binding.scope, depth + 1)
        return ""


def sample_code(node: ast.Call) -> str:
    """The rule that a DataFrame's ``sample`` or ``randomSplit`` breaks."""
    method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    given = len(node.args)
    if (
        method == "sample"
        and given
        and not (isinstance(node.args[0], ast.Constant) and node.args[0].value in (True, False, None))
    ):
        given += 1  # sample(fraction, seed) leaves the first one out
    seeded = any(one.arg == "seed" for one in node.keywords) or given > spark.SAMPLES[method]
    return "CL102" if seeded else "CL101"


def is_keyless(site: Site) -> bool:
    """A derived service without a key."""
    node = site.node
    if not isinstance(node, ast.Call) or calls.KEYED.isdisjoint(site.names):
        return False
    key = node.args[0] if node.args else next((one.value for one in node.keywords), None)
    return key is None or (isinstance(key, ast.Constant) and key.value is None)


def _matters(code: str, name: str, place: Place) -> bool:
    if code == "CL008":
        return place is Place.ROWS
    if code == "CL010":
        return place in (Place.START, Place.JOB)
    # A client made at start asks nothing; the calls of its methods on rows are found.
    return not (code == "CL006" and place is Place.START and name.rpartition(".")[2] not in _ASKS_AT_ONCE)


_ASKS_AT_ONCE = frozenset(
    {"get", "post", "put", "patch", "delete", "head", "options", "request", "stream", "urlopen", "urlretrieve"}
)


def _breach(node: ast.expr, code: str, place: Place, more: str, text: str = "") -> Breach:
    severity = RULES[code].severity
    if place is Place.START and code in _MILD_AT_START:
        severity = Severity.WARNING
    return Breach(node, code, severity, place, text, more)


def _is_type(name: str) -> bool:
    return name.rpartition(".")[2][:1].isupper()


def _is_now(node: ast.Call) -> bool:
    first = node.args[0] if node.args else None
    return isinstance(first, ast.Constant) and first.value in ("now", "today")


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int)
