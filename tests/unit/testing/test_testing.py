"""`clonos.testing`, as a job's own unit tests use it."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, assert_type

import msgspec
import pytest
import stamina

import clonos
from clonos import faults
from clonos.causal.epoch_scope import EpochScope
from clonos.causal.scope import TaskScope, row_scope, task_scope
from clonos.causal.service import _key
from clonos.errors import ServiceError
from clonos.log.exported import export
from clonos.log.history import Entered
from clonos.log.records import Determinant, Determinants, EpochIdentity, InputSlice, Owner, Plan, Record
from clonos.testing import (
    NotRecorded,
    Unscripted,
    abort,
    after,
    fault_environment,
    fixed,
    replay,
    script,
)


@pytest.fixture(autouse=True)
def _no_pauses() -> Iterator[None]:
    stamina.set_testing(True, attempts=10, cap=True)
    yield
    stamina.set_testing(False)


@clonos.service
def is_banned(word: str) -> bool:
    raise AssertionError("a test calls nobody")


@clonos.service(retries=2, timeout=2.0, name="rates.of")
def rate(currency: str, day: dt.date | None = None, *, precise: bool = False) -> dict[str, float]:
    raise AssertionError("a test calls nobody")


@clonos.service(retries=1, timeout=0.2)
def impatient(word: str) -> dict[str, float]:
    raise AssertionError("a test calls nobody")


@clonos.service(on_outage="record")
def lookup(words: list[str]) -> str:
    raise AssertionError("a test calls nobody")


@clonos.udf("struct<banned:boolean,at:timestamp>")
def judge(word: str) -> dict[str, Any]:
    return {"banned": is_banned(word), "at": clonos.clock(word)}


def lenient(word: str) -> bool:
    """Code that continues after a service has failed."""
    try:
        return is_banned(word)
    except Exception:
        return False


# Scripts.


def test_a_mapping_answers_and_calls_are_kept() -> None:
    with script(is_banned, {"bad": True, ("good",): False}) as scripted:
        assert is_banned("bad")
        assert not is_banned("good")
        verdict = judge.function("bad")
        assert_type(verdict, dict[str, Any])
        assert verdict["banned"] is True
        assert scripted.calls == [("bad",), ("good",), ("bad",)]
    assert scripted.calls == [("bad",), ("good",), ("bad",)]
    with pytest.raises(AssertionError, match="a test calls nobody"):
        is_banned("bad")


def test_scripts_match_positional_keyword_and_default_arguments() -> None:
    day = dt.date(2024, 5, 1)
    answers = {"EUR": {"eur": 1.0}, ("USD", day): {"usd": 1.1}, ("GBP", None, True): {"gbp": 0.8}}
    with script(rate, answers) as scripted:
        assert rate("EUR") == {"eur": 1.0}
        assert rate(currency="EUR") == {"eur": 1.0}
        assert rate("USD", day=day) == {"usd": 1.1}
        assert rate("GBP", precise=True) == {"gbp": 0.8}
    assert scripted.calls == [("EUR",), ("EUR",), ("USD", day), ("GBP", True)]


def test_arguments_that_cannot_be_hashed() -> None:
    class Words(dict[Any, Any]):
        def items(self) -> Any:
            return [(["a", "b"], "both")]

    with script(lookup, lambda words: "+".join(words)):
        assert lookup(["a", "b"]) == "a+b"
    with script(lookup, Words()):
        assert lookup(["a", "b"]) == "both"


def test_what_is_not_scripted_is_a_clear_error_that_nothing_swallows() -> None:
    with script(is_banned, {"bad": True}), pytest.raises(Unscripted, match=r"no answer for \('other',\).*'bad'"):
        lenient("other")


def test_a_sequence_answers_in_order_and_ends() -> None:
    with script(is_banned, [True, False]) as scripted:
        assert [is_banned("a"), is_banned("a")] == [True, False]
        with pytest.raises(Unscripted, match="has 2 answers; this is call 3"):
            is_banned("a")
    assert len(scripted.calls) == 3


def test_a_sequence_is_shared_by_threads() -> None:
    with script(is_banned, list(range(200))), ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(is_banned, ["w"] * 200)) == list(range(200))


def test_errors_are_retried_and_delays_time_out() -> None:
    with script(rate, [ConnectionError("503"), after(0, TimeoutError("again")), {"x": 1.0}]) as scripted:
        assert rate("x") == {"x": 1.0}
    assert len(scripted.calls) == 3
    with script(rate, [ConnectionError("503")] * 3), pytest.raises(ServiceError, match=r"rates\.of failed: Conn.*503"):
        rate("x")
    with script(impatient, {"slow": after(30, {})}), pytest.raises(ServiceError, match=r"gave no answer in 0\.2 s"):
        impatient("slow")
    with script(is_banned, {"x": ValueError}), pytest.raises(ValueError) as own:
        is_banned("x")
    assert type(own.value) is ValueError, "an exception of the code is not a failure of the service"


def test_scripts_nest() -> None:
    with script(is_banned, {"a": True}):
        with script(is_banned, {"a": False}), script(rate, {"x": {}}):
            assert is_banned("a") is False
        assert is_banned("a") is True


def test_the_clock_can_be_scripted() -> None:
    day = dt.datetime(2024, 5, 1, tzinfo=dt.UTC)
    with script(clonos.clock, {"start": day, (): day + dt.timedelta(1)}):
        assert clonos.clock("start") == day
        assert clonos.clock().day == 2
        with fixed(now=day + dt.timedelta(9)):
            assert clonos.clock("start") == day
    with fixed(now=day), script(clonos.clock, [day + dt.timedelta(3)]):
        assert clonos.clock().day == 4


@pytest.mark.parametrize("wrong", [print, lambda word: True, None])
def test_only_services_are_scripted(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"is not a @clonos\.service"):
        script(wrong, {})


@pytest.mark.parametrize("answers", ["text", 5, None])
def test_answers_of_the_wrong_kind(answers: Any) -> None:
    with pytest.raises(TypeError, match="must be a mapping"):
        script(is_banned, answers)


# An invented epoch.


def draws() -> tuple[Any, ...]:
    return (clonos.random("k"), clonos.rng("k").random(), clonos.uuid4("k"), clonos.random(), clonos.uuid4())


def test_a_fixed_epoch() -> None:
    now = dt.datetime(2024, 5, 1, 12, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    with fixed(now=now, seed=7, epoch=12, params={"city": "Berlin"}) as scope:
        assert clonos.now() == now == scope.now
        assert clonos.now().tzinfo == dt.UTC
        assert clonos.clock("x") == now
        assert clonos.epoch() == 12 == scope.epoch
        assert clonos.param("city") == "Berlin"
        with pytest.raises(KeyError):
            clonos.param("colour")
    assert clonos.epoch() == -1


def test_a_fixed_epoch_draws_the_same_each_time() -> None:
    def drawn(**given: Any) -> tuple[Any, ...]:
        with fixed(**given):
            return draws()

    assert drawn(seed=7) == drawn(seed=7)
    assert len({*drawn(seed=7), *drawn(seed=8), *drawn(seed=7, epoch=1), *drawn(seed=7, operator="x")}) == 20


def test_rows_of_a_fixed_epoch() -> None:
    with fixed() as scope:
        with scope.row(0):
            first = clonos.random()
        with scope.row(1):
            second = clonos.random()
        with scope.row(0):
            assert clonos.random() == first != second


def test_a_fixed_epoch_shares_answers_and_decodes_them() -> None:
    with fixed(), script(is_banned, [True]) as scripted:
        assert [is_banned("a"), is_banned("a")] == [True, True]
    assert len(scripted.calls) == 1


def test_a_fixed_epoch_wants_a_time_zone() -> None:
    with pytest.raises(ValueError, match="no time zone"), fixed(now=dt.datetime(2024, 1, 1)):
        pass


# A recorded epoch.

AT = 1_700_000_000_123
OWNER = Owner(1, 4, "d")
PLAN = Plan(OWNER, "words", 12, (), ((InputSlice("range", "lines", 0, 0, 9),),), (1, 2), {}, 2**62 + 11, "c", "o", AT)


def recorded(service: str, answer: Any, *args: Any, failed: bool = False) -> Determinant:
    value = answer.encode() if failed else msgspec.msgpack.encode(answer)
    return Determinant(_key(service, args, {}), value, failed, service)


CLOCK = dt.datetime(2024, 5, 1, 12, 30, tzinfo=dt.UTC)
FIRST = Determinants(
    OWNER,
    "words",
    12,
    "judge",
    0,
    (
        recorded(is_banned.name, True, "bad"),
        recorded("clonos.clock", CLOCK, "bad"),
        recorded("rates.of", {"x": 1}, "x"),
    ),
)


def exported(*records: Record, void: str = "") -> list[dict[str, Any]]:
    lines = [msgspec.json.encode(export("j", Entered(0, n, AT, 1, record, void))) for n, record in enumerate(records)]
    return [json.loads(line) for line in lines]


RECORDS = exported(PLAN, FIRST)


def test_a_replay_answers_what_was_recorded(tmp_path: Path) -> None:
    file = tmp_path / "epoch12.json"
    file.write_text("\n".join(json.dumps(record) for record in RECORDS) + "\n")
    for records in (RECORDS, file, str(file), iter(RECORDS)):
        with replay(records, operator="judge", params={"city": "Berlin"}) as scope:
            assert judge.function("bad") == {"banned": True, "at": CLOCK}
            assert judge.function("bad") == {"banned": True, "at": CLOCK}
            assert rate("x") == {"x": 1.0}
            assert clonos.param("city") == "Berlin"
            assert (clonos.epoch(), scope.epoch, scope.query) == (12, 12, "words")
            assert clonos.now() == scope.now == dt.datetime.fromtimestamp(AT / 1000, dt.UTC)


def test_a_replay_draws_as_production_did() -> None:
    production = EpochScope(EpochIdentity("j", "t", "words", 12, OWNER, False), AT, PLAN.seed, "0", (1, 2), {}, {}, {})
    with task_scope(TaskScope(production, "judge", 1)), row_scope(0):
        then = draws()
    with replay(RECORDS, operator="judge", task=1):
        assert draws() == then
    with replay(RECORDS, operator="judge", task=0):
        assert draws()[:3] == then[:3]
        assert draws()[3:] != then[3:]


def test_what_was_not_recorded_is_a_clear_error_that_nothing_swallows() -> None:
    with replay(RECORDS, operator="judge", task=0), pytest.raises(NotRecorded) as raised:
        lenient("other")
    message = str(raised.value)
    assert message.startswith(
        f"{is_banned.name}('other') was not recorded by operator 'judge' task 0 in epoch 12 of words."
    )
    assert f"operator 'judge' task 0: clonos.clock x1, rates.of x1, {is_banned.name} x1" in message
    assert "This very call" not in message


def test_an_answer_of_another_task_is_pointed_at() -> None:
    with (
        replay(RECORDS, operator="judge", task=5),
        pytest.raises(NotRecorded, match="This very call was recorded by operator 'judge' task 0"),
    ):
        is_banned("bad")


def test_recorded_failures_fail_again() -> None:
    failure = Determinants(OWNER, "words", 12, "judge", 0, (recorded(lookup.name, "no luck", ["a"], failed=True),))
    with replay(exported(PLAN, failure), operator="judge"), pytest.raises(ServiceError, match="no luck"):
        lookup(["a"])


def test_the_first_valid_answer_counts() -> None:
    void = msgspec.structs.replace(FIRST, determinants=(recorded(is_banned.name, False, "bad"),))
    later = msgspec.structs.replace(FIRST, determinants=(recorded(is_banned.name, False, "bad"),))
    with replay([*exported(void, void="owned by another"), *RECORDS, *exported(later)], operator="judge"):
        assert is_banned("bad") is True


def test_of_two_lineages_the_newer_counts() -> None:
    owner = Owner(2, 5, "e")
    plan = msgspec.structs.replace(PLAN, owner=owner, seed=1)
    again = msgspec.structs.replace(FIRST, owner=owner, determinants=(recorded(is_banned.name, False, "bad"),))
    with replay([*RECORDS, *exported(plan, again)], operator="judge"):
        assert is_banned("bad") is False


def test_what_to_replay_must_be_clear() -> None:
    other = msgspec.structs.replace(PLAN, query="totals")
    both = [*RECORDS, *exported(other)]
    with (
        pytest.raises(ValueError, match="words epoch 12, totals epoch 12: choose with query="),
        replay(both, operator="x"),
    ):
        pass
    with replay(both, operator="judge", query="words"):
        assert is_banned("bad")
    with (
        pytest.raises(ValueError, match="hold words epoch 12: export the whole epoch"),
        replay(RECORDS, operator="x", epoch=3),
    ):
        pass
    with pytest.raises(ValueError, match="hold no plan"), replay(exported(FIRST), operator="judge"):
        pass


@pytest.mark.parametrize("text", ["nonsense", '{"a": 1}', "[1]", '{"kind": "plan"}'])
def test_a_file_that_is_not_an_export(text: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_text(text)
    with (
        pytest.raises(ValueError, match="is not an output of `clonos causal-log cat"),
        replay(tmp_path / "x", operator="judge"),
    ):
        pass


def test_a_script_may_answer_what_was_not_recorded() -> None:
    with replay(RECORDS, operator="judge"), script(is_banned, {"new": False, "bad": False}):
        assert is_banned("new") is False
        assert is_banned("bad") is True


# Failures at named points.


def test_abort_raises_once_and_only_there() -> None:
    with abort("epoch-committed", epoch=3) as aborted:
        faults.reach("epoch-committed", epoch=2)
        faults.reach("epoch-done", epoch=3)
        assert not aborted.reached
        with pytest.raises(faults.FaultInjected, match="aborted at epoch-committed"):
            faults.reach("epoch-committed", epoch=3, query="words")
        faults.reach("epoch-committed", epoch=3)
        assert aborted.reached
    faults.reach("epoch-committed", epoch=3)


def test_abort_reaches_other_threads() -> None:
    def failing(act: Callable[[], None]) -> None:
        with pytest.raises(faults.FaultInjected):
            act()

    with abort("lane-marked"):
        thread = threading.Thread(target=failing, args=(lambda: faults.reach("lane-marked"),))
        thread.start()
        thread.join()


def test_there_must_be_such_a_point() -> None:
    with (
        pytest.raises(ValueError, match=r"no point 'lane-comitted'; there are .*lane-committed"),
        abort("lane-comitted"),
    ):
        pass
    with pytest.raises(ValueError, match="no such point"):
        fault_environment("lane-comitted")
    with pytest.raises(ValueError, match="no such point or action"):
        fault_environment("lane-committed", action="explode", log=Path("x"))
    with pytest.raises(ValueError, match="needs log="):
        fault_environment("lane-committed", action="raise")


def test_the_environment_of_a_process_that_fails(tmp_path: Path) -> None:
    environment = fault_environment("lane-committed", action="note", log=tmp_path / "log", epoch=3, lane=0)
    assert environment["CLONOS_FAULT"] == "lane-committed,epoch=3,lane=0:note"
    program = "from clonos.faults import reach\nfor e in (2, 3): reach('lane-committed', epoch=e, lane=0)"
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    assert (tmp_path / "log").read_text() == "lane-committed,epoch=3,lane=0\n"
    assert fault_environment("epoch-done") == {"CLONOS_FAULT": "epoch-done:kill"}


def test_every_point_is_documented() -> None:
    text = (Path(__file__).parents[3] / "docs" / "testing-jobs.md").read_text()
    missing = [point for point in faults.POINTS if f"`{point}`" not in text]
    assert not missing
