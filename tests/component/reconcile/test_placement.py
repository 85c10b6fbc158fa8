"""Placement as a pure function: slots, labels, homes, domains; and its result for many jobs over time."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from hypothesis import given, settings
from hypothesis import strategies as st

from clonos.resources.host_capacity import HostCapacity
from clonos.resources.hosts import HostState
from clonos.resources.jobs import DesiredState, JobState
from clonos_api.reconcile.facts import HostFacts, JobFacts
from clonos_api.reconcile.placement import HOST_LABEL, Fleet, NoPlacement, Placement, place

NOW = datetime(2026, 1, 1, tzinfo=UTC)
QUICK = settings(max_examples=150, deadline=None, print_blob=True)


GIB = 1 << 30


def host(
    name: str,
    *,
    used: int = 0,
    slots: int = 2,
    state: HostState = HostState.READY,
    domain: str = "",
    capacity: HostCapacity | None = None,
) -> HostFacts:
    return HostFacts(
        id=f"id-{name}", name=name, state=state, domain=domain or name, slots=slots, used=used, capacity=capacity
    )


def with_memory(available: float, driver: float | None = None) -> HostCapacity:
    """A host with free GiB, where a driver takes some."""
    taken = int(driver * GIB) if driver is not None else None
    available_bytes = int(available * GIB)
    return HostCapacity(
        cores=2, busy_cores=0, memory_bytes=8 * GIB, available_bytes=available_bytes, driver_bytes=taken
    )


def job(name: str = "j", *, local: bool = False, home: str | None = None, start_from: bool = False, lost: str = "",
        **labels: str) -> JobFacts:  # fmt: skip
    return JobFacts(
        id=name,
        name=name,
        state=JobState.STARTING,
        desired=DesiredState.RUNNING,
        since=NOW,
        local=local,
        home=home,
        start_from=start_from,
        failed_domain=lost or None,
        labels={key.replace("_", "."): value for key, value in labels.items()},
    )


def placed_on(result: Placement | NoPlacement) -> str:
    assert isinstance(result, Placement), result
    return result.host


def why(result: Placement | NoPlacement) -> str:
    assert isinstance(result, NoPlacement), result
    return result.why


def test_the_least_loaded_host_by_its_share() -> None:
    result = place(job(), Fleet([host("a", used=1, slots=2), host("b", used=3, slots=10), host("c", used=1, slots=3)]))
    assert placed_on(result) == "id-b"
    assert isinstance(result, Placement)
    assert result.why == "least loaded of 3 free hosts (3 of 10 slots taken)"


def test_memory_that_is_short_comes_last_and_is_named() -> None:
    short = host("a", capacity=with_memory(0.5, driver=1.0))
    assert placed_on(place(job(), Fleet([short, host("b", used=1, capacity=with_memory(4.0))]))) == "id-b"
    assert placed_on(place(job(lost="b"), Fleet([short, host("b", used=1, capacity=with_memory(4.0))]))) == "id-b"
    assert placed_on(place(job(), Fleet([short, host("b", used=1)]))) == "id-b", "b is not measured yet"
    result = place(job(), Fleet([short]))
    assert isinstance(result, Placement), "the memory of a driver that has just failed may not be free yet"
    assert result.why == (
        "least loaded of 1 free hosts (0 of 2 slots taken; it has 512.0 MiB of free memory, and a driver takes 1.0 GiB)"
    )


def test_a_placement_takes_its_memory() -> None:
    fleet = Fleet([host("a", slots=9, capacity=with_memory(2.5, driver=1.0)), host("b", slots=2, used=1)])
    assert placed_on(place(job(), fleet)) == "id-a"
    for _ in range(2):
        fleet.take("id-a")
    assert fleet.memory_shortage(fleet.hosts["id-a"])
    assert placed_on(place(job(), fleet)) == "id-b"


def test_only_a_pool_driver_that_exists_has_its_memory_already() -> None:
    fleet = Fleet([replace(host("a", slots=9, capacity=with_memory(2.5, driver=1.0)), pool_available=1)])
    fleet.take("id-a", pool_driver=True)
    assert fleet.hosts["id-a"].pool_available == 0
    assert fleet.hosts["id-a"].capacity == with_memory(2.5, driver=1.0)
    for _ in range(2):
        fleet.take("id-a", pool_driver=True)
    assert fleet.hosts["id-a"].pool_available == 0
    assert fleet.memory_shortage(fleet.hosts["id-a"])


def test_equal_hosts_go_by_the_load_of_their_domain_then_by_name() -> None:
    busy = host("a", used=2, slots=2, domain="x")
    assert placed_on(place(job(), Fleet([busy, host("b", domain="x"), host("c", domain="y")]))) == "id-c"
    assert placed_on(place(job(), Fleet([host("z"), host("b"), host("c")]))) == "id-b"


def test_not_into_the_domain_that_was_just_lost_while_there_is_another() -> None:
    near, far = host("a", domain="x"), host("b", domain="y", used=1)
    assert placed_on(place(job(lost="x"), Fleet([near, far]))) == "id-b"
    assert placed_on(place(job(lost="x"), Fleet([near]))) == "id-a"


def test_a_host_without_heartbeats_comes_last() -> None:
    silent = replace(host("a"), unresponsive=True, pool_available=1)
    assert placed_on(place(job(), Fleet([silent, host("b", used=1)]))) == "id-b"
    assert placed_on(place(job(lost="b"), Fleet([silent, host("b", used=1)]))) == "id-b"
    assert placed_on(place(job(), Fleet([silent]))) == "id-a", "a pause of all hosts delays no start"


def test_a_label_names_the_host() -> None:
    hosts = [host("a"), host("b", used=2), host("c")]
    labels = {HOST_LABEL: "b"}
    assert "Only host b can run it" in why(place(replace(job(), labels=labels), Fleet(hosts)))
    assert placed_on(place(replace(job(), labels=labels), Fleet([host("a"), host("b", used=1)]))) == "id-b"
    assert why(place(replace(job(), labels={HOST_LABEL: "x"}), Fleet(hosts))) == "There is no host x."


def test_a_local_checkpoint_binds_the_job_to_its_host() -> None:
    hosts = [host("a", used=1), host("b")]
    assert placed_on(place(job(local=True, home="id-a"), Fleet(hosts))) == "id-a"
    assert placed_on(place(job(local=False, home="id-a"), Fleet(hosts))) == "id-b"
    assert placed_on(place(job(local=True), Fleet(hosts))) == "id-b"
    lost = [host("a", state=HostState.LOST), host("b")]
    assert "that host is lost" in why(place(job(local=True, home="id-a"), Fleet(lost)))
    # A savepoint removes the binding to the host.
    assert placed_on(place(job(local=True, home="id-a", start_from=True), Fleet(lost))) == "id-b"


def test_a_removed_home_and_a_label_that_excludes_it_are_permanent() -> None:
    removed = Fleet([host("a", state=HostState.REMOVED), host("b")])
    result = place(job(local=True, home="id-a"), removed)
    assert isinstance(result, NoPlacement)
    assert result.permanent
    assert "removed" in result.why
    other = place(replace(job(local=True, home="id-b"), labels={HOST_LABEL: "a"}), Fleet([host("a"), host("b")]))
    assert isinstance(other, NoPlacement)
    assert other.permanent


def test_nowhere_says_why_for_each_kind() -> None:
    hosts = [host(f"h{at}", used=2) for at in range(5)]
    hosts += [host("x", state=HostState.LOST), host("y", state=HostState.DRAINING)]
    said = why(place(job(), Fleet(hosts)))
    assert said == "No host is free: h0, h1, h2 and 2 more has no free slot; y is draining; x is lost."
    nowhere = place(job(), Fleet([]))
    assert why(nowhere) == "No host is registered."
    assert isinstance(nowhere, NoPlacement)
    assert nowhere.hint.startswith("start an agent"), "there is no other agent, and no job to stop"


HOSTS = st.lists(
    st.tuples(st.integers(1, 4), st.sampled_from([HostState.READY] * 3 + [HostState.LOST, HostState.DRAINING])),
    min_size=1,
    max_size=8,
).map(lambda made: [host(f"h{at}", slots=s, state=t, domain=f"d{at % 3}") for at, (s, t) in enumerate(made)])


@QUICK
@given(hosts=HOSTS, count=st.integers(0, 30))
def test_never_over_slots_never_idle_and_even(hosts: list[HostFacts], count: int) -> None:
    fleet = Fleet(hosts)
    taken: dict[str, int] = {facts.id: 0 for facts in hosts}
    waiting = 0
    for at in range(count):
        result = place(job(f"j{at}"), fleet)
        if isinstance(result, NoPlacement):
            waiting += 1
            continue
        fleet.take(result.host)
        taken[result.host] += 1
    ready = [facts for facts in hosts if facts.state is HostState.READY]
    assert sum(taken.values()) == min(count, sum(facts.slots for facts in ready))
    assert waiting == count - sum(taken.values())
    assert all(taken[facts.id] <= (facts.slots if facts in ready else 0) for facts in hosts)
    # No host could have been spared by giving its newest job to one that is emptier by more than a slot.
    for full in ready:
        for empty in ready:
            assert taken[full.id] == 0 or (taken[full.id] - 1) / full.slots <= taken[empty.id] / empty.slots + 1e-9


@QUICK
@given(hosts=HOSTS, order=st.randoms())
def test_the_same_hosts_in_any_order_give_the_same_place(hosts: list[HostFacts], order: object) -> None:
    shuffled = sorted(hosts, key=lambda _: order.random())  # type: ignore[attr-defined]
    assert place(job(), Fleet(hosts)) == place(job(), Fleet(shuffled))


@QUICK
@given(
    slots=st.lists(st.integers(1, 3), min_size=2, max_size=6),
    count=st.integers(1, 12),
    changes=st.lists(st.tuples(st.integers(0, 5), st.sampled_from(HostState)), max_size=20),
)
def test_hosts_that_come_and_go_move_only_what_they_had_and_all_comes_to_rest(
    slots: list[int], count: int, changes: list[tuple[int, HostState]]
) -> None:
    hosts = [host(f"h{at}", slots=slot_count, domain=f"d{at % 2}") for at, slot_count in enumerate(slots)]
    where: dict[str, str] = {}

    def settle() -> None:
        used = {facts.id: sum(at == facts.id for at in where.values()) for facts in hosts}
        fleet = Fleet([replace(facts, used=used[facts.id]) for facts in hosts])
        for at in range(count):
            if f"j{at}" not in where:
                result = place(job(f"j{at}"), fleet)
                if isinstance(result, Placement):
                    where[f"j{at}"] = result.host
                    fleet.take(result.host)

    settle()
    for pick, state in changes:
        at = pick % len(hosts)
        hosts[at] = replace(hosts[at], state=HostState.LOST if state is HostState.REMOVED else state)
        before = dict(where)
        for name, held in list(where.items()):
            if held == hosts[at].id and not hosts[at].alive:
                del where[name]
        kept = dict(where)
        settle()
        assert all(where[name] == held for name, held in kept.items())
        moved = {name for name in before if where.get(name) != before[name]}
        assert all(before[name] == hosts[at].id for name in moved)
        rest = dict(where)
        settle()
        assert where == rest
    free = sum(facts.slots for facts in hosts if facts.state is HostState.READY)
    held = sum(facts.state is HostState.READY for facts in hosts for at in where.values() if at == facts.id)
    assert len(where) == count or held == free
