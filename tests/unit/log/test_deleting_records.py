"""A truncation asks for the leaders first: a delete request without them sometimes waits three seconds."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from clonos.log import truncation
from clonos.settings import KafkaSettings


class Admin:
    requests: list[str]
    available = True

    def __init__(self, _config: object) -> None: ...

    def list_topics(self, topic: str, timeout: float) -> None:
        assert timeout > 0
        Admin.requests.append(f"metadata of {topic}")
        if not Admin.available:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def delete_records(self, targets: list[Any], **_options: float) -> dict[Any, Future[None]]:
        Admin.requests.append("delete")
        deleted: Future[None] = Future()
        deleted.set_result(None)
        return dict.fromkeys(map(str, targets), deleted)


@pytest.mark.parametrize("available", [True, False])
def test_metadata_come_before_the_deletion(monkeypatch: pytest.MonkeyPatch, available: bool) -> None:
    monkeypatch.setattr("clonos.kafka.AdminClient", Admin)
    monkeypatch.setattr(truncation, "AdminClient", Admin, raising=False)
    Admin.requests, Admin.available = [], available
    log: Any = SimpleNamespace(
        kafka=KafkaSettings(bootstrap_servers="a:1"),
        topic="log",
        reader=SimpleNamespace(bounds=lambda _partition: (3, 9)),
    )
    shortened = truncation._delete(log, {0: 7, 1: 3})
    assert shortened == ({0: 7} if available else {})
    assert Admin.requests == ["metadata of log", *(["delete"] if available else [])]
