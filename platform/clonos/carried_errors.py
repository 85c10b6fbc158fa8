"""Carries typed errors (`ClonosError`) from a Python worker to the driver.

Spark passes only the text of a worker's traceback to the driver, so the error is encoded in that text.
"""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Iterator
from typing import Final

import msgspec

from clonos import errors
from clonos.errors import ClonosError, EpochFailed

_MAX_CAUSES: Final = 10
_PATTERN: Final = re.compile(r"clonos-error:([A-Za-z0-9+/=]+)")


class CarriedError(Exception):
    """The exception that a Python worker raises instead of a `ClonosError`, so that the error reaches the driver.

    Its text encodes the error; `uncarry` decodes it in the driver.
    """


def carry(error: ClonosError) -> CarriedError:
    """Convert an error to an exception whose text has the readable message first and the encoded error last."""
    parts = (type(error).__name__, error.what, error.kept, error.hint)
    packed = base64.b64encode(msgspec.msgpack.encode(parts)).decode()
    return CarriedError(f"{error}\nclonos-error:{packed}")


@contextlib.contextmanager
def carrying() -> Iterator[None]:
    """Provide a context for code of a Python worker: it converts a `ClonosError` raised inside to a `CarriedError`.

    The driver gets the typed error back with `uncarry`. Other exceptions pass unchanged.
    """
    try:
        yield
    except ClonosError as error:
        raise carry(error) from error


@contextlib.contextmanager
def own_work(doing: str) -> Iterator[None]:
    """Convert an untyped exception of a worker's own code to `EpochFailed`; `doing` is the subject of its text.

    Without this, the driver would take the exception's traceback for one of the user's code.

    Example::

        with own_work("Recording determinants"):
            producer.list_topics(topic)
    """
    try:
        yield
    except (ClonosError, CarriedError):
        raise
    except Exception as error:
        raise EpochFailed(f"{doing} failed in a Python worker: {type(error).__name__}: {error}.") from error


def uncarry(text: str) -> ClonosError | None:
    """Decode the `ClonosError` in a worker's traceback; None if the text has none.

    A class that `clonos.errors` does not define arrives as `EpochFailed`, so that the restart policy applies.
    """
    match = _PATTERN.search(text)
    if match is None:
        return None
    try:
        name, what, kept, hint = msgspec.msgpack.decode(
            base64.b64decode(match.group(1)), type=tuple[str, str, str, str]
        )
    except (ValueError, msgspec.DecodeError):
        return None
    cls = getattr(errors, name, None)
    if not (isinstance(cls, type) and issubclass(cls, ClonosError)):
        cls = errors.EpochFailed
    return cls(what, kept=kept, hint=hint)


def texts_of(failure: BaseException) -> str:
    """Return the texts of a failure and its causes: a failed task is the cause of a query's failure."""
    texts: list[str] = []
    cause: BaseException | None = failure
    while cause is not None and len(texts) < _MAX_CAUSES:
        texts.append(str(cause))
        cause = getattr(cause, "_cause", None)  # of PySpark's exceptions
    return "\n".join(texts)


def uncarry_failure(failure: BaseException) -> ClonosError | None:
    """Decode the `ClonosError` in an exception of Spark or in its causes; None if they have none."""
    return uncarry(texts_of(failure))
