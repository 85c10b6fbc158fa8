"""A job's queries run with no rows, on scratch checkpoints: so that classes are loaded and code is generated.

For a query of which something is committed, the scratch checkpoint is made of the job's own
(`clonos.standby.scratch`). For any other:

1. Spark starts it on an empty folder and is stopped as soon as it has planned the first epoch: the folder then holds
   what Spark wrote of the sources' offsets, in Spark's own form.
2. The planned epoch is narrowed to nothing: it ends where it began.
3. Spark starts it again, as a takeover does, and replays the epoch: planning, shuffles, state, Python workers and the
   way to the sink are all used, but no row gets past a source, nothing is published and the sink is not asked.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from clonos.causal.scope import PROPERTY, EpochScope, encode_scope
from clonos.causal.shape import has_rows_of_nothing
from clonos.engine.planned import read_plan
from clonos.job import Query
from clonos.lanes import publish_rest, run_lanes
from clonos.log.records import Owner
from clonos.log.topic import log_topic
from clonos.runner.running import INTERRUPTED, EpochEnded
from clonos.settings import KafkaSettings
from clonos.sinks import LaneReport, SinkEpoch
from clonos.standby.scratch import State, link_checkpoint

_log = logging.getLogger("clonos")
_NOBODY: Final = Owner(0, 0, "rehearsal")
_PATIENCE_S: Final = 60.0
_LOOK_S: Final = 0.01


class NotRehearsed(Exception):
    """A query could not be rehearsed; it can be taken over all the same, only slower."""


class Rehearsal:
    """Runs queries with no rows.

    Args:
        spark: The session in which they are defined.
        kafka: The cluster.
        job: The job's name.
        scratch: A folder; what is left in it goes with the session.
    """

    def __init__(self, spark: SparkSession, kafka: KafkaSettings, job: str, scratch: Path) -> None:
        self._spark = spark
        self._kafka = kafka
        self._job = job
        self._scratch = scratch
        self._numbers = itertools.count()

    def run(
        self, query: Query, *, newest: bool, times: int, enough: Callable[[], bool], own: Path | None = None
    ) -> State:
        """Run it `times` times.

        Args:
            query: The query.
            newest: Read the newest record of each partition, which the query must not let get past its sources;
                otherwise nothing is read, and a query without a shuffle has no tasks.
            times: How often.
            enough: Whether to stop half way.
            own: The query's real checkpoint, if it is a path of this machine.

        Returns:
            What of the job's own checkpoint was read.

        Raises:
            NotRehearsed: Why it was not.
        """
        if has_rows_of_nothing(query.frame):
            raise NotRehearsed(f"{query.name} has a row where there is no input, with which functions would be called")
        try:
            if newest and own is not None and rehearsable(query):
                state = self._on_own(query, own, times, enough)
                if state != "nothing":
                    return state
            if not enough():
                with self._folder(query) as folder:
                    _run(query, folder, lambda _frame: None, enough)
                    if not enough():
                        narrow(folder, newest=newest)
                    self._replay(query, folder, times, enough)
        except OSError as error:
            raise NotRehearsed(f"{query.name}: {error}") from error
        return "nothing"

    def _on_own(self, query: Query, own: Path, times: int, enough: Callable[[], bool]) -> State:
        """Rehearse on the job's own checkpoint, if that can be done."""
        try:
            with self._folder(query) as folder:
                state = link_checkpoint(own, folder)
                if state != "nothing":
                    self._replay(query, folder, times, enough)
                return state
        except NotRehearsed as error:
            _log.info("not rehearsed on the job's own checkpoint: %s", error)
            return "nothing"

    @contextlib.contextmanager
    def _folder(self, query: Query) -> Iterator[Path]:
        # Another one each time: Spark may still write into the one before.
        folder = self._scratch / f"rehearsal-{query.name}-{next(self._numbers)}"
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _replay(self, query: Query, folder: Path, times: int, enough: Callable[[], bool]) -> None:
        for _ in range(times):
            if not enough():
                _run(query, folder, partial(self._empty, query), enough)

    def _empty(self, query: Query, frame: DataFrame) -> None:
        context = self._spark.sparkContext
        streams = self._spark._jsparkSession.streams()
        running = streams.get(context.getLocalProperty("sql.streaming.queryId")).streamingQuery()
        planned = read_plan(running.lastExecution(), frame._jdf.queryExecution().logical().rdd().getNumPartitions())
        topic, held = log_topic(self._job), planned.held
        scope = EpochScope(self._job, topic, query.name, 0, 0, 0, _NOBODY, False, "0", (), {}, {}, {}, rehearsal=True)
        epoch = SinkEpoch(
            self._kafka, self._job, topic, _NOBODY, query.name, 0, held, planned.lanes(), tuple(range(len(held))),
            replay=False, ended=False, markers={},
        )  # fmt: skip
        context.setLocalProperty(PROPERTY, encode_scope(scope))
        try:
            # As a replay of which some lanes are published does it, too.
            publish_rest(frame, epoch, set(epoch.lanes[:1]), lambda rows, _: run_lanes(rows, epoch, _unpublished))
            run_lanes(frame, epoch, _unpublished)
        finally:
            context.setLocalProperty(PROPERTY, None)  # type: ignore[arg-type]


def rehearsable(query: Query) -> bool:
    """Whether it may be rehearsed on its own state: in complete mode all of that comes to functions of the user's."""
    return query.sink.output_mode != "complete"


def _unpublished(epoch: SinkEpoch, lane: int, batches: Iterator[pa.RecordBatch]) -> LaneReport:
    return LaneReport(lane, "empty", sum(batch.num_rows for batch in batches), b"")


def _run(query: Query, folder: Path, epoch: Callable[[DataFrame], None], enough: Callable[[], bool]) -> None:
    """Start it, have `epoch` called with the first frame, and stop it there; or before that, if it is `enough`."""
    failure: list[BaseException] = []
    done, stopped = threading.Event(), threading.Event()

    def once(frame: DataFrame, _number: int) -> None:
        try:
            epoch(frame)
        except BaseException as error:
            failure.append(error)
        finally:
            done.set()
        stopped.wait(_PATIENCE_S)
        # Not to be committed: the next start shall find the epoch in doubt.
        raise EpochEnded(INTERRUPTED)

    writer = query.frame.writeStream.outputMode(query.sink.output_mode).option("checkpointLocation", f"file://{folder}")
    stream: Any = writer.foreachBatch(once).start()
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while not done.wait(_LOOK_S) and not enough():
            if not stream.isActive and not done.is_set():
                raise NotRehearsed(f"{query.name}: {stream.exception()}")
            if time.monotonic() > deadline:
                raise NotRehearsed(f"{query.name} planned no epoch within {_PATIENCE_S:g} s")
    finally:
        with contextlib.suppress(Exception):
            threading.Thread(target=_release, args=(stream, stopped), daemon=True).start()
            stream.stop()
    if failure and not enough():
        raise NotRehearsed(f"{query.name}: {type(failure[0]).__name__}: {failure[0]}") from failure[0]


def _release(stream: Any, stopped: threading.Event) -> None:
    """Let the epoch go once its query is being stopped: before that, Spark logs its end as a failure."""
    with contextlib.suppress(Exception):
        while stream.isActive:
            time.sleep(_LOOK_S)
    stopped.set()


def narrow(folder: Path, *, newest: bool) -> None:
    """Let the planned epoch hold nothing, or the newest record of each partition."""
    entry = folder / "offsets" / "0"
    version, metadata, *ends = entry.read_text().splitlines()
    for number, end in enumerate(ends):
        first = folder / "sources" / str(number) / "0"
        lines = first.read_text().splitlines() if first.is_file() else []
        if len(lines) != 2 or not (_is_json(lines[1]) and _is_json(end)):
            raise NotRehearsed(f"source {number} does not say where it begins")
        if newest:
            first.write_text(f"{lines[0]}\n{_before(json.loads(lines[1]), json.loads(end))}")
            (first.parent / ".0.crc").unlink(missing_ok=True)
        else:
            ends[number] = lines[1]
    entry.write_text("\n".join([version, metadata, *ends]))
    (entry.parent / ".0.crc").unlink(missing_ok=True)


def _before(begin: dict[str, dict[str, int]], end: dict[str, dict[str, int]]) -> str:
    """Offsets one before the end, where there is anything since the beginning."""
    return json.dumps(
        {
            topic: {one: max(begin.get(topic, {}).get(one, 0), offset - 1) for one, offset in partitions.items()}
            for topic, partitions in end.items()
        },
        separators=(",", ":"),
    )


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
