"""The names of operators in the causal log: a stable name, with a number from its second use in a job.

The number follows from the order in which the job function builds its frames, so it is the same in every run of the
same code. See ``docs/operators.md``.
"""

from __future__ import annotations

import inspect

from clonos.errors import SpecError

_uses: dict[str, int] = {}
_operators: dict[str, tuple[str, ...]] = {}


def operator_name(name: str, *shown_as: str) -> str:
    """Return the name of the next operator of the job that uses the stable name `name`.

    Args:
        name: The stable name.
        shown_as: Names of the operator's function in Spark's query plans, for `defined_operators`.

    Returns:
        ``name`` for the first use, ``name#2`` for the second.
    """
    _uses[name] = _uses.get(name, 0) + 1
    operator = name if _uses[name] == 1 else f"{name}#{_uses[name]}"
    _operators[operator] = shown_as
    return operator


def stable_name(name: str | None, function: object) -> str:
    """Return the operator's stable name: `name`, or if it is None the qualified name of `function`.

    Raises:
        SpecError: The name is empty, or contains the ``#`` of a numbered use. `function` is an ``async def``.
    """
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise SpecError(
            f"{shown_name(function)} is an async def, which Spark cannot call.",
            hint="use def, and await in a clonos.service, which may be an async def.",
        )
    chosen = name if name is not None else getattr(function, "__qualname__", type(function).__qualname__)
    if not chosen or "#" in chosen:
        raise SpecError(f"An operator cannot be named {chosen!r}.", hint="use a name without # (it numbers the uses).")
    return chosen


def shown_name(function: object) -> str:
    """Return the name of a function in Spark's query plans."""
    return getattr(function, "__name__", type(function).__name__)


def shown_in_plans() -> frozenset[str]:
    """Return the names, in Spark's query plans, of the operators of the job that is being defined."""
    return frozenset(shown for names in _operators.values() for shown in names)


def defined_operators() -> dict[str, tuple[str, ...]]:
    """Return the operators of the job that is being defined, in the order of their uses: operator → names of its
    function in Spark's query plans.
    """
    return dict(_operators)


def forget_uses() -> None:
    """Reset the numbers of all names, before a job function builds its DataFrames."""
    _uses.clear()
    _operators.clear()
