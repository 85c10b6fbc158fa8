"""Derives the *stage* of each function: it runs on rows, in the job function, at the start of the process, or only
in services.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Collection, Iterable
from enum import IntEnum

from clonos.lint.collect import Graph
from clonos.lint.names import Definition, Role, Use


class Stage(IntEnum):
    """The situation in which code runs. If there are several, the one with the strictest rules counts."""

    NOWHERE = 0
    """Never in this job, or only in services, whose answers are recorded."""

    START = 1
    """When a file is imported or run as a program: once in each process."""

    JOB = 2
    """In the job function, which builds the queries: once in each process."""

    ROWS = 3
    """In a UDF, on rows."""


_CONSTRUCTORS = frozenset({"__init__", "__new__", "__post_init__"})


class Stages:
    """The stage of each function in a call graph."""

    def __init__(self, graph: Graph) -> None:
        self._body: dict[Definition, Stage] = {}
        self._inner: dict[Definition, Stage] = {}
        for definition in graph.definitions:
            if definition.role in (Role.UDF, Role.JOB):
                stage = Stage.ROWS if definition.role is Role.UDF else Stage.JOB
                self._run([Use(definition, True, True)], stage)
        self._run(graph.row_functions, Stage.ROWS)

    def start(self, definitions: Iterable[Definition]) -> None:
        """Mark this top-level code of modules, and the functions that it calls, as code of the process's start."""
        for definition in definitions:
            self._run([Use(definition, True, False)], Stage.START)

    def rows(self, definitions: Iterable[Definition]) -> None:
        """Mark functions that run on rows, because code outside the job's files may call them."""
        self._run([Use(definition, True, True) for definition in definitions], Stage.ROWS)

    def of(self, definition: Definition) -> Stage:
        """Return the stage in which `definition` runs; if there are several, the one with the strictest rules."""
        if definition.role is Role.SERVICE:
            return Stage.NOWHERE
        # A class or a variable has no code: its content runs with its methods.
        held = self._inner.get(definition, Stage.NOWHERE) if _is_container(definition) else Stage.NOWHERE
        return max(self._body.get(definition, Stage.NOWHERE), held)

    def any(self, stage: Stage) -> bool:
        """Whether any function runs in `stage`."""
        return stage in self._body.values() or stage in self._inner.values()

    def _run(self, uses: Iterable[Use], stage: Stage) -> None:
        pending = deque(uses)
        while pending:
            use = pending.popleft()
            target = use.target
            if target.role is Role.SERVICE:
                continue
            if use.body and self._body.get(target, Stage.NOWHERE) < stage:
                self._body[target] = stage
                pending += target.uses
                if isinstance(target.node, ast.ClassDef):
                    pending += [Use(inner, True, True) for inner in target.inner if inner.name in _CONSTRUCTORS]
            if use.inner and self._inner.get(target, Stage.NOWHERE) < stage:
                self._inner[target] = stage
                if target.node is None:
                    pending += target.uses
                pending += [
                    Use(inner, True, True)
                    for inner in target.inner
                    if use.body or inner.name not in _CONSTRUCTORS or not isinstance(target.node, ast.ClassDef)
                ]
                if isinstance(target.node, ast.ClassDef):
                    pending += target.uses


def _is_container(definition: Definition) -> bool:
    return definition.node is None or isinstance(definition.node, ast.ClassDef)


def reached(definitions: Iterable[Definition], *, services: bool = False) -> set[Definition]:
    """All functions that `definitions` may call, directly or not; through causal services only if `services`."""
    seen: set[Definition] = set()
    pending = deque(definitions)
    while pending:
        definition = pending.popleft()
        if definition not in seen and (services or definition.role is not Role.SERVICE):
            seen.add(definition)
            pending += [use.target for use in definition.uses] + definition.inner
    return seen


def only_for_services(definitions: Collection[Definition]) -> set[Definition]:
    """Return the functions that only causal services call, so that the rules do not apply to them."""
    for_services = reached((item for item in definitions if item.role is Role.SERVICE), services=True)
    return for_services - reached(item for item in definitions if item not in for_services)
