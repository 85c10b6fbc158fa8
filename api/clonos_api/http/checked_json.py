"""JSON bodies of users: only values that the database, other clients and later specifications can hold.

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
        value = json.loads(content, parse_constant=_refuse_constant, parse_float=_finite)
        _check_texts(value)
    except json.JSONDecodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise json.JSONDecodeError(str(error), "", 0) from error
    return value


class CheckedRoute(APIRoute):
    """A route whose JSON body is read with `parse`: a refused value gets status 422."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler of the route, for requests that check their body."""
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
    raise ValueError(f"{name} is no number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is too large a number")
    return number


def _check_texts(value: object) -> None:
    match value:
        case str():
            if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
                raise ValueError("a text has a NUL character or a lone surrogate")
        case dict():
            for name, item in value.items():
                _check_texts(name)
                _check_texts(item)
        case list():
            for item in value:
                _check_texts(item)
