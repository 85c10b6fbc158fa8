"""Rescaling: a query continues with another number of shuffle partitions, and so of partitions of its state.

Spark fixes the number in a query's checkpoint. Its offline repartition writes a new epoch, which reads nothing and has
the state of the epoch before in other partitions. Spark knows no owner, so a superseded driver could commit such an
epoch over one of its successor. So Spark works on a copy of the newest epoch. The result takes effect in this order:

1. Copy the epoch's files to a folder beside the query's checkpoint; Spark repartitions the state there.
2. Copy the new files of the state into the checkpoint. Their names are unique, and nothing refers to them yet.
3. Commit the plan of the new epoch and its end to the causal log: a superseded driver stops here.
4. Write the epoch's entries in the offset log and the commit log.

A crash before step 3 changes nothing. After a later crash the log has the plan, and the checkpoint lacks the epoch: the
next owner repeats steps 1, 2 and 4. For a query without state, only the entries of the logs are written.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Iterator
from typing import Final, NamedTuple

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from clonos.driver.checkpoint import CheckpointDirectory, epoch_time
from clonos.driver.savepoint import files_of_epoch
from clonos.errors import CheckpointDamaged, CheckpointUnwritable, EpochFailed, RescaleRefused
from clonos.extend.sink import DeliveryMode
from clonos.faults import reach
from clonos.jobs.spec import SHUFFLE_PARTITIONS
from clonos.log.claiming import Ownership
from clonos.log.records import EpochCommitted, Plan, Record
from clonos.spark.internals import hadoop_configuration, jvm_of, repartition_state
from clonos.spark.stored_files import StoredFolder
from clonos.telemetry.driver_events import Rescaled
from clonos.telemetry.events import Emit

_FOLDER: Final = ".rescale-"
_REFUSALS: Final = ("STATE_REPARTITION_", "STDS_FAILED_TO_READ_STATE_SCHEMA")
_MESSAGE_CHARACTERS: Final = 500


class RescaleDue(EpochFailed):
    """The epochs in doubt are finished; the driver stops the query, and rescales it before its next epoch."""

    slug = "rescale-due"


class _Epoch(NamedTuple):
    """The epoch that rescales a query: its entries in Spark's logs."""

    number: int
    offsets: str
    commit: str


def rescale_to(
    partitions: int | None,
    spark: SparkSession,
    checkpoint: CheckpointDirectory,
    query: str,
    own: Ownership,
    emit: Emit,
    *,
    code: str,
    delivery: DeliveryMode,
) -> int | None:
    """Rescale a query that does not run, if its checkpoint has another number of partitions than requested.

    A rescale that an earlier owner committed and did not finish is finished first.

    Args:
        partitions: The requested number; None: the number stays.
        spark: The session.
        checkpoint: The query's checkpoint.
        query: Name of the query.
        own: The job's causal log, as claimed.
        emit: Reports the event ``rescaled``.
        code: Hash of the job's code.
        delivery: Delivery mode of the query's sink.

    Returns:
        The newest epoch in doubt, after which the query must be rescaled; None if nothing is left to do.

    Raises:
        RescaleRefused: Spark cannot repartition the query's state.
        CheckpointUnwritable: A file cannot be copied or written.
        Superseded: Another driver claimed the job; nothing has changed.
        EpochFailed: The work failed; a new attempt may succeed.
    """
    while True:
        committed = max(checkpoint.commits(), default=-1)
        plan = own.state.plan(query, committed + 1)
        if plan is not None and plan.rescaled_to:
            number = plan.rescaled_to
        elif partitions is None or checkpoint.partitions in (None, partitions):
            return None
        elif plan is not None or committed < 0:
            return max([0, *own.state.plans_beyond(query, committed)])
        else:
            number = partitions
        before, started = checkpoint.partitions, time.monotonic()
        epoch = _rescale(spark, checkpoint, query, own, number, code=code, delivery=delivery)
        duration_ms = round((time.monotonic() - started) * 1000)
        emit(Rescaled(query, epoch, before, number, duration_ms))


def _rescale(
    spark: SparkSession,
    checkpoint: CheckpointDirectory,
    query: str,
    own: Ownership,
    partitions: int,
    *,
    code: str,
    delivery: DeliveryMode,
) -> int:
    """Add an epoch to a query; from this epoch on it has other partitions.

    No epoch may be in doubt, except one that an interrupted call planned.
    """
    folder = StoredFolder(jvm_of(spark), hadoop_configuration(spark), checkpoint.location)
    try:
        with _scratch(folder, query) as copy:
            epoch = _repartitioned(spark, checkpoint, folder, copy, partitions)
    except OSError as error:
        raise CheckpointUnwritable(f"The checkpoint {checkpoint.location} cannot be rescaled: {error}.") from error
    reach("rescaled-state-copied", query=query, epoch=epoch.number)
    if own.state.plan(query, epoch.number) is None:
        _commit(own, _plan(own, query, epoch, partitions, code=code, delivery=delivery))
    reach("rescale-committed", query=query, epoch=epoch.number)
    checkpoint.add_epoch(epoch.number, offsets=epoch.offsets, commit=epoch.commit)
    return epoch.number


@contextlib.contextmanager
def _scratch(folder: StoredFolder, query: str) -> Iterator[StoredFolder]:
    """Provide a folder beside a query's checkpoint, which is removed in the end; also those that a crash left
    behind.
    """
    beside = folder.at(f"{folder.location.rpartition('/')[0]}/{_FOLDER}{query}")
    for left in beside.siblings("-"):
        left.delete()
    scratch = beside.at(f"{beside.location}-{uuid.uuid4().hex[:12]}")
    try:
        yield scratch.at(f"{scratch.location}/{query}")
    finally:
        with contextlib.suppress(OSError):
            scratch.delete()


def _repartitioned(
    spark: SparkSession, checkpoint: CheckpointDirectory, folder: StoredFolder, copy: StoredFolder, partitions: int
) -> _Epoch:
    """Repartition the newest epoch's state (steps 1 and 2)."""
    query = folder.location.rpartition("/")[2]
    files = folder.files()
    newest, names = files_of_epoch({f"{query}/{name}": size for name, size in files.items()}, query, None)
    names = [name.removeprefix(f"{query}/") for name in names]
    entry, commit = checkpoint.read_offsets(newest), folder.read_text(f"commits/{newest}")
    if entry is None or commit is None:
        raise CheckpointDamaged(f"{checkpoint.location} lacks the offsets or the commit of epoch {newest}.")
    epoch = newest + 1
    if not any(name.startswith("state/") for name in names):
        return _Epoch(epoch, _with_partitions(entry, partitions), commit)
    if missing := folder.copy(copy, names):
        raise CheckpointDamaged(f"{checkpoint.location} lacks the file {missing[0]}.")
    try:
        repartition_state(spark, copy.location, partitions)
    except (Py4JError, PySparkException) as error:
        reason = next((line for line in str(error).splitlines() if "[" in line), str(error))[:_MESSAGE_CHARACTERS]
        if not any(sign in str(error) for sign in _REFUSALS):
            raise EpochFailed(f"The state of {query} could not be repartitioned: {reason}") from error
        raise RescaleRefused(
            f"Spark cannot repartition the state of {query} from {checkpoint.partitions} to {partitions} partitions: "
            f"{reason}",
            hint=f"remove shufflePartitions from the specification, or set it to {checkpoint.partitions}.",
        ) from error
    offsets, commit = copy.read_text(f"offsets/{epoch}"), copy.read_text(f"commits/{epoch}")
    if offsets is None or commit is None:
        raise EpochFailed(f"Spark repartitioned the state of {query}, but wrote no epoch {epoch}.")
    known = {*names, *files}
    copy.copy(folder, [name for name in copy.files() if name.startswith("state/") and name not in known])
    return _Epoch(epoch, offsets, commit)


def _with_partitions(entry: str, partitions: int) -> str:
    """Return an offset-log entry with another number of partitions, as Spark's repartition writes it."""
    version, metadata, *sources = entry.splitlines()
    changed = json.loads(metadata)
    changed["conf"][SHUFFLE_PARTITIONS] = str(partitions)
    return "\n".join([version, json.dumps(changed, separators=(",", ":")), *sources])


def _plan(own: Ownership, query: str, epoch: _Epoch, partitions: int, *, code: str, delivery: DeliveryMode) -> Plan:
    return Plan(
        own.owner,
        query,
        epoch.number,
        input_slices=(),
        scans=(),
        log_partitions=(),
        start_offsets={},
        seed=0,
        code=code,
        offsets=epoch.offsets,
        timestamp_ms=epoch_time(epoch.offsets),
        delivery=delivery,
        rescaled_to=partitions,
    )


def _commit(own: Ownership, plan: Plan) -> None:
    """Commit the plan and the end of the epoch to the log, both or none (step 3)."""
    records: list[Record] = [plan, EpochCommitted(own.owner, plan.query, plan.epoch, 0)]
    with own.lock:
        for offset, record in zip(own.control.append_all(records), records, strict=True):
            own.state.take(offset, record)
