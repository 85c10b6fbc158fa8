"""Refuses query parameters that a route does not declare.

Without it, a misspelt filter (``?stat=RUNNING``) would return everything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import UnionType
from typing import Any, Union, get_args, get_origin

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from clonos.resources.failures import SpecRefused
from clonos.resources.service import FieldProblem


async def refuse_undeclared(request: Request) -> None:
    """Refuse unknown query parameters, and repeated ones with a single value, as a FastAPI dependency of routers."""
    if not request.url.query:
        return
    route = request.scope["route"]
    assert isinstance(route, APIRoute)
    declared = dict(_declared(route.dependant))
    allowed = f"allowed: {', '.join(sorted(declared)) or 'none'}."
    problems = []
    for name, count in Counter(name for name, _ in request.query_params.multi_items()).items():
        what = "this query parameter does not exist" if name not in declared else "it has only one value"
        if name not in declared or (count > 1 and not declared[name]):
            problems.append(FieldProblem(field=f"query.{ascii(name[:100])[1:-1]}", what=what, hint=allowed))
    if problems:
        raise SpecRefused(problems, kept="nothing was changed.")


def _declared(dependant: Dependant) -> Iterator[tuple[str, bool]]:
    """Yield the name of each query parameter of a route, and whether it is a list."""
    for field in dependant.query_params:
        yield field.alias, _is_list(field.field_info.annotation)
    for dependency in dependant.dependencies:
        yield from _declared(dependency)


def _is_list(annotation: Any) -> bool:
    if get_origin(annotation) in (Union, UnionType):
        return any(map(_is_list, get_args(annotation)))
    return annotation is list or get_origin(annotation) is list
