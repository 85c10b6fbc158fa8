"""Typed errors on their way from a Python worker to the driver.

Spark hands the driver only the text of a worker's traceback, so the error travels inside that text.
"""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Iterator
from typing import Final

import msgspec

from clonos import errors
from clonos.errors import ClonosError

_PATTERN: Final = re.compile(r"clonos-error:([A-Za-z0-9+/=]+)")


class CarriedError(Exception):
    """A `ClonosError` raised in a worker; its text holds the error for `uncarry`."""


def carry(error: ClonosError) -> CarriedError:
    """An exception whose text carries `error`, readable for humans too."""
    parts = (type(error).__name__, error.what, error.kept, error.hint)
    packed = base64.b64encode(msgspec.msgpack.encode(parts)).decode()
    return CarriedError(f"{error}\nclonos-error:{packed}")


@contextlib.contextmanager
def carrying() -> Iterator[None]:
    """Typed errors raised inside travel to the driver."""
    try:
        yield
    except ClonosError as error:
        raise carry(error) from error


def uncarry(text: str) -> ClonosError | None:
    """The error carried in a traceback's text, if there is one."""
    found = _PATTERN.search(text)
    if found is None:
        return None
    try:
        name, what, kept, hint = msgspec.msgpack.decode(
            base64.b64decode(found.group(1)), type=tuple[str, str, str, str]
        )
    except (ValueError, msgspec.DecodeError):
        return None
    cls = getattr(errors, name, None)
    if not (isinstance(cls, type) and issubclass(cls, ClonosError)):
        cls = errors.EpochFailed
    return cls(what, kept=kept, hint=hint)
