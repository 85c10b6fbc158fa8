"""Which standbys a job is to have, as a pure function: anti-affinity, slots, moves, and that it comes to rest."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from clonos.resources.hosts import HostState
from clonos.resources.jobs import DesiredState, JobState
from clonos_api.reconcile import reading, tending
from clonos_api.reconcile.facts import Host, Waiting
from clonos_api.reconcile.placement import Fleet
from clonos_api.reconcile.reading import Scene
from clonos_api.reconcile.standbys import Add, Drop, Guarded, tend
from clonos_api.store.tables import AgentRow, RunRow, StandbyRow

QUICK = settings(max_examples=300, deadline=None, print_blob=True)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOB = Guarded(id="j", state=JobState.RUNNING, desired=DesiredState.RUNNING, wanted=1, version=1, agent="a")


def host(name: str, *, used: int = 0, slots: int = 2, state: HostState = HostState.READY, domain: str = "") -> Host:
    return Host(id=name, name=name, state=state, domain=domain or name, slots=slots, used=used)


def standby(agent: str, run: str = "s1", state: str = "READY", version: int = 1, *, over: bool = False) -> Waiting:
    return Waiting(run=run, agent=agent, state=state, version=version, over=over)


def added(changes: list[Add | Drop]) -> list[str]:
    return [one.agent for one in changes if isinstance(one, Add)]


def dropped(changes: list[Add | Drop]) -> dict[str, str]:
    return {one.run: one.why for one in changes if isinstance(one, Drop)}


def test_another_domain_before_another_host_before_the_drivers_own() -> None:
    near = [host("a", used=1, domain="rack1"), host("b", domain="rack1")]
    far = host("c", used=1, domain="rack2")
    (add,) = tend(JOB, [], Fleet([*near, far]))
    assert add == Add("c", "another failure domain than the driver's, least loaded (1 of 2 slots taken)")
    (add,) = tend(JOB, [], Fleet(near))
    assert add == Add("b", "another host than the driver's, least loaded (0 of 2 slots taken)")
    (add,) = tend(JOB, [], Fleet(near[:1]))
    assert add == Add("a", "no other host is open; it falls with the job's host (1 of 2 slots taken)")
    assert tend(JOB, [], Fleet([host("a", used=2)])) == []


def test_two_on_two_hosts() -> None:
    hosts = [host("a", used=1), host("b", slots=9), host("c", used=1)]
    assert added(tend(replace(JOB, wanted=2), [], Fleet(hosts))) == ["b", "c"]


def test_it_moves_off_the_drivers_host_as_soon_as_it_can() -> None:
    beside = standby("a")
    assert tend(JOB, [beside], Fleet([host("a", used=2), host("b", used=2)])) == []
    (add,) = tend(JOB, [beside], Fleet([host("a", used=2), host("b")]))
    assert add == Add("b", "another failure domain than the driver's, least loaded (0 of 2 slots taken)")
    fleet = [host("a", used=2), host("b", used=1)]
    assert tend(JOB, [beside, standby("b", "s2", "WARMING")], Fleet(fleet)) == [], "the job is never without"
    assert dropped(tend(JOB, [beside, standby("b", "s2")], Fleet(fleet))) == {"s1": "more than are wanted"}
    assert dropped(tend(JOB, [standby("a", "s0", "WARMING"), standby("b", "s2", "WARMING")], Fleet(fleet))) == {
        "s0": "more than are wanted"
    }
    assert tend(replace(JOB, resting=1), [beside], Fleet([host("a", used=2), host("b")])) == [], "there was trouble"


def test_what_is_not_wanted_goes() -> None:
    fleet = [host("a", used=1), host("b", used=1), host("c", used=1, slots=1)]
    assert dropped(tend(replace(JOB, desired=DesiredState.STOPPED), [standby("b")], Fleet(fleet))) == {
        "s1": "its job does not run"
    }
    assert dropped(tend(replace(JOB, wanted=0), [standby("b")], Fleet(fleet))) == {"s1": "more than are wanted"}
    changed = tend(replace(JOB, version=2), [standby("b")], Fleet(fleet))
    assert dropped(changed) == {"s1": "the job's specification has changed"}
    assert added(changed) == ["b"]
    for state, why in ((HostState.LOST, "its host is lost"), (HostState.DRAINING, "its host is drained")):
        hosts = [host("a", used=1), host("b", used=1, state=state), host("c")]
        changes = tend(JOB, [standby("b")], Fleet(hosts))
        assert (dropped(changes), added(changes)) == ({"s1": why}, ["c"])
    assert dropped(tend(JOB, [standby("b", over=True)], Fleet(fleet))) == {"s1": "it ended"}


def test_one_that_a_planned_move_waits_for_stays_whatever_is_wanted() -> None:
    fleet = [host("a", used=1), host("b", used=1), host("c", used=1)]
    none = replace(JOB, wanted=0, relief="s1")
    newer = standby("c", version=2)
    assert tend(none, [newer], Fleet(fleet)) == []
    assert tend(replace(none, wanted=1), [newer, standby("b", "s2")], Fleet(fleet)) == [], "and the job's own stay too"
    assert tend(replace(none, wanted=1), [newer], Fleet(fleet)) == [], "the next one is placed when it is used"
    assert dropped(tend(none, [standby("c", over=True)], Fleet(fleet))) == {"s1": "it ended"}
    assert dropped(tend(replace(none, state=JobState.STOPPED), [newer], Fleet(fleet))) == {"s1": "its job does not run"}


def test_the_version_before_stays_until_the_new_one_has_proved_itself() -> None:
    proving = replace(JOB, version=2, spare=1)
    fleet = [host("a", used=1), host("b", used=1)]
    assert tend(proving, [standby("b", version=1)], Fleet(fleet)) == []
    proved = tend(replace(proving, spare=None), [standby("b", version=1)], Fleet(fleet))
    assert dropped(proved) == {"s1": "the job's specification has changed"}


def test_of_too_many_the_worst_placed_goes() -> None:
    two = [standby("a", "s1"), standby("b", "s2")]
    assert dropped(tend(JOB, two, Fleet([host("a", used=2), host("b", used=1)]))) == {"s1": "more than are wanted"}


def test_none_is_added_while_the_job_recovers_or_one_has_just_failed() -> None:
    fleet = [host("a", used=1), host("b")]
    assert tend(replace(JOB, state=JobState.RECOVERING), [], Fleet(fleet)) == []
    assert tend(replace(JOB, resting=1), [], Fleet(fleet)) == []
    assert tend(replace(JOB, state=JobState.RECOVERING), [standby("b")], Fleet(fleet)) == [], "the others stay"


def test_a_checkpoint_that_is_a_path_binds() -> None:
    bound = replace(JOB, bound="a")
    (add,) = tend(bound, [], Fleet([host("a", used=1), host("b")]))
    assert add == Add("a", "the job's checkpoint is a path of this host (1 of 2 slots taken)")
    assert dropped(tend(bound, [standby("b")], Fleet([host("a", used=2), host("b")]))) == {
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


def settled(job: Guarded, waiting: list[Waiting], fleet: list[Host]) -> tuple[list[Waiting], list[Host], int]:
    """Round after round until nothing changes: the standbys, the hosts, and how many were dropped."""
    moves = 0
    for number in range(40):
        changes = tend(job, waiting, Fleet(fleet))
        if not changes:
            return waiting, fleet, moves
        for change in changes:
            if isinstance(change, Drop):
                agent = next(one.agent for one in waiting if one.run == change.run)
                waiting = [one for one in waiting if one.run != change.run]
                moves += 1
            else:
                agent = change.agent
                waiting = [*waiting, standby(agent, f"n{number}{len(waiting)}")]
            by = 1 if isinstance(change, Add) else -1
            fleet = [replace(one, used=one.used + by) if one.id == agent else one for one in fleet]
    raise AssertionError("it does not come to rest")


@QUICK
@given(hosts, st.integers(0, 3), st.data())
def test_it_comes_to_rest_where_nothing_better_can_be_had(
    found: list[tuple[int, int, str, HostState]], wanted: int, data: st.DataObject
) -> None:
    fleet = [
        host(f"h{number}", used=used, slots=slots, domain=domain, state=state)
        for number, (used, slots, domain, state) in enumerate(found)
    ]
    driver = data.draw(st.sampled_from([one.id for one in fleet]))
    job = replace(JOB, wanted=wanted, agent=driver)
    start = [
        standby(one.id, f"s{number}")
        for number, one in enumerate(fleet)
        if one.used and one.id != driver and data.draw(st.booleans())
    ]
    rest, after, _ = settled(job, start, fleet)
    where = [one.agent for one in rest]
    opens = [one.id for one in after if one.open]
    assert all(one.used <= one.slots for one in after)
    assert len(where) <= wanted
    assert len(where) == wanted or not opens, "one is missing although there is a slot"
    if driver in where:
        assert not set(opens) - {driver}, "on the driver's host while another is open"
    if len(set(where)) < len(where):
        assert not set(opens) - set(where) - {driver}, "two on one host while another is open"
    assert all(one.state is HostState.READY for one in after if one.id in where)
    # One host more is lost: only what stood there moves.
    if where:
        lost = data.draw(st.sampled_from(where))
        gone = [replace(one, state=HostState.LOST) if one.id == lost else one for one in after]
        kept, _, _ = settled(job, rest, gone)
        stood = [one for one in rest if one.agent != lost and one.agent != driver]
        if len(set(where)) == len(where):
            assert {one.run for one in stood} <= {one.run for one in kept}


def test_where_no_host_is_heard_of_it_is_rather_we_who_do_not_hear() -> None:
    def silent(*seconds: float) -> set[str]:
        hosts = [AgentRow(id=str(at), heartbeat_at=NOW - timedelta(seconds=one)) for at, one in enumerate(seconds)]
        return reading._silent(hosts, {one.id: 1.2 - seconds[int(one.id)] for one in hosts}, NOW)

    assert silent(1.5, 0.1) == {"0"}
    assert silent(1.5, 1.3) == set()
    assert silent(3.5, 1.3) == {"0"}, "longer than such a moment lasts"
    assert silent(3.5, 4.0) == {"0", "1"}


def test_an_agent_does_not_wait_for_a_standby_that_is_dropped() -> None:
    ready = StandbyRow(id="s1", job="j", state="READY")
    run = RunRow(id="s1", job="j", agent="b", state="RUNNING", order={"goal": "RUN", "version": 1})
    scene = Scene(NOW, [], [], Fleet([]), {JOB.id: [(ready, run)]})
    driver = RunRow(id="r", job="j", agent="a", state="RUNNING", order={"goal": "RUN", "version": 1, "restart": {}})
    assert tending.yields(JOB, driver, [], scene) == tending.YIELD_S
    assert tending.yields(JOB, driver, [Drop("s1", "moved")], scene) is None
    newer = RunRow(id="s1", job="j", agent="b", state="RUNNING", order={"goal": "RUN", "version": 2})
    other = Scene(NOW, [], [], Fleet([]), {JOB.id: [(ready, newer)]})
    assert tending.yields(JOB, driver, [], other) is None, "nor for one of another version, which is not promoted"
    driver.order = {"goal": "RUN", "version": 1, "restart": {"yield_s": tending.YIELD_S}}
    assert tending.yields(JOB, driver, [Drop("s1", "moved")], scene) == 0.0
