"""One run of the linter: from paths to a report."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from clonos.errors import SpecError
from clonos.lint.allow import Allow, allows
from clonos.lint.check import Breach, Checker, is_keyless, sample_code
from clonos.lint.collect import Graph, collect
from clonos.lint.dataflow import Dataflow, Shuffle
from clonos.lint.files import LIBRARIES, Sources
from clonos.lint.floats import float_columns
from clonos.lint.names import Definition, Module, Role
from clonos.lint.reach import Place, Places, only_for_services, reached
from clonos.lint.report import Finding, Report
from clonos.lint.resolve import Resolver
from clonos.lint.rules import RULES, Severity

_LONGEST = 72

_AT_START = "a job parameter (clonos.param, -p name=value), or the call inside a UDF through a causal service"


def lint(paths: Iterable[Path]) -> Report:
    """Look for what makes a replay differ. No file is imported.

    Args:
        paths: Job files and folders. With a file come the modules beside it that it imports; of a folder only files
            count that import ``clonos`` or ``pyspark``, and what those import.

    Raises:
        SpecError: A path is missing or a file is not Python.
    """
    paths = list(paths)
    try:
        return _report(Sources(paths))
    except RecursionError as error:
        raise SpecError(
            f"An expression is nested too deeply to be read, in {', '.join(map(str, paths))} or what it imports.",
            hint="split chains of more than two hundred calls.",
        ) from error


def _report(sources: Sources) -> Report:
    resolver = Resolver(sources)
    own = _of_the_job(sources)
    graph = collect(own, resolver)
    places = _places(graph, own, sources)
    checker = Checker(resolver, float_columns(own))
    found = [
        (definition.module, breach)
        for definition in [*(module.start for module in own), *(module.guarded for module in own), *graph.definitions]
        if (place := places.of(definition)) is not Place.NOWHERE
        for breach in checker.breaches(definition, place)
    ]
    found += _of_frames(resolver, graph, own, places)
    return Report(tuple(sorted(_findings(found, own))), tuple(module.path for module in own))


def _of_the_job(sources: Sources) -> list[Module]:
    """The files that run in a job: not the tools and tests that lie beside it."""
    pending = [
        module
        for path, module in sources.modules.items()
        if path in sources.named or any(one.name.partition(".")[0] in LIBRARIES for one in module.imports)
    ]
    found: dict[Path, Module] = {}
    while pending:
        module = pending.pop()
        if module.path not in found:
            found[module.path] = module
            pending += sources.imported(module)
    return [found[path] for path in sorted(found)]


def _places(graph: Graph, own: list[Module], sources: Sources) -> Places:
    places = Places(graph)
    if not places.any(Place.ROWS) and not places.any(Place.JOB):
        # A module of helpers by itself: someone's UDFs call them.
        for module in own:
            program = module.guarded.sites or module.guarded.uses
            if module.path in sources.named and not program and not _uses_spark(module):
                services = only_for_services(module.definitions.values())
                places.rows(one for one in module.definitions.values() if one.parent is None and one not in services)
    places.start(module.start for module in own)
    # `clonos run` imports the job file, so what it does as a program is another matter.
    jobs = {one.module for one in graph.definitions if one.role is Role.JOB}
    places.start(module.guarded for module in own if module not in jobs and _is_spark_program(module))
    return places


def _uses_spark(module: Module) -> bool:
    return any(one.name.partition(".")[0] == "pyspark" for one in module.imports)


def _is_spark_program(module: Module) -> bool:
    return any(one.name.partition(".")[0] in LIBRARIES for one in module.imports)


def _of_frames(resolver: Resolver, graph: Graph, own: list[Module], places: Places) -> Iterator[tuple[Module, Breach]]:
    """What follows from the order of steps in a query."""
    flows = Dataflow(resolver)
    flows.modules(own)
    for definition in graph.definitions:
        if places.of(definition) in (Place.START, Place.JOB):
            flows.function(definition)
    for call, module in flows.samples.items():
        code = sample_code(call)
        yield module, Breach(call, code, RULES[code].severity, Place.JOB)
    told: set[ast.expr] = set()
    for function, shuffle in flows.after.items():
        for definition in reached([function]):
            for site in definition.sites:
                if is_keyless(site) and site.node not in told:
                    told.add(site.node)
                    yield definition.module, _keyless(site.node, function, shuffle)


def _keyless(node: ast.expr, function: Definition, shuffle: Shuffle) -> Breach:
    name = "a lambda" if function.name == "lambda" else function.name
    more = f"{name} is used after {shuffle.method} in line {shuffle.line}"
    return Breach(node, "CL011", RULES["CL011"].severity, Place.ROWS, more=more)


def _findings(found: Iterable[tuple[Module, Breach]], own: list[Module]) -> Iterator[Finding]:
    comments = {module: allows(module.lines) for module in own}
    for module, breach in found:
        node = breach.node
        lines = {node.lineno, node.end_lineno or node.lineno}
        silenced = [
            allow.silences(breach.code) for line in lines if (allow := comments.get(module, {}).get(line)) is not None
        ]
        if not any(silenced):
            yield _finding(module, breach)
    for module, by_line in comments.items():
        for allow in by_line.values():
            complaint = allow.complaint()
            if complaint is not None:
                yield _unused(module, allow, complaint)


def _finding(module: Module, breach: Breach) -> Finding:
    rule = RULES[breach.code]
    node = breach.node
    line = module.lines[node.lineno - 1]
    at_start = (breach.place is not Place.ROWS and breach.code < "CL009") or breach.code == "CL010"
    return Finding(
        file=_shown(module.path),
        line=node.lineno,
        column=len(line.encode()[: node.col_offset].decode(errors="ignore")) + 1,
        code=breach.code,
        severity=breach.severity,
        call=_short(breach.text or _written(module, node)),
        runs=breach.place.name.lower(),
        why=f"{rule.why} ({breach.more})" if breach.more else rule.why,
        instead=_AT_START if at_start else rule.instead,
    )


def _unused(module: Module, allow: Allow, complaint: str) -> Finding:
    rule = RULES["CL900"]
    return Finding(
        file=_shown(module.path),
        line=allow.line,
        column=allow.column + 1,
        code=rule.code,
        severity=Severity.WARNING,
        call=_short(allow.text),
        runs="",
        why=f"{complaint}; {rule.why}",
        instead=rule.instead,
    )


def _written(module: Module, node: ast.expr) -> str:
    if node.end_lineno != node.lineno:
        return ast.unparse(node)
    return module.lines[node.lineno - 1].encode()[node.col_offset : node.end_col_offset].decode(errors="ignore")


def _shown(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
