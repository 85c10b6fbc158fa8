"""Derived services: computed from the epoch's plan in the causal log, so that nothing else is recorded.

Outside a job (a unit test, a notebook) they use the machine's clock and random source.
"""

from __future__ import annotations

import datetime as dt
import functools
import random as _random
import uuid as _uuid

from clonos.causal.scope import current_epoch, current_task, operator_required, positional, time_ms
from clonos.errors import ParameterMissing


def now() -> dt.datetime:
    """Return the time of the current epoch, the same for all of its rows.

    The driver writes it to the epoch's plan before the first task starts, so a replay returns the same time. For the
    true time of a row see `clonos.clock`. In a live query it is the time of the rows that the function gets at once. It
    never goes back, also after a failure.

    Returns:
        An aware datetime in UTC, in milliseconds.

    Example::

        @clonos.udf("timestamp")
        def processed_at(value):
            return clonos.now()
    """
    epoch = current_epoch()
    return dt.datetime.now(dt.UTC) if epoch is None else _time(time_ms(epoch))


@functools.lru_cache(maxsize=16)
def _time(time_ms: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC)


def epoch() -> int:
    """Return the number of the current epoch (micro-batch).

    Returns:
        Spark's batch id of the query, from 0; -1 outside a job.

    Example::

        @clonos.udf("long")
        def batch(value):
            return clonos.epoch()
    """
    scope = current_epoch()
    return scope.identity.epoch if scope else -1


def random(key: object = None) -> float:
    """Return a uniform random number that a replay repeats. It is derived from the epoch's seed, the operator and
    `key`.

    Args:
        key: Identifies the row, such as (topic, partition, offset). Equal keys give equal numbers within an operator
            and epoch. Without a key, the position of the draw is used: its position in the group for functions that
            receive groups, otherwise the row's position in the task. The position in the task is repeatable only
            before the first shuffle.

    Returns:
        A number in [0, 1), the same in a replay.

    Raises:
        CarriedError: No key, and no operator wraps the calling function (carries `OperatorRequired`).

    Example::

        @clonos.udf("boolean")
        def sampled(topic, partition, offset):
            return clonos.random((topic, partition, offset)) < 0.1
    """
    return _random.random() if (bits := _derive("random", key)) is None else (bits >> 75) / (1 << 53)


def rng(key: object = None) -> _random.Random:
    """Return a random generator that a replay repeats, for several numbers or for another distribution than `random`.

    Args:
        key: As in `random`.

    Returns:
        A generator with a seed derived from the epoch's seed, the operator and `key`.

    Raises:
        CarriedError: No key, and no operator wraps the calling function (carries `OperatorRequired`).

    Example::

        delay_s = clonos.rng(order_id).expovariate(0.5)
    """
    bits = _derive("rng", key)
    return _random.Random() if bits is None else _random.Random(bits)


def uuid4(key: object = None) -> _uuid.UUID:
    """Return a random UUID (version 4, RFC 9562) that a replay repeats.

    It is derived from the query, the epoch's seed, the operator and `key`. So two sinks compute different ids for one
    row, and so does a job after a restore from a savepoint; `clonos.stable_id` is the same in all of them.

    Args:
        key: As in `random`.

    Returns:
        The UUID, the same in a replay.

    Raises:
        CarriedError: No key, and no operator wraps the calling function (carries `OperatorRequired`).

    Example::

        event_id = str(clonos.uuid4((topic, partition, offset)))
    """
    bits = _derive("uuid4", key)
    # The version's bits are set here: a third faster than by UUID's own argument.
    return _uuid.uuid4() if bits is None else _uuid.UUID(int=bits & _UUID_FREE | _UUID_VERSION)


def param(name: str, default: str | None = None) -> str:
    """Return the value of a job parameter, in the job function as well as in UDFs and services.

    Args:
        name: The parameter's name.
        default: The value if the job has no such parameter; None raises instead.

    Returns:
        The value of ``-p name=value``, or of ``params:`` in the job.yaml.

    Raises:
        ParameterMissing: The job has no such parameter, and there is no default. Also a `KeyError`.

    Example::

        url = clonos.param("server", "http://127.0.0.1:8099")
    """
    scope = current_epoch()
    params = scope.params if scope else _driver_params
    if name in params:
        return params[name]
    return Parameters(params)[name] if default is None else default


class Parameters(dict[str, str]):
    """A job's parameters as a dict.

    Access to a missing parameter raises `ParameterMissing`, which names the parameter.
    """

    def __missing__(self, name: str) -> str:
        present = f" It has {', '.join(sorted(self))}." if self else ""
        raise ParameterMissing(
            f"The job has no parameter {name!r}.{present}",
            hint=f"pass it with -p {name}=…, or set it under params: of the job.yaml.",
        )


_driver_params = Parameters()


def set_driver_params(params: dict[str, str]) -> None:
    """Set the parameters that `param` reads in the driver process, outside tasks."""
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
            raise operator_required(f"clonos.{service} without a key")
        return task.derive(service, *positional(task))
    return task.derive(service, "key", key)
