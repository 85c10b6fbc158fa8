"""Which code runs where: on rows, while the job is built, at start of the process, or only inside services."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterable
from enum import IntEnum

from clonos.lint.collect import Graph
from clonos.lint.names import Definition, Role, Use


class Place(IntEnum):
    """Where code runs; the strictest place counts."""

    NOWHERE = 0
    """Not in this job, or in services only, whose answers are recorded."""

    START = 1
    """When a file is imported or run as a program: again in every process."""

    JOB = 2
    """In the job function, which builds the queries: again in every process, and it decides what they compute."""

    ROWS = 3
    """In a UDF, on rows."""


_MADE_AT_ONCE = frozenset({"__init__", "__new__", "__post_init__"})


class Places:
    """Where each definition runs."""

    def __init__(self, graph: Graph) -> None:
        self._body: dict[Definition, Place] = {}
        self._inner: dict[Definition, Place] = {}
        for definition in graph.definitions:
            if definition.role in (Role.UDF, Role.JOB):
                place = Place.ROWS if definition.role is Role.UDF else Place.JOB
                self._run([Use(definition, True, True)], place)
        self._run(graph.handed, Place.ROWS)

    def start(self, definitions: Iterable[Definition]) -> None:
        """The code of modules that is run at start."""
        for definition in definitions:
            self._run([Use(definition, True, False)], Place.START)

    def rows(self, definitions: Iterable[Definition]) -> None:
        """Functions that may be called on rows by someone who is not seen."""
        self._run([Use(definition, True, True) for definition in definitions], Place.ROWS)

    def of(self, definition: Definition) -> Place:
        """Where `definition` runs."""
        if definition.role is Role.SERVICE:
            return Place.NOWHERE
        # A class or a variable has no code of its own: what it holds runs with its methods.
        held = self._inner.get(definition, Place.NOWHERE) if _is_kept(definition) else Place.NOWHERE
        return max(self._body.get(definition, Place.NOWHERE), held)

    def any(self, place: Place) -> bool:
        """Whether anything runs at `place`."""
        return place in self._body.values() or place in self._inner.values()

    def _run(self, uses: Iterable[Use], place: Place) -> None:
        pending = deque(uses)
        while pending:
            use = pending.popleft()
            target = use.target
            if target.role is Role.SERVICE:
                continue
            if use.body and self._body.get(target, Place.NOWHERE) < place:
                self._body[target] = place
                pending += target.uses
                if isinstance(target.node, ast.ClassDef):
                    pending += [Use(one, True, True) for one in target.inner if one.name in _MADE_AT_ONCE]
            if use.inner and self._inner.get(target, Place.NOWHERE) < place:
                self._inner[target] = place
                if target.node is None:
                    pending += target.uses
                pending += [
                    Use(one, True, True)
                    for one in target.inner
                    if use.body or one.name not in _MADE_AT_ONCE or not isinstance(target.node, ast.ClassDef)
                ]
                if isinstance(target.node, ast.ClassDef):
                    pending += target.uses


def _is_kept(definition: Definition) -> bool:
    return definition.node is None or isinstance(definition.node, ast.ClassDef)


def reached(definitions: Iterable[Definition]) -> set[Definition]:
    """Everything that may run when `definitions` do, without what only services call."""
    found: set[Definition] = set()
    pending = deque(definitions)
    while pending:
        one = pending.popleft()
        if one in found or one.role is Role.SERVICE:
            continue
        found.add(one)
        pending += [use.target for use in one.uses] + one.inner
    return found


def only_for_services(definitions: Iterable[Definition]) -> set[Definition]:
    """What services call and nothing else does."""
    everything = list(definitions)
    for_services: set[Definition] = set()
    pending = deque(one for one in everything if one.role is Role.SERVICE)
    while pending:
        one = pending.popleft()
        if one not in for_services:
            for_services.add(one)
            pending += [use.target for use in one.uses] + one.inner
    others = reached(one for one in everything if one not in for_services)
    return for_services - others
