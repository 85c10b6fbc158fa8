"""Derived services: they follow from the plan in the log and cost nothing to record.

Outside of a job (a unit test, a notebook) they answer from the machine's clock and random source.
"""

from __future__ import annotations

import datetime as dt
import functools
import random as _random
import uuid as _uuid

from clonos.causal.scope import current_epoch, current_task, positional, unwrapped
from clonos.errors import ParameterMissing


def now() -> dt.datetime:
    """The epoch's time in UTC, which Spark logs before it runs the epoch; the same for all of its rows."""
    epoch = current_epoch()
    return dt.datetime.now(dt.UTC) if epoch is None else _time(epoch.at)


@functools.lru_cache(maxsize=16)
def _time(at: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(at / 1000, dt.UTC)


def epoch() -> int:
    """The number of the epoch being computed; -1 outside of a job."""
    scope = current_epoch()
    return scope.epoch if scope else -1


def random(key: object = None) -> float:
    """A uniform number in [0, 1) derived from the epoch's seed, the operator and `key`.

    Args:
        key: What identifies the row, such as (topic, partition, offset). Equal keys give equal numbers within
            an operator and epoch. Without a key the position of the draw is used: within the group in functions
            that see groups, else the row's in its task, which is repeatable on the source side of a shuffle only.
    """
    return _random.random() if (bits := _derive("random", key)) is None else (bits >> 75) / (1 << 53)


def rng(key: object = None) -> _random.Random:
    """A random generator seeded like `random`, for more than one number or another distribution."""
    bits = _derive("rng", key)
    return _random.Random() if bits is None else _random.Random(bits)


def uuid4(key: object = None) -> _uuid.UUID:
    """A version 4 UUID derived like `random`."""
    bits = _derive("uuid4", key)
    # The version's bits are set here: a third faster than by UUID's own argument.
    return _uuid.uuid4() if bits is None else _uuid.UUID(int=bits & _UUID_FREE | _UUID_VERSION)


def param(name: str, default: str | None = None) -> str:
    """A job parameter, inside the job function as well as inside UDFs and services.

    Raises:
        ParameterMissing: No such parameter, and no default; a `KeyError` too.
    """
    scope = current_epoch()
    params = scope.params if scope else _driver_params
    if name in params:
        return params[name]
    return Parameters(params)[name] if default is None else default


class Parameters(dict[str, str]):
    """A job's parameters; one that was not given is named."""

    def __missing__(self, name: str) -> str:
        given = f" It has {', '.join(sorted(self))}." if self else ""
        raise ParameterMissing(
            f"The job asks for the parameter {name!r}, which it was not given.{given}",
            hint=f"pass it with -p {name}=…, or set it under params: of the job.yaml.",
        )


_driver_params = Parameters()


def set_driver_params(params: dict[str, str]) -> None:
    """What `param` answers in the driver process, outside of tasks."""
    _driver_params.clear()
    _driver_params.update(params)


# RFC 9562: variant 10 in bits 62 and 63, version 4 in bits 76 to 79.
_UUID_FREE = ~(0xC000 << 48 | 0xF000 << 64)
_UUID_VERSION = 0x8000 << 48 | 0x4000 << 64


def _derive(service: str, key: object) -> int | None:
    task = current_task()
    if task is None:
        return None
    if key is None:
        if not task.wrapped:
            raise unwrapped(f"clonos.{service} without a key")
        return task.derive(service, *positional(task))
    return task.derive(service, "key", key)
