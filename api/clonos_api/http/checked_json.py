"""JSON bodies of users, and values of YAML bodies: only values that the database, other clients and later
specifications can hold.

JSON texts may contain lone surrogates, which no encoding of Unicode has, and Python's parser also accepts ``NaN`` and
numbers that are infinite as a double.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from fastapi import Request, Response
from fastapi.routing import APIRoute


def parse(content: bytes) -> Any:
    """Parse a body.

    Raises:
        json.JSONDecodeError: The body is not JSON, or has a value that is refused.
    """
    try:
        value = json.loads(content, parse_constant=_refuse_constant, object_pairs_hook=_without_repeats)
        check_value(value)
    except json.JSONDecodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise json.JSONDecodeError(str(error), "", 0) from error
    return value


class CheckedRoute(APIRoute):
    """A route whose JSON body is read with `parse`: a refused value gets status 422."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of the route, for requests that check their body."""
        handler = super().get_route_handler()

        async def checked(request: Request) -> Response:
            return await handler(_CheckedRequest(request.scope, request.receive))

        return checked


class _CheckedRequest(Request):
    async def json(self) -> Any:
        if not hasattr(self, "_checked"):
            self._checked = parse(await self.body())
        return self._checked


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)[:100]!r} is repeated")
    return value


def check_value(value: object) -> None:
    """Check a parsed value.

    Raises:
        ValueError: A text has a NUL character or a lone surrogate, or a number is not finite.
    """
    match value:
        case str():
            if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
                raise ValueError("a text has a NUL character or a lone surrogate")
        case float():
            if not math.isfinite(value):
                raise ValueError("a number is too large, or is not a number")
        case dict():
            for name, item in value.items():
                check_value(name)
                check_value(item)
        case list():
            for item in value:
                check_value(item)
