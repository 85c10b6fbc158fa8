"""Functions of a job outside of any job, as if in an epoch: one made up, or one recorded in a causal log."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from clonos.causal import service as services
from clonos.causal.scope import EpochScope, TaskScope, row_scope, task_scope
from clonos.causal.standin import replace, replace_all, replaced
from clonos.log.exported import ExportedDeterminants, ExportedPlan
from clonos.log.records import Entry, Owner

START: Final = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


class NotRecorded(BaseException):
    """A replay was asked for something that the record does not hold.

    No `Exception`, so that neither a retry nor an ``except Exception`` of the code under test hides it.
    """


class Scope:
    """The epoch that functions run in.

    Attributes:
        epoch: Its number.
        query: The query's name.
        now: What ``clonos.now()`` answers.
    """

    def __init__(self, task: TaskScope) -> None:
        self._task = task
        self.epoch = task.epoch.epoch
        self.query = task.epoch.query
        self.now = dt.datetime.fromtimestamp(task.epoch.at / 1000, dt.UTC)

    @contextlib.contextmanager
    def row(self, index: int) -> Iterator[None]:
        """Compute row `index` of the task: it decides draws without a key."""
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
    """An epoch made up: the same values in every run of a test, without a job.

    ``clonos.clock`` answers `now` too, unless it is scripted. Services are called (or scripted), once for equal
    arguments, as in a task.

    Args:
        now: What ``clonos.now()`` answers, to the millisecond.
        seed: Decides ``random``, ``rng`` and ``uuid4``.
        epoch: What ``clonos.epoch()`` answers.
        params: What ``clonos.param`` answers.
        query: The query's name; it is part of what draws follow from.
        operator: The operator's name; the same.
        task: The task's number; part of what draws without a key follow from.

    Raises:
        ValueError: `now` has no time zone.
    """
    if now.tzinfo is None:
        raise ValueError(f"now={now!r} has no time zone: clonos.now() answers in UTC")
    made = _scope("test", query, epoch, round(now.timestamp() * 1000), seed, 1, params)
    clock = services._clock_at.name
    with contextlib.ExitStack() as stack:
        if not replaced(clock):
            stack.enter_context(replace(clock, lambda *_what: now))
        inside = stack.enter_context(task_scope(TaskScope(made, operator, task)))
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
    """An epoch of a causal log: services answer what they answered then, and draws are those of then.

    Export it with ``clonos log cat JOB --epoch 12 -o json > epoch12.json``; then::

        with replay("epoch12.json", operator="judge", task=0):
            assert judge.function("word") == {"banned": True}

    Args:
        records: The file, or its objects.
        operator: Whose answers: the name that the log has (``clonos log cat`` shows it).
        task: Of which task.
        query: Of which query, where the records hold several.
        epoch: Which epoch, where the records hold several.
        params: What ``clonos.param`` answers; the log does not hold parameters.

    Raises:
        ValueError: The records are no such export, or hold no plan, or several to choose from.
        NotRecorded: (inside) a service is asked for what it was not asked then.
    """
    plans, determinants = _read(records)
    plan = _chosen(plans, query, epoch)
    mine = [
        one
        for one in determinants
        if (one.lineage, one.query, one.epoch) == (plan.lineage, plan.query, plan.epoch) and one.void is None
    ]
    answers: dict[bytes, Entry] = {}
    for one in mine:
        if (one.operator, one.task) == (operator, task):
            for exported in one.entries:
                entry = exported.entry()
                answers.setdefault(entry.key, entry)
    at = round(plan.now.timestamp() * 1000)
    made = _scope(plan.job, plan.query, plan.epoch, at, int(plan.seed, 16), plan.lineage, params)
    refusal = _Refusal(plan, mine, operator, task)
    with (
        replace_all(refusal.of),
        task_scope(_Recorded(made, operator, task, answers)) as inside,
        row_scope(0),
    ):
        yield Scope(inside)


class _Recorded(TaskScope):
    """A task that knows the answers of then."""

    def __init__(self, epoch: EpochScope, operator: str, task: int, answers: dict[bytes, Entry]) -> None:
        super().__init__(epoch, operator, task)
        self._log = answers


def _scope(
    job: str, query: str, epoch: int, at: int, seed: int, lineage: int, params: Mapping[str, str] | None
) -> EpochScope:
    return EpochScope(
        job=job,
        topic="",
        query=query,
        epoch=epoch,
        at=at,
        seed=seed,
        owner=Owner(lineage, 1, "test"),
        replay=False,
        depth="0",  # nothing is recorded, and no Kafka asked
        partitions=(1,),
        since={},
        until={},
        params=dict(params or {}),
    )


def _read(
    records: str | Path | Iterable[Mapping[str, Any]],
) -> tuple[list[ExportedPlan], list[ExportedDeterminants]]:
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
        raise ValueError(f"{where} is no output of `clonos log cat JOB --epoch N -o json`: {error}") from error
    return plans, determinants


def _chosen(plans: list[ExportedPlan], query: str | None, epoch: int | None) -> ExportedPlan:
    # A new lineage starts its epochs afresh: of two plans for an epoch the newer one counts.
    newest: dict[tuple[str, int], ExportedPlan] = {}
    for plan in plans:
        known = newest.get((plan.query, plan.epoch))
        if plan.void is None and (known is None or plan.lineage > known.lineage):
            newest[plan.query, plan.epoch] = plan
    there = ", ".join(f"{name} epoch {number}" for name, number in newest) or "no plan"
    found = [plan for plan in newest.values() if query in (None, plan.query) and (epoch is None or epoch == plan.epoch)]
    if not found:
        raise ValueError(f"the records hold {there}: export the whole epoch, without --kind or --partition")
    if len(found) > 1:
        raise ValueError(f"the records hold {there}: choose with query= and epoch=")
    return found[0]


class _Refusal:
    """Says what was recorded, when asked for something else."""

    def __init__(self, plan: ExportedPlan, determinants: list[ExportedDeterminants], operator: str, task: int) -> None:
        self._plan = plan
        self._determinants = determinants
        self._operator = operator
        self._task = task

    def of(self, service: str) -> Callable[..., Any]:
        """Refuses to answer as `service`."""

        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise NotRecorded(self._told(service, args, kwargs))

        return refuse

    def _told(self, service: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        key = services._key(service, args, kwargs).hex()
        asked = ", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())])
        counts: dict[tuple[str, int], Counter[str]] = {}
        elsewhere = []
        for one in self._determinants:
            counts.setdefault((one.operator, one.task), Counter()).update(entry.service for entry in one.entries)
            if any(entry.key == key for entry in one.entries):
                elsewhere.append(f"operator {one.operator!r} task {one.task}")
        told = "; ".join(
            f"operator {operator!r} task {task}: {', '.join(f'{name} x{n}' for name, n in sorted(names.items()))}"
            for (operator, task), names in sorted(counts.items())
        )
        return (
            f"{service}({asked}) was not recorded by operator {self._operator!r} task {self._task} in epoch "
            f"{self._plan.epoch} of {self._plan.query}. Recorded were: {told or 'no answers'}."
            + (f" This very call was recorded by {' and '.join(elsewhere)}." if elsewhere else "")
        )
