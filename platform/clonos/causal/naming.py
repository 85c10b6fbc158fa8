"""What operators are called in the log: a stable name, and a number from the second use in a job on.

The number follows from the order in which the job function builds its frames, so it is the same in every run
of the same code. See ``docs/operators.md``.
"""

from __future__ import annotations

from clonos.errors import SpecError

_uses: dict[str, int] = {}
_shown: set[str] = set()


def operator_name(name: str, *shown_as: str) -> str:
    """The name of one more use of `name`: each use has answers of its own.

    Args:
        name: The stable name.
        shown_as: What Spark's plans call the function, for `shown_in_plans`.
    """
    _uses[name] = _uses.get(name, 0) + 1
    _shown.update(shown_as)
    return name if _uses[name] == 1 else f"{name}#{_uses[name]}"


def stable_name(given: str | None, function: object) -> str:
    """`given`, or else the qualified name of `function`.

    Raises:
        SpecError: A name that could be taken for a numbered use.
    """
    name = given if given is not None else getattr(function, "__qualname__", type(function).__qualname__)
    if not name or "#" in name:
        raise SpecError(f"An operator cannot be named {name!r}.", hint="use a name without # (it numbers the uses).")
    return name


def shown_name(function: object) -> str:
    """What Spark's plans call a function."""
    return getattr(function, "__name__", type(function).__name__)


def shown_in_plans() -> frozenset[str]:
    """What Spark's plans call the operators of the job being defined."""
    return frozenset(_shown)


def forget_uses() -> None:
    """A job function starts to build its frames."""
    _uses.clear()
    _shown.clear()
