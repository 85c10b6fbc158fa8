"""Calls the functions of a job in a test without running the job: in an invented epoch, or in a recorded one."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from clonos.causal import service as services
from clonos.causal.epoch_scope import EpochScope
from clonos.causal.scope import TaskScope, row_scope, task_scope
from clonos.causal.standin import replace, replace_all, replaced
from clonos.log.exported import ExportedDeterminants, ExportedPlan
from clonos.log.records import Determinant, EpochIdentity, Owner

START: Final = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


class NotRecorded(BaseException):
    """A replay in a test called a service with arguments that have no answer in the exported log.

    It is not an `Exception`, so that neither a retry nor an ``except Exception`` of the code under test hides it.
    """


class Scope:
    """The epoch of `fixed` or `replay`. A test calls functions of a job in it.

    Attributes:
        epoch: Number of the epoch.
        query: The query's name.
        now: Value of ``clonos.now()``.
    """

    def __init__(self, task: TaskScope) -> None:
        self._task = task
        self.epoch = task.epoch.identity.epoch
        self.query = task.epoch.identity.query
        self.now = dt.datetime.fromtimestamp(task.epoch.timestamp_ms / 1000, dt.UTC)

    @contextlib.contextmanager
    def row(self, index: int) -> Iterator[None]:
        """Call functions inside this context as for row `index` of the task.

        ``clonos.random()`` and other draws without a key depend on `index`.
        """
        with row_scope(index):
            yield


@contextlib.contextmanager
def fixed(
    *,
    now: dt.datetime = START,
    seed: int = 0,
    epoch: int = 0,
    params: Mapping[str, str] | None = None,
    query: str = "test",
    operator: str = "test",
    task: int = 0,
) -> Iterator[Scope]:
    """Call functions of a job inside this context as in an epoch with fixed values, without a job and without Spark.

    ``clonos.clock`` also returns `now`, unless a `script` replaces it. A service is called once for equal arguments, as
    in a Spark task.

    Args:
        now: Value of ``clonos.now()``, to the millisecond; default 2024-01-01 UTC.
        seed: Seed of ``random``, ``rng`` and ``uuid4``.
        epoch: Value of ``clonos.epoch()``.
        params: Parameters for ``clonos.param``.
        query: Name of the query; part of the seed of all draws.
        operator: Name of the operator; part of the seed of all draws.
        task: Number of the task; part of the seed of draws without a key.

    Raises:
        ValueError: `now` has no time zone.

    Example::

        with fixed(seed=7, params={"server": url}):
            assert judge.function("word") == {"banned": True}
    """
    if now.tzinfo is None:
        raise ValueError(f"now={now!r} has no time zone: clonos.now() answers in UTC")
    epoch_scope = _scope("test", query, epoch, round(now.timestamp() * 1000), seed, 1, params)
    clock = services._clock_at.name
    with contextlib.ExitStack() as stack:
        if not replaced(clock):
            stack.enter_context(replace(clock, lambda *_what: now))
        inside = stack.enter_context(task_scope(TaskScope(epoch_scope, operator, task)))
        stack.enter_context(row_scope(0))
        yield Scope(inside)


@contextlib.contextmanager
def replay(
    records: str | Path | Iterable[Mapping[str, Any]],
    *,
    operator: str,
    task: int = 0,
    query: str | None = None,
    epoch: int | None = None,
    params: Mapping[str, str] | None = None,
) -> Iterator[Scope]:
    """Call functions inside this context as in a recorded epoch: services return the recorded answers, and draws repeat
    those of production.

    Export the epoch with ``clonos causal-log cat JOB --epoch 12 -o json > epoch12.json``; then::

        with replay("epoch12.json", operator="judge", task=0):
            assert judge.function("word") == {"banned": True}

    Args:
        records: The exported file, or the objects in it.
        operator: Name of the operator in the log (``clonos causal-log cat`` shows it).
        task: Number of the operator's task.
        query: Name of the query, if the records hold several queries.
        epoch: Number of the epoch, if the records hold several epochs.
        params: Parameters for ``clonos.param``; the log does not hold parameters.

    Raises:
        ValueError: `records` is not such an export, has no plan, or has several matching plans.
        NotRecorded: (inside) The log has no answer for a call of a service.
    """
    plans, determinants = _read(records)
    plan = _chosen(plans, query, epoch)
    of_epoch = [
        record
        for record in determinants
        if (record.lineage, record.query, record.epoch) == (plan.lineage, plan.query, plan.epoch)
        and record.void is None
    ]
    answers: dict[bytes, Determinant] = {}
    for record in of_epoch:
        if (record.operator, record.task) == (operator, task):
            for exported in record.determinants:
                entry = exported.entry()
                answers.setdefault(entry.key, entry)
    at = round(plan.now.timestamp() * 1000)
    epoch_scope = _scope(plan.job, plan.query, plan.epoch, at, int(plan.seed, 16), plan.lineage, params)
    refusal = _Refusal(plan, of_epoch, operator, task)
    with replace_all(refusal.of), task_scope(_Recorded(epoch_scope, operator, task, answers)) as inside, row_scope(0):
        yield Scope(inside)


class _Recorded(TaskScope):
    """A task with the recorded answers."""

    def __init__(self, epoch: EpochScope, operator: str, task: int, answers: dict[bytes, Determinant]) -> None:
        super().__init__(epoch, operator, task)
        self._log = answers


def _scope(
    job: str, query: str, epoch: int, at: int, seed: int, lineage: int, params: Mapping[str, str] | None
) -> EpochScope:
    return EpochScope(
        EpochIdentity(job, log_topic="", query=query, epoch=epoch, owner=Owner(lineage, 1, "test"), replay=False),
        at,
        seed,
        depth="0",  # nothing is recorded, and no Kafka asked
        log_partitions=(1,),
        start_offsets={},
        claim_offsets={},
        params=dict(params or {}),
    )


def _read(records: str | Path | Iterable[Mapping[str, Any]]) -> tuple[list[ExportedPlan], list[ExportedDeterminants]]:
    plans: list[ExportedPlan] = []
    determinants: list[ExportedDeterminants] = []
    where = "the records"
    try:
        if isinstance(records, str | Path):
            where = str(records)
            with Path(records).open("rb") as file:
                records = [msgspec.json.decode(line) for line in file if line.strip()]
        for record in records:
            if record["kind"] == "plan":
                plans.append(msgspec.convert(record, ExportedPlan))
            elif record["kind"] == "determinants":
                determinants.append(msgspec.convert(record, ExportedDeterminants))
    except (KeyError, TypeError, msgspec.MsgspecError) as error:
        raise ValueError(
            f"{where} is not an output of `clonos causal-log cat JOB --epoch N -o json`: {error}"
        ) from error
    return plans, determinants


def _chosen(plans: list[ExportedPlan], query: str | None, epoch: int | None) -> ExportedPlan:
    # A new lineage numbers its epochs from the beginning: of two plans for an epoch the newer lineage counts.
    newest: dict[tuple[str, int], ExportedPlan] = {}
    for plan in plans:
        known = newest.get((plan.query, plan.epoch))
        if plan.void is None and (known is None or plan.lineage > known.lineage):
            newest[plan.query, plan.epoch] = plan
    there = ", ".join(f"{name} epoch {number}" for name, number in newest) or "no plan"
    matching = [
        plan for plan in newest.values() if query in (None, plan.query) and (epoch is None or epoch == plan.epoch)
    ]
    if not matching:
        raise ValueError(f"the records hold {there}: export the whole epoch, without --kind or --partition")
    if len(matching) > 1:
        raise ValueError(f"the records hold {there}: choose with query= and epoch=")
    return matching[0]


@dataclass(frozen=True)
class _Refusal:
    """Raises an error that lists the recorded calls, for a call that was not recorded."""

    plan: ExportedPlan
    determinants: list[ExportedDeterminants]
    operator: str
    task: int

    def of(self, service: str) -> Callable[..., Any]:
        """Refuses to answer as `service`."""

        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise NotRecorded(self._message(service, args, kwargs))

        return refuse

    def _message(self, service: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        key = services._key(service, args, kwargs).hex()
        asked = ", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())])
        counts: dict[tuple[str, int], Counter[str]] = {}
        elsewhere = []
        for record in self.determinants:
            counter = counts.setdefault((record.operator, record.task), Counter())
            counter.update(entry.service for entry in record.determinants)
            if any(entry.key == key for entry in record.determinants):
                elsewhere.append(f"operator {record.operator!r} task {record.task}")
        recorded = "; ".join(
            f"operator {operator!r} task {task}: {', '.join(f'{name} x{n}' for name, n in sorted(names.items()))}"
            for (operator, task), names in sorted(counts.items())
        )
        return (
            f"{service}({asked}) was not recorded by operator {self.operator!r} task {self.task} in epoch "
            f"{self.plan.epoch} of {self.plan.query}. Recorded were: {recorded or 'no answers'}."
            + (f" This very call was recorded by {' and '.join(elsewhere)}." if elsewhere else "")
        )
