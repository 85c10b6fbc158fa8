"""A JVM that exits, and a stop that is requested before the driver exists."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from clonos.driver import driver as driver_module
from clonos.driver import process
from clonos.driver.driver import Driver
from clonos.driver.options import RunOptions
from clonos.driver.states import DriverState
from clonos.errors import (
    BY_EXIT_CODE,
    CheckpointUnavailable,
    ClonosError,
    EpochFailed,
    JobCodeError,
    JvmExited,
    RestartsExhausted,
)
from clonos.jobs.definition import Job
from clonos.jobs.spec import JobSpec, Metadata, RestartPolicy, Spec
from clonos.settings import KafkaSettings
from clonos.spark import jvm as gateway
from clonos.spark import session
from clonos.spark.jvm import GatewayProcess
from clonos.spark.session import Session
from clonos.telemetry.events import Events
from support.event_fields import into

JOB = Job(lambda _ctx: None, JobSpec(metadata=Metadata(name="j")))


@pytest.fixture
def handlers() -> Iterator[None]:
    """Restores the handlers of the signals."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def ends_with(
    failure: Exception, *, alive: bool, monkeypatch: pytest.MonkeyPatch
) -> tuple[BaseException, dict[str, Any]]:
    """The error that ends a driver, and its ``failed`` event."""
    seen: list[dict[str, Any]] = []
    spark: Any = None
    driver = Driver(JOB, spark, KafkaSettings(), Events("j", None, [into(seen)]), RunOptions())

    def attempt(_prepared: object) -> ClonosError | None:
        if isinstance(failure, ClonosError):
            return failure
        raise failure

    monkeypatch.setattr(driver, "define", lambda: None)
    monkeypatch.setattr(driver, "check", lambda: None)
    monkeypatch.setattr(driver, "_attempt", attempt)
    monkeypatch.setattr(driver_module, "alive", lambda _spark: alive)
    monkeypatch.setattr(driver_module, "await_brokers", lambda *_of, **_options: None)
    with pytest.raises(Exception) as raised:
        driver.run()
    return raised.value, next(event for event in seen if event["event"] == "failed")


@pytest.mark.parametrize("failure", [ConnectionRefusedError(111, "Connection refused"), EpochFailed("Py4JError: x")])
def test_a_killed_jvm_is_a_typed_error_that_is_retried(failure: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    error, event = ends_with(failure, alive=False, monkeypatch=monkeypatch)
    assert isinstance(error, JvmExited)
    assert error.retry
    assert BY_EXIT_CODE[error.exit_code] is JvmExited
    assert event["error"] == "jvm-exited"
    assert event["kept"]
    assert event["hint"]


def test_other_errors_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    unexpected = RuntimeError("a defect")
    assert ends_with(unexpected, alive=True, monkeypatch=monkeypatch)[0] is unexpected
    mine = JobCodeError("mine")
    assert ends_with(mine, alive=True, monkeypatch=monkeypatch)[0] is mine


def test_a_jvm_that_exits_before_the_driver_runs_is_typed_too(handlers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def run(*_arguments: object) -> None:
        raise Py4JNetworkError("Answer from Java side is empty")

    monkeypatch.setattr(process, "_run", run)
    with pytest.raises(JvmExited, match="Answer from Java side is empty"):
        process.run_job(JOB, RunOptions(), handlers=[into(seen)])
    assert [event["error"] for event in seen if event["event"] == "failed"] == ["jvm-exited"]


def test_failures_count_as_effects_of_an_outage_only_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow answer of Kafka within the last 90 s must not hide another cause for ever."""
    policy = RestartPolicy(attempts=2, initialBackoff="1ms")
    job = replace(JOB, spec=JOB.spec.model_copy(update={"spec": Spec(restartPolicy=policy)}))
    spark: Any = None
    seen: list[dict[str, Any]] = []
    driver = Driver(job, spark, KafkaSettings(), Events("j", None, [into(seen)]), RunOptions())
    for name in ("define", "check"):
        monkeypatch.setattr(driver, name, lambda: None)

    def attempt(_prepared: object) -> ClonosError:
        driver._to(DriverState.CLAIMING)
        return EpochFailed("a worker ran out of memory")

    monkeypatch.setattr(driver, "_attempt", attempt)
    monkeypatch.setattr(driver, "_stopped_within", lambda _seconds: False)
    monkeypatch.setattr(driver._kafka_watch, "was_silent_within", lambda _seconds: True)
    monkeypatch.setattr(driver_module, "alive", lambda _spark: True)
    monkeypatch.setattr(driver_module, "await_brokers", lambda *_of, **_options: None)
    monkeypatch.setattr(driver_module, "wait_for_kafka", lambda *_of, **_options: True)
    with pytest.raises(RestartsExhausted, match="a worker ran out of memory"):
        driver.run()
    names = [event["event"] for event in seen if event["event"] in ("waiting", "restart")]
    assert names == ["waiting"] * 5 + ["restart"] * 2


def test_a_driver_waits_until_the_file_system_of_its_checkpoint_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    away = CheckpointUnavailable("HDFS does not answer.")
    spark: Any = None
    seen: list[dict[str, Any]] = []
    driver = Driver(JOB, spark, KafkaSettings(), Events("j", None, [into(seen)]), RunOptions())
    checks = iter([None, away, away, away, None])
    attempts: list[ClonosError | None] = [EpochFailed("Spark could not write"), None]

    def check() -> None:
        if (error := next(checks)) is not None:
            raise error

    monkeypatch.setattr(driver, "define", lambda: None)
    monkeypatch.setattr(driver, "check", check)
    monkeypatch.setattr(driver, "_attempt", lambda _prepared: attempts.pop(0))
    monkeypatch.setattr(driver, "_stopped_within", lambda _seconds: False)
    monkeypatch.setattr(driver_module, "alive", lambda _spark: True)
    monkeypatch.setattr(driver_module, "await_brokers", lambda *_of, **_options: None)
    monkeypatch.setattr(driver_module, "wait_for_kafka", lambda *_of, **_options: True)
    driver.run()
    assert (attempts, list(checks)) == ([], [])
    assert [event["error"] for event in seen if event["event"] == "waiting"] == ["checkpoint-unavailable"]
    assert "restart" not in [event["event"] for event in seen]


class GoneSpark:
    """A Spark session whose JVM does not answer."""

    def stop(self) -> None:
        raise ConnectionRefusedError(111, "Connection refused")


def test_stop_of_a_session_without_a_jvm_raises_nothing(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.PIPE)
    spark: Any = GoneSpark()
    Session(spark, GatewayProcess(ended), tmp_path / "scratch").stop()
    assert ended.returncode is not None


def idle_jvm() -> subprocess.Popen[bytes]:
    """A process that exits at the end of its input, as Spark's JVM does."""
    return subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)


def test_a_session_that_does_not_stop_loses_its_jvm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_STOP_S", 0.1)
    jvm = idle_jvm()

    def stop() -> None:
        jvm.wait(60)  # as a call of a JVM that does not answer: it ends with the JVM
        raise ConnectionResetError(104, "Connection reset by peer")

    spark: Any = SimpleNamespace(stop=stop)
    Session(spark, GatewayProcess(jvm), tmp_path / "scratch").stop()
    assert jvm.returncode == -signal.SIGKILL


def test_connections_are_closed_after_the_jvm_exited(monkeypatch: pytest.MonkeyPatch) -> None:
    jvm = idle_jvm()
    ended: list[int | None] = []
    monkeypatch.setattr(gateway, "_forget_gateway", lambda: ended.append(jvm.poll()))
    GatewayProcess(jvm).stop()
    assert ended == [0], "the JVM exits at the end of its input"


def test_a_stop_before_the_driver_exists_ends_cleanly(handlers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def build(*_arguments: object, **_options: object) -> Session:
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("the signal did not arrive")

    monkeypatch.setattr(process, "build_session", build)
    monkeypatch.setattr(process, "ensure_jars", lambda _settings: SimpleNamespace())
    monkeypatch.setattr(process, "reachable_kafka", lambda _settings: KafkaSettings())
    process.run_job(JOB, RunOptions(), handlers=[into(seen)], advice=False)
    assert [event["state"] for event in seen if event["event"] in ("state", "summary")] == ["STOPPED", "STOPPED"]
