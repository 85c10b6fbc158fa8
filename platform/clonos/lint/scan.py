"""Runs the linter: from paths to a report, without the findings that comments ``# clonos: allow`` silence."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from clonos.errors import SpecError
from clonos.lint.check import Checker, Violation, is_keyless, sample_code
from clonos.lint.collect import Graph, collect
from clonos.lint.dataflow import Dataflow, Shuffle
from clonos.lint.files import LIBRARIES, Sources
from clonos.lint.floats import float_columns
from clonos.lint.names import Definition, Module, Role
from clonos.lint.reach import Stage, Stages, only_for_services, reached
from clonos.lint.report import Finding, Report
from clonos.lint.resolve import Resolver
from clonos.lint.rules import RULES, Severity

_LONGEST = 72

_AT_START = "a job parameter (clonos.param, -p name=value), or the call inside a UDF through a causal service"

_ALLOW = re.compile(r"#\s*clonos:\s*allow\b(?P<codes>[^#]*?)(?:--(?P<reason>.*))?$")
_CODE = re.compile(r"[A-Za-z]+\d+")


def lint(paths: Iterable[Path]) -> Report:
    """Find code that may differ in a replay. No file is imported.

    Args:
        paths: Job files and folders. A file includes the modules that it imports from its folder. A folder includes
            the files that import ``clonos`` or ``pyspark``, and their imports.

    Raises:
        SpecError: A path is missing or a file is not Python.
    """
    paths = list(paths)
    try:
        return _report(Sources(paths))
    except RecursionError as error:
        raise SpecError(
            f"An expression is nested too deeply to be read, in {', '.join(map(str, paths))} or its imports.",
            hint="split chains of more than two hundred calls.",
        ) from error


def _report(sources: Sources) -> Report:
    resolver = Resolver(sources)
    own = _of_the_job(sources)
    graph = collect(own, resolver)
    stages = _stages(graph, own, sources)
    checker = Checker(resolver, float_columns(own))
    violations = [
        (definition.module, violation)
        for definition in [*(module.start for module in own), *(module.guarded for module in own), *graph.definitions]
        if (stage := stages.of(definition)) is not Stage.NOWHERE
        for violation in checker.violations(definition, stage)
    ]
    violations += _of_frames(resolver, graph, own, stages)
    return Report(tuple(sorted(_findings(violations, own))), tuple(module.path for module in own))


def _of_the_job(sources: Sources) -> list[Module]:
    """Return the files that run in a job, without the tools and tests in its folder."""
    pending = [module for path, module in sources.modules.items() if path in sources.named or _imports(module)]
    modules: dict[Path, Module] = {}
    while pending:
        module = pending.pop()
        if module.path not in modules:
            modules[module.path] = module
            pending += sources.imported(module)
    return [modules[path] for path in sorted(modules)]


def _stages(graph: Graph, own: list[Module], sources: Sources) -> Stages:
    stages = Stages(graph)
    if not stages.any(Stage.ROWS) and not stages.any(Stage.JOB):
        # A module of helpers alone: UDFs elsewhere call them.
        for module in own:
            program = module.guarded.sites or module.guarded.uses
            if module.path in sources.named and not program and not _imports(module, frozenset({"pyspark"})):
                services = only_for_services(module.definitions.values())
                outermost = (item for item in module.definitions.values() if item.parent is None)
                stages.rows(item for item in outermost if item not in services)
    stages.start(module.start for module in own)
    # `clonos run` imports the job file and does not run it as a program.
    jobs = {definition.module for definition in graph.definitions if definition.role is Role.JOB}
    stages.start(module.guarded for module in own if module not in jobs and _imports(module))
    return stages


def _imports(module: Module, libraries: frozenset[str] = LIBRARIES) -> bool:
    return any(imported.name.partition(".")[0] in libraries for imported in module.imports)


def _of_frames(
    resolver: Resolver, graph: Graph, own: list[Module], stages: Stages
) -> Iterator[tuple[Module, Violation]]:
    """Yield the violations that depend on the order of steps in a query."""
    flows = Dataflow(resolver)
    flows.modules(own)
    for definition in graph.definitions:
        if stages.of(definition) in (Stage.START, Stage.JOB):
            flows.function(definition)
    for call, module in flows.samples.items():
        code = sample_code(call)
        yield module, Violation(call, code, RULES[code].severity, Stage.JOB)
    for call, module in flows.first_rows.items():
        yield module, Violation(call, "CL106", RULES["CL106"].severity, Stage.JOB)
    reported: set[ast.expr] = set()
    for function, shuffle in flows.after.items():
        for definition in reached([function]):
            for site in definition.sites:
                if is_keyless(site) and site.node not in reported:
                    reported.add(site.node)
                    yield definition.module, _keyless(site.node, function, shuffle)


def _keyless(node: ast.expr, function: Definition, shuffle: Shuffle) -> Violation:
    name = "a lambda" if function.name == "lambda" else function.name
    more = f"{name} is used after {shuffle.method} in line {shuffle.line}"
    return Violation(node, "CL011", RULES["CL011"].severity, Stage.ROWS, more=more)


def _findings(violations: Iterable[tuple[Module, Violation]], own: list[Module]) -> Iterator[Finding]:
    comments = {module: allows(module.lines) for module in own}
    for module, violation in violations:
        node = violation.node
        lines = {node.lineno, node.end_lineno or node.lineno}
        silenced = [
            allow.silences(violation.code)
            for line in lines
            if (allow := comments.get(module, {}).get(line)) is not None
        ]
        if not any(silenced):
            yield _finding(module, violation)
    for module, by_line in comments.items():
        for allow in by_line.values():
            complaint = allow.complaint()
            if complaint is not None:
                yield _unused(module, allow, complaint)


def _finding(module: Module, violation: Violation) -> Finding:
    rule = RULES[violation.code]
    node = violation.node
    line = module.lines[node.lineno - 1]
    at_start = (violation.stage is not Stage.ROWS and violation.code < "CL009") or violation.code == "CL010"
    return Finding(
        file=_shown(module.path),
        line=node.lineno,
        column=len(line.encode()[: node.col_offset].decode(errors="ignore")) + 1,
        code=violation.code,
        severity=violation.severity,
        call=_short(violation.text or _written(module, node)),
        runs=violation.stage.name.lower(),
        why=f"{rule.why} ({violation.more})" if violation.more else rule.why,
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


@dataclass(slots=True)
class Allow:
    """One comment ``# clonos: allow``."""

    line: int  # line of the comment
    column: int  # column of the comment, from 0
    text: str  # the comment as written
    codes: frozenset[str]  # the rules that the comment silences; empty: all
    used: set[str] = field(default_factory=set)  # the rules whose findings the comment has silenced

    def silences(self, code: str) -> bool:
        """Whether the comment covers the rule `code`; if so, marks the rule as used."""
        if self.codes and code not in self.codes:
            return False
        self.used.add(code)
        return True

    def complaint(self) -> str | None:
        """Return the error in the comment, as text: an unknown rule, or no finding on its line; None if it is right."""
        unknown = sorted(self.codes - RULES.keys())
        if unknown:
            return f"there is no rule {', '.join(unknown)}"
        unused = sorted(self.codes - self.used)
        if unused and self.used:
            return f"nothing on this line breaks {', '.join(unused)}"
        return None if self.used else "nothing on this line needs it"


def allows(lines: list[str]) -> dict[int, Allow]:
    """Return the ``# clonos: allow`` comments of a file, by line number."""
    comments: dict[int, Allow] = {}
    if not any("clonos:" in line for line in lines):
        return comments  # tokenizing is slower than all other steps
    for token in tokenize.generate_tokens(io.StringIO("\n".join(lines)).readline):
        if token.type == tokenize.COMMENT and (match := _ALLOW.search(token.string)):
            line, column = token.start
            codes = frozenset(code.upper() for code in _CODE.findall(match["codes"]))
            comments[line] = Allow(line, column + match.start(), token.string[match.start() :].strip(), codes)
    return comments
