"""The ports and broker configuration of an embedded cluster."""

from __future__ import annotations

import random
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from clonos.errors import PortInUse, SpecError
from clonos.kafka import jaas_quoted
from clonos.settings import KafkaSettings

HOST = "127.0.0.1"
# Linux and macOS give outgoing connections higher ports. One of these could take a port before the server binds it.
_FREE = range(10_000, 32_768)
# Broker and controller share a process. Ids count from 0, so an id is also an index.
_CLIENT, _CONTROLLER, _INTERNAL = "CLIENT", "CONTROLLER", "INTERNAL"
# Settings that this module depends on.
_OWNED = frozenset(
    {"process.roles", "node.id", "controller.quorum.voters", "listeners", "advertised.listeners", "log.dirs"}
)


@dataclass(frozen=True)
class Ports:
    """The ports of one broker."""

    client: int  # port for clients, with the configured security
    controller: int  # port of the KRaft controller
    # Port between brokers: plaintext on loopback, so that certificates and passwords concern clients only.
    internal: int


def choose_ports(requested: Sequence[int], brokers: int, *, previous: Sequence[Ports] = ()) -> list[Ports]:
    """Choose the client ports of all brokers: the requested ones, else the previous ones if free, else free ones.

    Raises:
        PortInUse: A requested port is in use.
        SpecError: The number of requested ports differs from the number of brokers.
    """
    if requested and len(requested) != brokers:
        raise SpecError(
            f"{len(requested)} ports are set for {brokers} brokers.", hint="set one port per broker, or none."
        )
    if len(set(requested)) != len(requested):
        raise SpecError("A port is set twice.", hint="set one port per broker, or none.")
    for port in requested:
        if not port_is_free(port):
            raise PortInUse(
                f"Port {port} on {HOST} is in use.",
                kept="nothing was started.",
                hint="choose another port, omit --port to use a free one, or stop the process that listens there.",
            )
    if not requested and len(previous) == brokers:
        old = [port for ports in previous for port in (ports.client, ports.controller, ports.internal)]
        if all(port_is_free(port) for port in old):
            return list(previous)
    free = iter(free_ports(3 * brokers, without=frozenset(requested)))
    return [Ports(requested[i] if requested else next(free), next(free), next(free)) for i in range(brokers)]


def port_is_free(port: int) -> bool:
    """Whether a server could listen on `port` of the loopback address."""
    with socket.socket() as probe:
        # As Java does, so that a connection in TIME_WAIT does not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_ports(count: int, *, without: frozenset[int] = frozenset()) -> list[int]:
    """Return distinct free ports, chosen at random, and not in `without`; `PortInUse` if fewer are free."""
    with ExitStack() as probes:
        ports: list[int] = []
        for port in random.SystemRandom().sample(_FREE, len(_FREE)):
            if len(ports) == count:
                return ports
            # All stay bound until the end, so that another process that looks for ports chooses others.
            probe = probes.enter_context(socket.socket())
            with suppress(OSError):
                probe.bind((HOST, port))
                if port not in without:
                    ports.append(port)
    raise PortInUse(f"{count} free ports from {_FREE.start} to {_FREE.stop - 1} were not found.")


def server_properties(
    node: int, ports: Sequence[Ports], data: Path, *, client: KafkaSettings, extra: Mapping[str, str]
) -> dict[str, str]:
    """Return the configuration of broker `node`, tuned for a small cluster on one machine; `extra` has precedence.

    The user of `client` becomes the broker's only user.

    Raises:
        SpecError: `extra` contains a setting that this module depends on.
    """
    reserved = sorted(_OWNED & extra.keys())
    if reserved:
        raise SpecError(
            f"{', '.join(reserved)} of the embedded broker cannot be changed.", hint="omit it, or use your own Kafka."
        )
    own, brokers = ports[node], len(ports)
    # The replication of a real deployment, limited by the number of brokers.
    replicas, in_sync = min(3, brokers), min(2, brokers)
    listeners = {_CLIENT: own.client, _INTERNAL: own.internal}
    properties = {
        "process.roles": "broker,controller",
        "node.id": str(node),
        "controller.quorum.voters": ",".join(f"{i}@{HOST}:{broker.controller}" for i, broker in enumerate(ports)),
        "listeners": _addresses({**listeners, _CONTROLLER: own.controller}),
        "advertised.listeners": _addresses(listeners),
        "controller.listener.names": _CONTROLLER,
        "inter.broker.listener.name": _INTERNAL,
        "listener.security.protocol.map": (
            f"{_CLIENT}:{client.security_protocol},{_CONTROLLER}:PLAINTEXT,{_INTERNAL}:PLAINTEXT"
        ),
        "log.dirs": str(data),
        "default.replication.factor": str(replicas),
        "min.insync.replicas": str(in_sync),
        "offsets.topic.replication.factor": str(replicas),
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": str(in_sync),
        "transaction.state.log.num.partitions": "8",
        "share.coordinator.state.topic.replication.factor": str(replicas),
        "share.coordinator.state.topic.min.isr": str(in_sync),
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        # A crashed broker is detected in two seconds instead of nine.
        "broker.session.timeout.ms": "2000",
        "broker.heartbeat.interval.ms": "500",
        # A restarted voter waits this long for a leader before it becomes a candidate.
        "controller.quorum.fetch.timeout.ms": "2000" if brokers > 1 else "50",
        "controller.quorum.election.timeout.ms": "1000" if brokers > 1 else "50",
        # A single broker that deregisters can restart without waiting for its session timeout. In a cluster that stops
        # as a whole, the last broker would wait minutes for a quorum.
        "controlled.shutdown.enable": str(brokers == 1).lower(),
    }
    if client.sasl_mechanism:
        properties |= _sasl(client)
    return {**properties, **extra}


def _addresses(listeners: Mapping[str, int]) -> str:
    return ",".join(f"{name}://{HOST}:{port}" for name, port in listeners.items())


def _sasl(client: KafkaSettings) -> dict[str, str]:
    mechanism: str = client.sasl_mechanism or "PLAIN"
    listener = f"listener.name.{_CLIENT.lower()}"
    properties = {f"{listener}.sasl.enabled.mechanisms": mechanism, "sasl.enabled.mechanisms": mechanism}
    if mechanism == "PLAIN":
        password = client.sasl_password.get_secret_value() if client.sasl_password else ""
        user = f"user_{client.sasl_username or ''}={jaas_quoted(password)}"
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    elif mechanism == "OAUTHBEARER":  # the broker's settings say how it validates tokens
        user, module = "", "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    else:
        # SCRAM users are in the cluster's metadata; the formatting tool creates them.
        user, module = "", "org.apache.kafka.common.security.scram.ScramLoginModule"
    properties[f"{listener}.{mechanism.lower()}.sasl.jaas.config"] = f"{module} required {user};"
    return properties


def scram_arguments(client: KafkaSettings) -> list[str]:
    """Return the arguments with which Kafka's formatting tool creates a SCRAM user; empty for others."""
    if not (client.sasl_mechanism or "").startswith("SCRAM"):
        return []
    password = client.sasl_password.get_secret_value() if client.sasl_password else ""
    return ["--add-scram", f"{client.sasl_mechanism}=[name={client.sasl_username or ''},password={password}]"]


def render_properties(properties: Mapping[str, str]) -> str:
    """Return settings as the text of a Java properties file, with backslashes and newlines escaped."""
    escaped = {name: value.replace("\\", "\\\\").replace("\n", "\\n") for name, value in properties.items()}
    return "".join(f"{name}={value}\n" for name, value in escaped.items())
