"""A job of the same name on another platform: its claim is refused before it changes anything, unless it adopts."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from clonos.agent import restoring
from clonos.agent.ending import end_transactions
from clonos.errors import JobForeign, Superseded
from clonos.log.claiming import Claimant, Ownership
from clonos.log.control import CONTROL, ControlFollower, known_control
from clonos.log.platform_identity import Platform, platform_of_home
from clonos.log.prepared import Prepared
from clonos.log.reading import LogReader
from clonos.settings import KafkaSettings

EAST = Platform("e" * 32, "the control plane at https://east", control_plane=True)
WEST = Platform("f" * 32, "`clonos run` on west with the home /h")


def claimant(kafka: KafkaSettings, name: str, platform: Platform | None, *, adopt: bool = False) -> Claimant:
    return Claimant(kafka, name, platform=platform, adopt=adopt)


def prepared(kafka: KafkaSettings, name: str) -> Prepared:
    connections = Prepared(kafka, name)
    connections.refresh()
    return connections


def ends(kafka: KafkaSettings, own: Ownership) -> list[int]:
    """The end of each partition of the log; transactions that ended count too."""
    reader = LogReader(kafka, own.topic)
    try:
        return [reader.bounds(partition)[1] for partition in (CONTROL, *own.state.lanes.values())]
    finally:
        reader.close()


@pytest.mark.parametrize("standby", [False, True])
def test_a_job_of_another_platform_is_neither_fenced_nor_written_to(
    kafka: KafkaSettings, name: str, standby: bool
) -> None:
    own = claimant(kafka, name, EAST).claim()
    own.ensure_lanes("out", 2)
    before = ends(kafka, own)
    with pytest.raises(JobForeign) as refused:
        claimant(kafka, name, WEST).claim(prepared=prepared(kafka, name) if standby else None)
    for part in (name, EAST.name, WEST.name, "UTC"):
        assert part in refused.value.what
    assert "`clonos run … --adopt`" in refused.value.hint
    assert not refused.value.retry
    assert ends(kafka, own) == before
    own.ensure_lanes("out", 3)  # a fenced driver could not
    assert known_control(kafka, name).owner == own.owner  # type: ignore[union-attr]


def test_an_adopted_job_is_refused_where_it_was(kafka: KafkaSettings, name: str) -> None:
    first = claimant(kafka, name, EAST)
    own = first.claim()
    own.ensure_lanes("out", 1)
    assert first.taken_over() is None
    adopted = claimant(kafka, name, WEST, adopt=True).claim()
    assert adopted.owner.generation == own.owner.generation + 1
    assert adopted.state.lanes == own.state.lanes
    with pytest.raises(Superseded):
        own.ensure_lanes("out", 2)
    with pytest.raises(Superseded):
        first.claim()
    error = first.taken_over()
    assert error is not None
    assert f"{WEST.name} took over the job {name}" in error.what
    assert f"`clonos job start {name} --adopt`" in error.hint
    with pytest.raises(JobForeign, match=WEST.name):
        claimant(kafka, name, EAST).claim()
    claimant(kafka, name, WEST).claim()  # the next starts need no permission


def test_a_takeover_on_one_platform_reads_control_once(
    kafka: KafkaSettings, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimant(kafka, name, EAST).claim()
    connections = prepared(kafka, name)
    reads: list[ControlFollower] = []
    catch_up = ControlFollower.catch_up

    def counted(self: ControlFollower, reader: LogReader) -> object:
        reads.append(self)
        return catch_up(self, reader)

    monkeypatch.setattr(ControlFollower, "catch_up", counted)
    own = claimant(kafka, name, EAST).claim(prepared=connections)
    assert len(reads) == 1
    assert own.state.claim is not None
    assert own.state.claim.platform == EAST


def test_a_standby_that_has_not_read_the_adoption_writes_nothing(kafka: KafkaSettings, name: str) -> None:
    claimant(kafka, name, EAST).claim()
    connections = prepared(kafka, name)
    adopter = claimant(kafka, name, WEST, adopt=True)
    own = adopter.claim()
    before = ends(kafka, own)
    with pytest.raises(JobForeign):
        claimant(kafka, name, EAST).claim(prepared=connections)
    assert ends(kafka, own) == before
    adopter.claim()  # it was fenced, and continues


def test_claims_without_identity_follow_and_are_followed(kafka: KafkaSettings, name: str) -> None:
    """Claims of older versions."""
    claimant(kafka, name, None).claim()
    claimant(kafka, name, EAST).claim()
    claimant(kafka, name, None).claim()
    claimant(kafka, name, WEST).claim()


def test_a_killed_driver_does_not_end_the_transactions_of_another_platform(kafka: KafkaSettings, name: str) -> None:
    claimant(kafka, name, EAST).claim().ensure_lanes("out", 1)
    own = claimant(kafka, name, WEST, adopt=True).claim()
    assert end_transactions(kafka, name, EAST.id) == 0
    own.ensure_lanes("out", 2)  # not fenced
    assert end_transactions(kafka, name, WEST.id) == 3


def test_a_restore_leaves_the_checkpoint_if_the_log_is_of_another_platform(
    kafka: KafkaSettings, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver of another platform may use that checkpoint: an owner file of an older version does not name it."""
    monkeypatch.setenv("CLONOS_KAFKA__BOOTSTRAP_SERVERS", kafka.bootstrap_servers)
    claimant(kafka, name, WEST).claim()
    folder = tmp_path / "checkpoint"
    for log in ("offsets", "commits"):
        (folder / "out" / log).mkdir(parents=True)
        (folder / "out" / log / "0").write_text("v1")
    (folder / "out" / "metadata").write_text("{}")
    spec = tmp_path / "job.yaml"
    spec.write_text(f"{{metadata: {{name: {name}}}, spec: {{main: job.py, checkpoint: '{folder}'}}}}")
    before = sorted(path.relative_to(tmp_path) for path in folder.rglob("*"))
    command = ("clonos", "run", "--platform", EAST.option)
    with pytest.raises(SystemExit) as ended:
        restoring.main(str(spec), str(tmp_path / "events"), str(folder), "0", "w1", "publish-again", *command)
    assert ended.value.code == JobForeign.exit_code
    assert sorted(path.relative_to(tmp_path) for path in folder.rglob("*")) == before
    assert "job-foreign" in (tmp_path / "events").read_text()


def test_a_home_gets_one_identity(tmp_path: Path) -> None:
    home = tmp_path / "new" / "home"
    context = multiprocessing.get_context("spawn")
    with context.Pool(4) as pool:
        found = pool.map(platform_of_home, [home] * 16)
    assert len({platform.id for platform in found if platform is not None}) == 1
    assert {path.name for path in home.iterdir()} == {"platform-id"}
    assert (home / "platform-id").stat().st_mode & 0o077 == 0
    assert found[0] is not None
    assert str(home) in found[0].name
