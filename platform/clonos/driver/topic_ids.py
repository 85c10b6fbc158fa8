"""Kafka's ids of the topics that a job reads and writes: a topic that was deleted and created again has another id.

The new topic has the old name and other records, so offsets and markers of the old one mean nothing in it. Each plan
holds the ids of topics that no earlier record names (KIP-516 introduced the ids).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Mapping
from typing import Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from clonos.errors import BrokerUnavailable, ClonosError, EpochFailed, SourceOffsetsExpired
from clonos.kafka import client_config, unanswered
from clonos.settings import KafkaSettings

_TIMEOUT_S: Final = 15.0
_DELETED: Final = "deleted "


class TopicIds:
    """Looks up the ids of topics once. Kafka's clients compare them with the ids that they send (`clonos.TopicIds`).

    Args:
        kafka: The Kafka cluster.
    """

    def __init__(self, kafka: KafkaSettings) -> None:
        self._kafka = kafka
        self._ids: dict[str, str] = {}
        self._lock = threading.Lock()

    def of(self, topics: Iterable[str]) -> dict[str, str]:
        """Topic → id, for each of `topics` that exists, as looked up first.

        Raises:
            BrokerUnavailable: Kafka did not answer.
            KafkaAccessDenied: Kafka refused access to a topic.
        """
        names = set(topics)
        with self._lock:
            missing = names - self._ids.keys()
            if missing:
                self._ids |= topic_ids(self._kafka, missing)
            return {name: self._ids[name] for name in sorted(names & self._ids.keys())}

    def forget(self, topics: Iterable[str]) -> None:
        """Look `topics` up again when they are needed again: they were deleted, and the job continues without them.

        Raises:
            EpochFailed: A topic exists. The broker that listed the topics for Spark did not know or show it.
            KafkaAccessDenied: Kafka refuses access to a topic, so that it was not listed.
            BrokerUnavailable: Kafka did not answer.
        """
        names = set(topics)
        if present := topic_ids(self._kafka, names):
            raise EpochFailed(f"Kafka listed its topics without {sorted(present)}, which exist.")
        with self._lock:
            self._ids = {topic: id_ for topic, id_ in self._ids.items() if topic not in names}

    def prefetch(self, topics: Iterable[str]) -> None:
        """Look up `topics` in the background, so that `of` returns sooner; an error is left to `of`."""
        names = frozenset(topics)

        def fetch() -> None:
            with contextlib.suppress(ClonosError):
                self.of(names)

        threading.Thread(target=fetch, daemon=True, name="clonos-topic-ids").start()


def topic_ids(kafka: KafkaSettings, topics: Iterable[str]) -> dict[str, str]:
    """Ask Kafka for the ids of topics: topic → id; a topic that does not exist is left out.

    Raises:
        BrokerUnavailable: Kafka did not answer.
        KafkaAccessDenied: Kafka refused access to a topic.
    """
    names = sorted(set(topics))
    if not names:
        return {}
    admin = AdminClient(client_config(kafka))  # a local variable, so that it exists until the futures are done
    ids: dict[str, str] = {}
    for name, future in admin.describe_topics(TopicCollection(names), request_timeout=_TIMEOUT_S).items():
        try:
            ids[name] = str(future.result(2 * _TIMEOUT_S).topic_id)
        except TimeoutError as error:
            raise BrokerUnavailable(f"Kafka did not describe the topic {name} in {2 * _TIMEOUT_S:.0f} s.") from error
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise unanswered(f"The topic {name} cannot be described", error.args[0]) from error
    return ids


def created_again(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the topics whose ids differ; a topic that only one of the two has, or that the job left, is not among
    them.
    """
    return sorted(
        name for name, id_ in now.items() if before.get(name, id_) != id_ and not before[name].startswith(_DELETED)
    )


def deleted(id_: str) -> str:
    """Return the entry of a plan for a deleted topic, without which the job continues."""
    return id_ if id_.startswith(_DELETED) else f"{_DELETED}{id_}"


def check_deleted_topics(known: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Refuse to read a topic from its beginning that the job has read before.

    Args:
        known: Topic → id, or `deleted`, of the log's plans.
        now: Topic → id, of topics that a pattern selects.

    Raises:
        SourceOffsetsExpired: A topic has the id of a topic that was deleted.
    """
    back = sorted(name for name, id_ in now.items() if known.get(name) == deleted(id_))
    if back:
        raise SourceOffsetsExpired(
            f"Kafka showed the source topics {back} as deleted, and now shows them again: the job has read their "
            "records already.",
            hint="exclude them from the pattern, and give a user the right to describe all topics of the pattern.",
        )


def check_source_topics(known: Mapping[str, str], now: Mapping[str, str], *, job: str, first: str = "") -> None:
    """Refuse to read a topic that was deleted and created again.

    Args:
        known: Topic → id, of the log's plans.
        now: Topic → id, of the topics that the job reads.
        job: The job's name.
        first: The epoch that would be the first to read the new topics, such as ``epoch 7 of output``, if the job has
            compared the ids of all epochs before; empty: the job starts.

    Raises:
        SourceOffsetsExpired: A topic has another id now.
    """
    changed = created_again(known, now)
    if changed:
        what = f"The source topics {changed} were deleted and created again: all offsets belong to the old ones."
        kept = ""
        if first:
            what = f"{what} The first epoch concerned is {first}."
            kept = "the epochs before it read the old topics only; no record of the new ones was published."
        raise SourceOffsetsExpired(
            what,
            kept=kept,
            hint="start once with `clonos run … --new-lineage` and the same checkpoint; or, with a control plane, "
            f"`clonos savepoint create {job} --name here`, then `clonos job start {job} --from here --publish-again`. "
            "The job then reads the new topics from their beginning and all others from where it is, with its state. "
            "If readers may have a part of an epoch that was interrupted, that start is refused: start with "
            "--new-lineage, a new --checkpoint and a new output topic.",
        )
