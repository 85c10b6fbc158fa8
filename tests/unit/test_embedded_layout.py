from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from clonos.embedded.layout import (
    HOST,
    Ports,
    choose_ports,
    free_ports,
    port_is_free,
    render_properties,
    scram_arguments,
    server_properties,
)
from clonos.errors import PortTaken, SpecError
from clonos.settings import KafkaSettings

PLAIN = KafkaSettings()
THREE = [Ports(1, 2, 3), Ports(4, 5, 6), Ports(7, 8, 9)]


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as server:
        server.bind((HOST, 0))
        server.listen()
        yield int(server.getsockname()[1])


def test_a_lone_broker_needs_no_replicas() -> None:
    found = server_properties(0, THREE[:1], Path("/data"), client=PLAIN, extra={})
    assert found["offsets.topic.replication.factor"] == "1"
    assert found["transaction.state.log.min.isr"] == "1"
    assert found["listeners"] == "CLIENT://127.0.0.1:1,INTERNAL://127.0.0.1:3,CONTROLLER://127.0.0.1:2"
    assert found["controller.quorum.voters"] == "0@127.0.0.1:2"
    assert found["auto.create.topics.enable"] == "false"


def test_three_brokers_replicate_as_a_real_deployment_does() -> None:
    found = server_properties(2, THREE, Path("/data"), client=PLAIN, extra={})
    assert found["node.id"] == "2"
    assert found["transaction.state.log.replication.factor"] == "3"
    assert found["min.insync.replicas"] == "2"
    assert found["controller.quorum.voters"] == "0@127.0.0.1:2,1@127.0.0.1:5,2@127.0.0.1:8"


def test_extra_properties_win() -> None:
    extra = {"offsets.topic.num.partitions": "50"}
    assert (
        server_properties(0, THREE[:1], Path("/data"), client=PLAIN, extra=extra)["offsets.topic.num.partitions"]
        == "50"
    )


def test_properties_that_hold_the_cluster_together_are_refused() -> None:
    with pytest.raises(SpecError, match="listeners"):
        server_properties(0, THREE[:1], Path("/data"), client=PLAIN, extra={"listeners": "X://:1"})


def test_the_user_of_the_client_settings_is_the_brokers_user() -> None:
    client = KafkaSettings(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_username="ada",
        sasl_password=SecretStr('p"w\\'),
    )
    found = server_properties(0, THREE[:1], Path("/data"), client=client, extra={})
    assert "CLIENT:SASL_PLAINTEXT" in found["listener.security.protocol.map"]
    jaas = found["listener.name.client.plain.sasl.jaas.config"]
    assert jaas.endswith('PlainLoginModule required user_ada="p\\"w\\\\";')
    assert scram_arguments(client) == []


def test_scram_users_are_made_by_formatting() -> None:
    client = KafkaSettings(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="SCRAM-SHA-256",
        sasl_username="ada",
        sasl_password=SecretStr("pw"),
    )
    assert scram_arguments(client) == ["--add-scram", "SCRAM-SHA-256=[name=ada,password=pw]"]


def test_java_properties_are_escaped() -> None:
    assert render_properties({"a": "x\\y", "b": "1\n2"}) == "a=x\\\\y\nb=1\\n2\n"


def test_free_ports_differ() -> None:
    ports = free_ports(30)
    assert len(set(ports)) == 30
    assert all(port_is_free(port) for port in ports[:3])


def test_a_named_port_in_use_is_refused_by_name(taken: int) -> None:
    with pytest.raises(PortTaken, match=str(taken)) as refusal:
        choose_ports([taken], 1)
    assert "--port" in refusal.value.hint


def test_named_ports_are_used() -> None:
    named = free_ports(2)
    assert [ports.client for ports in choose_ports(named, 2)] == named


@pytest.mark.parametrize("named", [[1, 1], [1]])
def test_one_port_per_broker(named: list[int]) -> None:
    with pytest.raises(SpecError):
        choose_ports(named, 2)


def test_the_ports_of_the_last_start_are_kept() -> None:
    previous = [Ports(*free_ports(3))]
    assert choose_ports([], 1, previous=previous) == previous


def test_a_port_that_was_taken_since_is_replaced(taken: int) -> None:
    others = free_ports(2)
    assert choose_ports([], 1, previous=[Ports(taken, *others)])[0].client != taken
