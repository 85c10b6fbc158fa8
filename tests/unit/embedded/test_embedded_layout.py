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
from clonos.errors import PortInUse, SpecError
from clonos.settings import KafkaSettings

PLAIN = KafkaSettings()
THREE = [Ports(1, 2, 3), Ports(4, 5, 6), Ports(7, 8, 9)]


@pytest.fixture
def used_port() -> Iterator[int]:
    with socket.socket() as server:
        server.bind((HOST, 0))
        server.listen()
        yield int(server.getsockname()[1])


def test_a_single_broker_has_one_replica() -> None:
    properties = server_properties(0, THREE[:1], Path("/data"), client=PLAIN, extra={})
    assert properties["offsets.topic.replication.factor"] == "1"
    assert properties["transaction.state.log.min.isr"] == "1"
    assert properties["listeners"] == "CLIENT://127.0.0.1:1,INTERNAL://127.0.0.1:3,CONTROLLER://127.0.0.1:2"
    assert properties["controller.quorum.voters"] == "0@127.0.0.1:2"
    assert properties["auto.create.topics.enable"] == "false"


def test_three_brokers_have_three_replicas() -> None:
    properties = server_properties(2, THREE, Path("/data"), client=PLAIN, extra={})
    assert properties["node.id"] == "2"
    assert properties["transaction.state.log.replication.factor"] == "3"
    assert properties["min.insync.replicas"] == "2"
    assert properties["controller.quorum.voters"] == "0@127.0.0.1:2,1@127.0.0.1:5,2@127.0.0.1:8"


def test_extra_properties_override_defaults() -> None:
    extra = {"offsets.topic.num.partitions": "50"}
    assert (
        server_properties(0, THREE[:1], Path("/data"), client=PLAIN, extra=extra)["offsets.topic.num.partitions"]
        == "50"
    )


def test_reserved_properties_raise_spec_error() -> None:
    with pytest.raises(SpecError, match="listeners"):
        server_properties(0, THREE[:1], Path("/data"), client=PLAIN, extra={"listeners": "X://:1"})


def test_the_client_user_is_the_brokers_user() -> None:
    client = KafkaSettings(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_username="ada",
        sasl_password=SecretStr('p"w\\'),
    )
    properties = server_properties(0, THREE[:1], Path("/data"), client=client, extra={})
    assert "CLIENT:SASL_PLAINTEXT" in properties["listener.security.protocol.map"]
    jaas = properties["listener.name.client.plain.sasl.jaas.config"]
    assert jaas.endswith('PlainLoginModule required user_ada="p\\"w\\\\";')
    assert scram_arguments(client) == []


def test_scram_users_are_created_by_the_formatting_tool() -> None:
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
    assert max(ports) < 32_768, "an outgoing connection cannot take one before a server binds it"


def test_a_requested_port_in_use_raises(used_port: int) -> None:
    with pytest.raises(PortInUse, match=str(used_port)) as caught:
        choose_ports([used_port], 1)
    assert "--port" in caught.value.hint


def test_requested_ports_are_used() -> None:
    requested = free_ports(2)
    assert [ports.client for ports in choose_ports(requested, 2)] == requested


@pytest.mark.parametrize("requested", [[1, 1], [1]])
def test_duplicate_or_missing_ports_raise_spec_error(requested: list[int]) -> None:
    with pytest.raises(SpecError):
        choose_ports(requested, 2)


def test_previous_ports_are_reused() -> None:
    previous = [Ports(*free_ports(3))]
    assert choose_ports([], 1, previous=previous) == previous


def test_a_previous_port_in_use_is_replaced(used_port: int) -> None:
    others = free_ports(2)
    assert choose_ports([], 1, previous=[Ports(used_port, *others)])[0].client != used_port
