"""Hedged inits of transactional producers do not add to the load of a slow coordinator."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from clonos.log import transaction
from clonos.log.init_patience import InitPatience
from clonos.log.transaction import TransactionalProducer
from clonos.settings import KafkaSettings

ALL = (0.4, 1.0, 3.0, 10.0, 20.0)


def test_a_fast_coordinator_is_hedged_soon() -> None:
    patience = InitPatience()
    assert patience.timeouts_s() == ALL
    patience.answered(0.015)
    assert patience.timeouts_s() == ALL


def test_the_patience_follows_the_slowest_recent_init() -> None:
    patience = InitPatience()
    patience.answered(0.6)
    assert patience.timeouts_s() == (3.0, 10.0, 20.0)
    patience.answered(9.0)
    assert patience.timeouts_s() == (10.0, 20.0)
    for _ in range(8):
        patience.answered(0.01)
    assert patience.timeouts_s() == ALL


def test_hedges_are_few_in_a_minute() -> None:
    now = [0.0]
    patience = InitPatience(lambda: now[0])
    for second in (0.0, 1.0, 2.0):
        assert patience.timeouts_s() == ALL
        now[0] = second
        patience.timed_out()
    assert patience.timeouts_s() == (10.0, 20.0)
    now[0] = 61.0
    assert patience.timeouts_s() == ALL


class SlowCoordinator:
    """Answers each init later than its timeout."""

    inits = 0

    def __init__(self, _config: dict[str, Any]) -> None:
        pass

    def init_transactions(self, _timeout_s: float) -> None:
        SlowCoordinator.inits += 1
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


def test_an_overloaded_coordinator_gets_few_inits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten producers of a driver: without a limit 50 inits."""
    monkeypatch.setattr(transaction, "Producer", SlowCoordinator)
    monkeypatch.setattr(transaction, "connect", lambda *_of: None)
    monkeypatch.setattr(transaction, "PATIENCE", InitPatience())
    for number in range(10):
        with pytest.raises(Exception, match="No transaction could be opened"):
            TransactionalProducer(KafkaSettings(bootstrap_servers="127.0.0.1:1"), f"id-{number}", "log")
    assert SlowCoordinator.inits == 5 + 9 * 2
