"""The demo freezes a driver only while the causal log shows a published lane of an epoch that is not committed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import psutil
import pytest

from clonos.errors import BrokerUnavailable
from clonos.log.claiming import Ownership, claim
from clonos.log.control import lane_id
from clonos.log.reading import LogReader
from clonos.log.records import EpochCommitted, InputSlice, Marker, encode
from clonos.log.transaction import TransactionalProducer
from clonos.settings import KafkaSettings
from clonos.testing.harness import ChildProcess, eventually
from clonos_demo.in_doubt import EpochInDoubt
from support.planning import planned

Step = Callable[[], None]


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[ChildProcess]:
    process = ChildProcess([sys.executable, "-c", "import signal; signal.pause()"], {}, tmp_path / "driver.log")
    yield process
    process.kill()


def publish(own: Ownership, epoch: int) -> None:
    """Commit the marker of lane 0."""
    producer = TransactionalProducer(own.kafka, lane_id(own.job, "words", 0), own.topic)
    marker = Marker(own.owner, "words", epoch, 0, InputSlice("range", "in", 0, epoch, epoch + 1), 1, bytes(16))
    (offset,) = producer.commit_all(own.topic, [encode(marker)], own.state.lanes["words", 0])
    own.reader.tail(own.state.lanes["words", 0], visible=offset)
    producer.dispose()


def test_a_driver_is_frozen_between_a_published_lane_and_the_commit(
    kafka: KafkaSettings, name: str, driver: ChildProcess
) -> None:
    own = claim(kafka, name)

    def commit() -> None:
        offset = own.control.append(EpochCommitted(own.owner, "words", 0, 1))
        own.control.check_owner(visible=offset)  # a commit becomes visible a moment after its confirmation

    steps: list[Step] = [
        lambda: planned(own, "words", 0, committed=False),
        lambda: publish(own, 0),
        commit,
        lambda: planned(own, "words", 1, committed=False),
        lambda: publish(own, 1),
    ]
    done: list[Step] = []
    frozen_after = [2, 5]

    def output(_timeout_s: float) -> bool:
        assert psutil.Process(driver.pid).status() != psutil.STATUS_STOPPED
        step = steps[len(done)]
        step()
        done.append(step)
        return True

    in_doubt = EpochInDoubt(kafka, name, output)
    try:
        for number in frozen_after:
            assert in_doubt.freeze(driver)
            assert len(done) == number
            stopped = psutil.Process(driver.pid)
            eventually(lambda stopped=stopped: stopped.status() == psutil.STATUS_STOPPED, "the driver is stopped")
            driver.resume()
    finally:
        in_doubt.close()


def test_a_driver_runs_on_without_output(kafka: KafkaSettings, name: str, driver: ChildProcess) -> None:
    own = claim(kafka, name)
    planned(own, "words", 0)
    in_doubt = EpochInDoubt(kafka, name, lambda _timeout_s: False)
    try:
        assert not in_doubt.freeze(driver)
    finally:
        in_doubt.close()
    assert psutil.Process(driver.pid).status() != psutil.STATUS_STOPPED


def test_a_driver_continues_if_the_log_cannot_be_read(
    kafka: KafkaSettings, name: str, driver: ChildProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(claim(kafka, name), "words", 0)

    def unavailable(*_: object) -> NoReturn:
        assert psutil.Process(driver.pid).status() == psutil.STATUS_STOPPED
        raise BrokerUnavailable("Kafka did not answer.")

    def output(_timeout_s: float) -> bool:
        monkeypatch.setattr(LogReader, "tail", unavailable)
        return True

    in_doubt = EpochInDoubt(kafka, name, output)
    try:
        with pytest.raises(BrokerUnavailable):
            in_doubt.freeze(driver)
    finally:
        in_doubt.close()
    assert psutil.Process(driver.pid).status() != psutil.STATUS_STOPPED
