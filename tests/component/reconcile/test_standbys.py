"""The pure function that decides on standbys: anti-affinity, slots, moves, and a stable result."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from clonos.resources.host_capacity import HostCapacity
from clonos.resources.hosts import HostState
from clonos.resources.jobs import DesiredState, JobState
from clonos_api.reconcile import load
from clonos_api.reconcile.decisions import NOTHING, AddStandby, Decision, RunChange
from clonos_api.reconcile.facts import HostFacts, StandbyDemand, StandbyFacts
from clonos_api.reconcile.placement import Fleet
from clonos_api.reconcile.standby_demands import StandbyFailure, not_replaced_yet
from clonos_api.reconcile.standbys import TAKEOVER_WAIT_S, decide
from clonos_api.store.tables import HostRow

QUICK = settings(max_examples=300, deadline=None, print_blob=True)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOB = StandbyDemand(id="j", state=JobState.RUNNING, desired=DesiredState.RUNNING, replicas=1, version=1, host="a")


def host(
    name: str, *, used: int = 0, slots: int = 2, state: HostState = HostState.READY, domain: str = ""
) -> HostFacts:
    return HostFacts(id=name, name=name, state=state, domain=domain or name, slots=slots, used=used)


def standby(host: str, run: str = "s1", state: str = "READY", version: int = 1, *, ended: bool = False) -> StandbyFacts:
    return StandbyFacts(run=run, host=host, state=state, version=version, ended=ended)


def added(made: Decision) -> list[str]:
    return [addition.host for addition in made.standbys.add]


def dropped(made: Decision) -> dict[str, str]:
    return {drop.run: drop.why for drop in made.standbys.drop}


def test_another_domain_before_another_host_before_the_drivers_own() -> None:
    near = [host("a", used=1, domain="rack1"), host("b", domain="rack1")]
    far = host("c", used=1, domain="rack2")
    (add,) = decide(JOB, [], Fleet([*near, far])).standbys.add
    assert add == AddStandby("c", "another failure domain than the driver's, least loaded (1 of 2 slots taken)")
    (add,) = decide(JOB, [], Fleet(near)).standbys.add
    assert add == AddStandby("b", "another host than the driver's, least loaded (0 of 2 slots taken)")
    (add,) = decide(JOB, [], Fleet(near[:1])).standbys.add
    assert add == AddStandby(
        "a", "no other host is open; it fails together with the driver's host (1 of 2 slots taken)"
    )
    assert decide(JOB, [], Fleet([host("a", used=2)])) == NOTHING


def test_a_standby_goes_only_where_it_fits() -> None:
    def measured(name: str, available: float, standby_gib: float | None = None) -> HostFacts:
        capacity = HostCapacity(
            cores=2,
            busy_cores=0,
            memory_bytes=8 << 30,
            available_bytes=int(available * (1 << 30)),
            driver_bytes=1 << 30,
            standby_bytes=int(standby_gib * (1 << 30)) if standby_gib is not None else None,
        )
        return replace(host(name, used=name == "a"), capacity=capacity)

    assert added(decide(JOB, [], Fleet([measured("a", 4.0), measured("b", 0.9)]))) == ["a"], "as much as a driver"
    assert decide(JOB, [], Fleet([measured("a", 0.9), measured("b", 0.9)])) == NOTHING
    assert added(decide(JOB, [], Fleet([measured("a", 0.9), measured("b", 0.9, 0.8)]))) == ["b"]
    assert added(decide(JOB, [], Fleet([measured("a", 4.0), host("b")]))) == ["b"], "b is not measured yet"
    two = Fleet([measured("a", 4.0), measured("b", 1.5)])
    assert added(decide(replace(JOB, replicas=3), [], two)) == ["b", "a"], "slots and memory are taken"
    assert decide(JOB, [standby("b")], Fleet([measured("a", 0.1), measured("b", 0.1)])) == NOTHING, "it stays"


def test_a_label_binds_standbys_to_its_host() -> None:
    fleet = Fleet([host("a", used=1), host("b")])
    labelled = replace(JOB, named_host="a")
    (add,) = decide(labelled, [], fleet).standbys.add
    assert add == AddStandby("a", "the job's label clonos.dev/host names this host (1 of 2 slots taken)")
    changed = decide(labelled, [standby("b")], Fleet([host("a", used=1), host("b", used=1)]))
    assert dropped(changed) == {"s1": "the job's label clonos.dev/host names another host"}
    assert added(changed) == ["a"]
    assert decide(replace(JOB, named_host="c"), [], Fleet([host("a", used=1), host("b")])) == NOTHING
    newer = replace(labelled, version=2, previous_version=1, replicas=2)
    assert dropped(decide(newer, [standby("b")], Fleet([host("a", used=1), host("b", used=1)]))) == {}, (
        "an upgrade may return to its version"
    )


def test_two_on_two_hosts() -> None:
    hosts = [host("a", used=1), host("b", slots=9), host("c", used=1)]
    assert added(decide(replace(JOB, replicas=2), [], Fleet(hosts))) == ["b", "c"]


def test_it_moves_off_the_drivers_host_as_soon_as_it_can() -> None:
    beside = standby("a")
    assert decide(JOB, [beside], Fleet([host("a", used=2), host("b", used=2)])) == NOTHING
    (add,) = decide(JOB, [beside], Fleet([host("a", used=2), host("b")])).standbys.add
    assert add == AddStandby("b", "another failure domain than the driver's, least loaded (0 of 2 slots taken)")
    fleet = [host("a", used=2), host("b", used=1)]
    assert decide(JOB, [beside, standby("b", "s2", "WARMING")], Fleet(fleet)) == NOTHING, "the job is never without"
    assert dropped(decide(JOB, [beside, standby("b", "s2")], Fleet(fleet))) == {"s1": "more than requested"}
    assert dropped(decide(JOB, [standby("a", "s0", "WARMING"), standby("b", "s2", "WARMING")], Fleet(fleet))) == {
        "s0": "more than requested"
    }
    assert decide(replace(JOB, failed_recently=1), [beside], Fleet([host("a", used=2), host("b")])) == NOTHING, (
        "there was trouble"
    )


def test_what_is_not_wanted_goes() -> None:
    fleet = [host("a", used=1), host("b", used=1), host("c", used=1, slots=1)]
    assert dropped(decide(replace(JOB, desired=DesiredState.STOPPED), [standby("b")], Fleet(fleet))) == {
        "s1": "its job does not run"
    }
    assert dropped(decide(replace(JOB, replicas=0), [standby("b")], Fleet(fleet))) == {"s1": "more than requested"}
    changed = decide(replace(JOB, version=2), [standby("b")], Fleet(fleet))
    assert dropped(changed) == {"s1": "the job's specification has changed"}
    assert added(changed) == ["b"]
    for state, why in ((HostState.LOST, "its host is lost"), (HostState.DRAINING, "its host is draining")):
        hosts = [host("a", used=1), host("b", used=1, state=state), host("c")]
        changes = decide(JOB, [standby("b")], Fleet(hosts))
        assert (dropped(changes), added(changes)) == ({"s1": why}, ["c"])
    assert dropped(decide(JOB, [standby("b", ended=True)], Fleet(fleet))) == {"s1": "it ended"}


def test_the_standby_of_a_planned_move_stays_with_any_number_of_replicas() -> None:
    fleet = [host("a", used=1), host("b", used=1), host("c", used=1)]
    none = replace(JOB, replicas=0, successor="s1")
    newer = standby("c", version=2)
    assert decide(none, [newer], Fleet(fleet)) == NOTHING
    assert decide(replace(none, replicas=1), [newer, standby("b", "s2")], Fleet(fleet)) == NOTHING, (
        "and the job's own stay too"
    )
    assert decide(replace(none, replicas=1), [newer], Fleet(fleet)) == NOTHING, "the next follows the promotion"
    assert dropped(decide(none, [standby("c", ended=True)], Fleet(fleet))) == {"s1": "it ended"}
    assert dropped(decide(replace(none, state=JobState.STOPPED), [newer], Fleet(fleet))) == {
        "s1": "its job does not run"
    }


def test_the_version_before_stays_until_the_new_one_has_proved_itself() -> None:
    proving = replace(JOB, version=2, previous_version=1)
    fleet = [host("a", used=1), host("b", used=1)]
    assert decide(proving, [standby("b", version=1)], Fleet(fleet)) == NOTHING
    proved = decide(replace(proving, previous_version=None), [standby("b", version=1)], Fleet(fleet))
    assert dropped(proved) == {"s1": "the job's specification has changed"}


def test_of_too_many_the_worst_placed_goes() -> None:
    two = [standby("a", "s1"), standby("b", "s2")]
    assert dropped(decide(JOB, two, Fleet([host("a", used=2), host("b", used=1)]))) == {"s1": "more than requested"}


def test_a_standby_that_cannot_warm_up_is_replaced_later_each_time() -> None:
    def failed(ago_s: float, *, followed: bool) -> StandbyFailure:
        return StandbyFailure(NOW - timedelta(seconds=ago_s), followed)

    def replaced_after_s(*older_s: float, followed: bool = False) -> int:
        """The seconds after which the newest of several failures is replaced."""
        for seconds in range(1, 1000):
            older = [failed(seconds + ago_s, followed=followed) for ago_s in older_s]
            if not_replaced_yet([failed(seconds, followed=followed), *older], NOW) == 0:
                return seconds
        raise AssertionError("never")

    assert not_replaced_yet([], NOW) == 0
    assert replaced_after_s() == 15
    assert replaced_after_s(60) == 30
    assert replaced_after_s(60, 120) == 60
    assert replaced_after_s(*range(60, 660, 60)) == 300, "at most"
    assert replaced_after_s(60, 120, followed=True) == 15, "each of them was READY"
    assert not_replaced_yet([failed(10, followed=False), failed(10, followed=False)], NOW) == 2
    series = [failed(ago_s, followed=False) for ago_s in (5, 130, 195, 230, 250)]
    assert not_replaced_yet(series, NOW) == 1, "the older ones were replaced"


def test_none_is_added_while_the_job_recovers_or_one_has_just_failed() -> None:
    fleet = [host("a", used=1), host("b")]
    assert decide(replace(JOB, state=JobState.RECOVERING), [], Fleet(fleet)) == NOTHING
    assert decide(replace(JOB, failed_recently=1), [], Fleet(fleet)) == NOTHING
    assert decide(replace(JOB, recovery_open=True), [], Fleet(fleet)) == NOTHING, "its first epochs need the CPU time"
    assert decide(replace(JOB, state=JobState.RECOVERING), [standby("b")], Fleet(fleet)) == NOTHING, "the others stay"


def test_none_gets_a_slot_that_a_job_without_a_driver_needs() -> None:
    hosts = [host("a", used=2), host("b", used=1)]
    assert decide(JOB, [], Fleet(hosts, reserved=1)) == NOTHING
    assert added(decide(JOB, [], Fleet(hosts))) == ["b"]
    beside_driver = [standby("a")]
    assert added(decide(JOB, beside_driver, Fleet(hosts))) == ["b"]
    assert decide(JOB, beside_driver, Fleet(hosts, reserved=1)) == decide(JOB, beside_driver, Fleet(hosts[:1]))


def test_a_checkpoint_that_is_a_path_binds() -> None:
    bound = replace(JOB, bound="a")
    (add,) = decide(bound, [], Fleet([host("a", used=1), host("b")])).standbys.add
    assert add == AddStandby("a", "the job's checkpoint is a path of this host (1 of 2 slots taken)")
    assert dropped(decide(bound, [standby("b")], Fleet([host("a", used=2), host("b")]))) == {
        "s1": "the job's checkpoint is on another host"
    }


hosts = st.lists(
    st.builds(
        lambda used, slots, domain, state: (min(used, slots), slots, domain, state),
        st.integers(0, 4),
        st.integers(1, 4),
        st.sampled_from("xyz"),
        st.sampled_from([HostState.READY] * 4 + [HostState.LOST, HostState.DRAINING]),
    ),
    min_size=1,
    max_size=6,
)


def settled(
    job: StandbyDemand, waiting: list[StandbyFacts], fleet: list[HostFacts]
) -> tuple[list[StandbyFacts], list[HostFacts], int]:
    """Repeats until nothing changes; returns the standbys, the hosts, and the number of dropped standbys."""
    moves = 0
    for number in range(40):
        changes = decide(job, waiting, Fleet(fleet))
        if not changes:
            return waiting, fleet, moves
        gone = [facts for facts in waiting if facts.run in dropped(changes)]
        moves += len(gone)
        waiting = [facts for facts in waiting if facts not in gone]
        waiting += [standby(host, f"n{number}{at}") for at, host in enumerate(added(changes))]
        taken = Counter(added(changes))
        taken.subtract(facts.host for facts in gone)
        fleet = [replace(facts, used=facts.used + taken[facts.id]) for facts in fleet]
    raise AssertionError("it does not come to rest")


@QUICK
@given(hosts, st.integers(0, 3), st.data())
def test_it_comes_to_rest_where_nothing_better_can_be_had(
    drawn: list[tuple[int, int, str, HostState]], wanted: int, data: st.DataObject
) -> None:
    fleet = [
        host(f"h{number}", used=used, slots=slots, domain=domain, state=state)
        for number, (used, slots, domain, state) in enumerate(drawn)
    ]
    driver = data.draw(st.sampled_from([facts.id for facts in fleet]))
    job = replace(JOB, replicas=wanted, host=driver)
    start = [
        standby(facts.id, f"s{number}")
        for number, facts in enumerate(fleet)
        if facts.used and facts.id != driver and data.draw(st.booleans())
    ]
    rest, after, _ = settled(job, start, fleet)
    where = [facts.host for facts in rest]
    opens = [facts.id for facts in after if facts.open]
    assert all(facts.used <= facts.slots for facts in after)
    assert len(where) <= wanted
    assert len(where) == wanted or not opens, "one is missing although there is a slot"
    if driver in where:
        assert not set(opens) - {driver}, "on the driver's host while another is open"
    if len(set(where)) < len(where):
        assert not set(opens) - set(where) - {driver}, "two on one host while another is open"
    assert all(facts.state is HostState.READY for facts in after if facts.id in where)
    # Another host is lost: only its standbys move.
    if where:
        lost = data.draw(st.sampled_from(where))
        gone = [replace(facts, state=HostState.LOST) if facts.id == lost else facts for facts in after]
        kept, _, _ = settled(job, rest, gone)
        stood = [facts for facts in rest if facts.host != lost and facts.host != driver]
        if len(set(where)) == len(where):
            assert {facts.run for facts in stood} <= {facts.run for facts in kept}


def test_a_short_silence_of_all_hosts_makes_none_unresponsive() -> None:
    def silent(*seconds: float) -> set[str]:
        hosts = [HostRow(id=str(at), heartbeat_at=NOW - timedelta(seconds=age_s)) for at, age_s in enumerate(seconds)]
        return load._unresponsive(hosts, {row.id: 1.2 - seconds[int(row.id)] for row in hosts}, NOW)

    assert silent(1.5, 0.1) == {"0"}
    assert silent(1.5, 1.3) == set()
    assert silent(3.5, 1.3) == {"0"}, "longer than a short outage of the service"
    assert silent(3.5, 4.0) == {"0", "1"}


def test_agent_waits_for_a_ready_standby_of_its_version_that_is_not_dropped() -> None:
    fleet = [host("a", used=1), host("b", used=1)]
    driver = replace(JOB, run="r")
    waits = Decision(run=RunChange(takeover_wait_s=TAKEOVER_WAIT_S))
    assert decide(driver, [standby("b")], Fleet(fleet)) == waits
    assert decide(replace(driver, takeover_wait_s=TAKEOVER_WAIT_S), [standby("b")], Fleet(fleet)) == NOTHING
    dropped_standby = decide(replace(driver, replicas=0), [standby("b")], Fleet(fleet))
    assert dropped_standby == Decision(standbys=dropped_standby.standbys)
    assert dropped(dropped_standby)
    move = replace(driver, successor="s1", replicas=0)
    assert decide(move, [standby("b", version=2)], Fleet(fleet)) == NOTHING, (
        "a standby of another version is not promoted"
    )
    silent = Fleet([replace(host, unresponsive=host.id == "b") for host in fleet])
    assert decide(replace(driver, takeover_wait_s=TAKEOVER_WAIT_S), [standby("b")], silent) == Decision(
        run=RunChange(takeover_wait_s=0.0)
    )
    stops_waiting = decide(replace(driver, replicas=0, takeover_wait_s=TAKEOVER_WAIT_S), [standby("b")], Fleet(fleet))
    assert stops_waiting.run == RunChange(takeover_wait_s=0.0)
    assert decide(replace(driver, state=JobState.RECOVERING), [standby("b")], Fleet(fleet)) == NOTHING
