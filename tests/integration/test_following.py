"""Control that is followed says what control that is read anew says."""

from __future__ import annotations

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from clonos.kafka import client_config
from clonos.log.claiming import claim
from clonos.log.control import ControlFollower, read_control
from clonos.log.reading import LogReader
from clonos.log.records import End, Owner, Resolution
from clonos.log.topic import CONTROL, log_topic
from clonos.settings import KafkaSettings
from observe import eventually


def test_what_is_followed_is_what_is_there(kafka: KafkaSettings, name: str) -> None:
    follower = ControlFollower()
    first = claim(kafka, name)
    reader = LogReader(kafka, log_topic(name))

    def comes_to(owner: Owner, ended: dict[str, int], resolutions: int = 0) -> None:
        def look() -> bool:
            state = follower.catch_up(reader)
            same = state == read_control(reader)  # a commit shows a moment after it was confirmed: maybe in between
            return same and (state.owner, state.ended, len(state.resolutions)) == (owner, ended, resolutions)

        eventually(look, f"{owner} with {ended}")

    comes_to(first.owner, {})
    for epoch in range(3):
        first.control.append(End(first.owner, "out", epoch, 7))
        comes_to(first.owner, {"out": epoch})
    first.control.append(Resolution(first.owner, "out", 3, "new-code", "abc"))
    comes_to(first.owner, {"out": 2}, 1)
    second = claim(kafka, name)
    comes_to(second.owner, {"out": 2}, 1)
    second.control.append(End(second.owner, "out", 3, 7))
    comes_to(second.owner, {"out": 3}, 1)
    # A new lineage begins anew; and what it follows may be cut off before it looks again.
    third = claim(kafka, name, new_lineage={"out": 1})
    end = third.control.append(End(third.owner, "out", 2, 7))
    admin = AdminClient(client_config(kafka))
    asked = admin.delete_records([TopicPartition(log_topic(name), CONTROL, end - 2)])
    for future in asked.values():
        future.result(10)
    eventually(lambda: read_control(reader).ended == {"out": 2}, "it is there")
    assert follower.catch_up(reader).ended == {"out": 2}
    reader.close()
    for one in (first, second, third):
        one.control.dispose()
