"""Reads the newest producers of a sink's lanes between two epochs, so that the next epoch need not wait for Kafka.

An answer is used while the lane's newest claim or marker is still the marker before it: since then this owner has not
opened the lane's transactional id. A successor claims the job first, and the next epoch checks that after it has taken
the answer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from pyspark.sql import SparkSession

from clonos_sinks.kafka.clients import NewestProducer, newest_producers, transaction_version


class _Answer(NamedTuple):
    marker_offset: int  # of the lane's newest marker when Kafka was asked
    producer: NewestProducer


class ReadAhead:
    """The newest producers of the lanes of one sink, and the version of the cluster's transactions."""

    def __init__(self) -> None:
        self._answers: dict[str, _Answer] = {}
        self._reading: Future[dict[str, _Answer]] | None = None
        self._thread = ThreadPoolExecutor(1, "clonos-read-ahead")
        self._version: int | None = None

    def version(self, spark: SparkSession, connection: Mapping[str, str]) -> int:
        """Return the version of Kafka's transactions, read once.

        Raises:
            ProducerFailed: Kafka did not describe it.
        """
        if self._version is None:
            self._version = transaction_version(spark, connection)
        return self._version

    def producers(
        self, spark: SparkSession, connection: Mapping[str, str], offsets: Mapping[str, int]
    ) -> dict[str, NewestProducer]:
        """Return the newest producer of each transactional id.

        Args:
            spark: The session.
            connection: The options that Kafka's Java clients need to connect.
            offsets: Transactional id → offset of the lane's newest claim or marker; -1: it is not known.

        Raises:
            ClonosError: Kafka did not answer.
        """
        if self._reading is not None:
            with contextlib.suppress(Exception):  # it is asked again below
                self._answers |= self._reading.result()
            self._reading = None
        known = {
            name: answer.producer
            for name, offset in offsets.items()
            if (answer := self._answers.get(name)) is not None and offset == answer.marker_offset >= 0
        }
        missing = [name for name in offsets if name not in known]
        return known | (newest_producers(spark, connection, missing) if missing else {})

    def begin(self, spark: SparkSession, connection: Mapping[str, str], markers: Mapping[str, int]) -> None:
        """Ask for the newest producers in the background, once all transactions of an epoch have ended.

        `markers` are the transactional ids that committed, with the offsets of their markers.
        """

        def read() -> dict[str, _Answer]:
            newest = newest_producers(spark, connection, list(markers))
            return {name: _Answer(offset, newest[name]) for name, offset in markers.items()}

        self._reading = self._thread.submit(read) if markers else None

    def forget(self) -> None:
        """Discard all answers: an epoch has failed."""
        self._answers.clear()
        self._reading = None

    def close(self) -> None:
        """Read nothing more."""
        self.forget()
        self._thread.shutdown(wait=False)
