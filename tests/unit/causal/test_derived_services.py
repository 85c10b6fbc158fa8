"""Derived services: clock, random numbers and ids of an epoch; and all services outside a job."""

from __future__ import annotations

import datetime as dt
import time
import uuid

import pytest
from scopes import EPOCH, counted, recorder, task

import clonos
from clonos.causal import derived
from clonos.causal.epoch_scope import decode_scope, encode_scope
from clonos.causal.scope import TaskScope, begin_batch, row_scope, task_scope

pytestmark = pytest.mark.usefixtures("fake_recorder")


def test_services_work_outside_a_job() -> None:
    before = dt.datetime.now(dt.UTC)
    assert before <= clonos.now() <= clonos.clock("x") <= dt.datetime.now(dt.UTC)
    assert clonos.epoch() == -1
    assert 0 <= clonos.random() < 1
    assert clonos.random("k") != clonos.random("k")
    assert clonos.rng("k").random() != clonos.rng("k").random()
    assert clonos.uuid4().version == 4

    @clonos.service(timeout=5, retries=1, concurrency=2)
    def double(x: int) -> int:
        return 2 * x

    assert double(4) == 8
    assert double.name.endswith("double")


def test_missing_parameter_error_names_the_option() -> None:
    with pytest.raises(KeyError, match=r"-p colour="):
        clonos.param("colour")
    assert clonos.param("colour", "red") == "red"


def test_param_reads_the_drivers_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(derived, "_driver_params", {})
    derived.set_driver_params({"a": "1"})
    assert clonos.param("a") == "1"
    derived.set_driver_params({})
    assert clonos.param("a", "default") == "default"


def draws(scope: TaskScope, key: object) -> tuple[float, float, uuid.UUID]:
    with task_scope(scope), row_scope(0):
        return clonos.random(key), clonos.rng(key).random(), clonos.uuid4(key)


def test_derived_services_read_the_epoch() -> None:
    with task_scope(task()):
        assert clonos.now() == dt.datetime(2023, 11, 14, 22, 13, 20, 123_000, dt.UTC)
        assert clonos.epoch() == 3
        assert clonos.param("city") == "Berlin"
        with pytest.raises(KeyError, match="colour"):
            clonos.param("colour")


@pytest.mark.parametrize("key", ["k", 1, 1.5, b"k", ("t", 0, 17), None, {"b": 1, "a": 2}, dt.date(2024, 1, 1)])
def test_draws_repeat_in_a_replay(key: object) -> None:
    assert draws(task(), key) == draws(task(), key)
    assert draws(task(replay=False), key)[2].version == 4


def test_keyed_draw_depends_on_everything_but_the_task() -> None:
    base = draws(task(), "k")
    assert draws(task(number=1), "k") == base
    others = [
        draws(task(), "other"),
        draws(task("other"), "k"),
        draws(task(epoch=4), "k"),
        draws(task(seed=43), "k"),
        draws(task(query="r"), "k"),
    ]
    for index in range(3):
        assert len({values[index] for values in [base, *others]}) == 6
    assert base[0] != base[1]


def test_different_keys_have_different_draws() -> None:
    keys: list[object] = ["1", 1, b"1", ("1",), ("1", "1"), None]
    assert len({draws(task(), key)[2] for key in keys}) == len(keys)


def test_draw_without_a_key_depends_on_the_position() -> None:
    def row(number: int, index: int) -> list[float]:
        with task_scope(task(number=number)), row_scope(index):
            return [clonos.random(), clonos.random()]

    assert row(0, 5) == row(0, 5)
    assert len({*row(0, 5), *row(0, 6), *row(1, 5)}) == 6


def test_random_is_uniform_in_the_unit_interval() -> None:
    with task_scope(task()):
        numbers = [clonos.random(key) for key in range(2000)]
    assert 0 <= min(numbers) < 0.01 < 0.99 < max(numbers) < 1
    assert abs(sum(numbers) / 2000 - 0.5) < 0.05


def test_epoch_scope_survives_encoding() -> None:
    assert decode_scope(encode_scope(EPOCH)) == EPOCH


def test_a_live_epoch_has_the_time_of_the_batch_and_shares_answers_within_it() -> None:
    service, calls = counted()
    scope = task(live_since_ns=time.monotonic_ns() - 90_000_000_000, depth="0")
    times = []
    with task_scope(scope):
        for _ in range(2):
            begin_batch(scope.epoch)
            times += [clonos.now(), clonos.now()]
            service("a"), service("a")
            time.sleep(0.002)
            scope.flush()
    assert times[0] == times[1] < times[2] == times[3]
    assert 90 <= (times[0] - dt.datetime(2023, 11, 14, 22, 13, 20, 123_000, dt.UTC)).total_seconds() < 120
    assert len(calls) == 2
    assert recorder(scope).written == []


def test_the_time_of_a_live_epoch_on_a_cluster_follows_the_clock_of_the_executors_host() -> None:
    """But it begins no earlier than the epoch: the clock of the host may be behind."""

    def read(began_ms: int, since_ns: int) -> float:
        scope = task(live_since_ns=since_ns, timestamp_ms=began_ms, depth="0")
        with task_scope(scope):
            begin_batch(scope.epoch)
            return clonos.now().timestamp()

    now = time.time()
    ahead = int(now) + 3_600
    first = read(0, -1)
    assert abs(first - now) < 60
    assert 0 <= read(ahead * 1000, -2) - ahead < 60
    time.sleep(0.002)
    assert read(0, -3) < ahead
    assert read(0, -3) > first
