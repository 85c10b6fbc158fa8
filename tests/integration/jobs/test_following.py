"""A follower of the control partition has the same state as a full read of the partition."""

from __future__ import annotations

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from clonos.kafka import client_config
from clonos.log.claiming import claim
from clonos.log.control import ControlFollower, read_control
from clonos.log.reading import LogReader
from clonos.log.records import EpochCommitted, Owner, Resolution
from clonos.log.topic import CONTROL, log_topic
from clonos.settings import KafkaSettings
from clonos.testing.harness import eventually


def test_a_follower_has_the_state_of_a_full_read(kafka: KafkaSettings, name: str) -> None:
    follower = ControlFollower()
    first = claim(kafka, name)
    reader = LogReader(kafka, log_topic(name))

    def comes_to(owner: Owner, ended: dict[str, int], resolutions: int = 0) -> None:
        def look() -> bool:
            state = follower.catch_up(reader)
            same = state == read_control(reader)  # a commit may become visible between the two reads
            return same and (state.owner, state.committed, len(state.resolutions)) == (owner, ended, resolutions)

        eventually(look, f"{owner} with {ended}")

    comes_to(first.owner, {})
    for epoch in range(3):
        first.control.append(EpochCommitted(first.owner, "out", epoch, 7))
        comes_to(first.owner, {"out": epoch})
    first.control.append(Resolution(first.owner, "out", 3, "new-code", "abc"))
    comes_to(first.owner, {"out": 2}, 1)
    second = claim(kafka, name)
    comes_to(second.owner, {"out": 2}, 1)
    second.control.append(EpochCommitted(second.owner, "out", 3, 7))
    comes_to(second.owner, {"out": 3}, 1)
    # A new lineage resets the state; records before it may be deleted before the follower reads again.
    third = claim(kafka, name, new_lineage={"out": 1})
    end = third.control.append(EpochCommitted(third.owner, "out", 2, 7))
    admin = AdminClient(client_config(kafka))
    asked = admin.delete_records([TopicPartition(log_topic(name), CONTROL, end - 2)])
    for future in asked.values():
        future.result(60)
    eventually(lambda: read_control(reader).committed == {"out": 2}, "the commit is visible")
    assert follower.catch_up(reader).committed == {"out": 2}
    reader.close()
    for claimed in (first, second, third):
        claimed.control.dispose()
