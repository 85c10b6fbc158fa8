"""How an embedded cluster is laid out: ports, and the configuration of each broker."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from clonos.errors import PortTaken, SpecError
from clonos.settings import KafkaSettings

HOST = "127.0.0.1"
# Broker and controller in one process; ids count from 0, so an id is also an index.
_CLIENT, _CONTROLLER, _INTERNAL = "CLIENT", "CONTROLLER", "INTERNAL"
# Settings without which brokers and this code would not find each other.
_OWNED = frozenset(
    {"process.roles", "node.id", "controller.quorum.voters", "listeners", "advertised.listeners", "log.dirs"}
)


@dataclass(frozen=True)
class Ports:
    """The ports of one broker.

    Attributes:
        client: Where clients connect; the only one that follows the chosen security.
        controller: The quorum's.
        internal: Between brokers. Plain and loopback only, so that certificates and passwords of
            a test concern its clients alone.
    """

    client: int
    controller: int
    internal: int


def choose_ports(named: Sequence[int], brokers: int, *, previous: Sequence[Ports] = ()) -> list[Ports]:
    """Ports for all brokers: those the user named, those of the last start if still free, else free ones.

    Raises:
        PortTaken: A port that the user named is in use.
        SpecError: The number of named ports is not the number of brokers.
    """
    if named and len(named) != brokers:
        raise SpecError(
            f"{len(named)} ports are named for {brokers} brokers.", hint="name one port per broker, or none at all."
        )
    if len(set(named)) != len(named):
        raise SpecError("A port is named twice.", hint="name one port per broker, or none at all.")
    for port in named:
        if not port_is_free(port):
            raise PortTaken(
                f"Port {port} on {HOST} is in use.",
                kept="nothing was started.",
                hint="choose another with --port, leave --port out to get a free one, or stop what listens there.",
            )
    if not named and len(previous) == brokers:
        old = [port for ports in previous for port in (ports.client, ports.controller, ports.internal)]
        if all(port_is_free(port) for port in old):
            return list(previous)
    free = iter(free_ports(3 * brokers, without=frozenset(named)))
    return [Ports(named[i] if named else next(free), next(free), next(free)) for i in range(brokers)]


def port_is_free(port: int) -> bool:
    """Whether a server could listen on `port` of the loopback address now."""
    with socket.socket() as probe:
        # As Java does it: a connection in TIME_WAIT is no reason to refuse.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_ports(count: int, *, without: frozenset[int] = frozenset()) -> list[int]:
    """Different free ports, chosen by the kernel."""
    with ExitStack() as held:
        ports: list[int] = []
        while len(ports) < count:
            # All stay bound until the end, so that none is given out twice.
            probe = held.enter_context(socket.socket())
            probe.bind((HOST, 0))
            port = int(probe.getsockname()[1])
            if port not in without:
                ports.append(port)
    return ports


def server_properties(
    node: int, ports: Sequence[Ports], data: Path, *, client: KafkaSettings, extra: Mapping[str, str]
) -> dict[str, str]:
    """Configuration of broker `node`: a small, quick cluster for tests and for one machine.

    Args:
        node: Id of the broker, an index into `ports`.
        ports: The ports of all brokers of the cluster.
        data: Where this broker keeps its logs.
        client: How clients are to connect; a password given here becomes the broker's list of users.
        extra: More settings; they win over ours.

    Raises:
        SpecError: `extra` names a setting that the layout depends on.
    """
    refused = sorted(_OWNED & extra.keys())
    if refused:
        raise SpecError(
            f"{', '.join(refused)} of the embedded broker cannot be changed.",
            hint="leave it out, or use your own Kafka.",
        )
    own, brokers = ports[node], len(ports)
    # The replication that a real deployment has, as far as there are brokers for it.
    replicas, in_sync = min(3, brokers), min(2, brokers)
    listeners = {_CLIENT: own.client, _INTERNAL: own.internal}
    properties = {
        "process.roles": "broker,controller",
        "node.id": str(node),
        "controller.quorum.voters": ",".join(f"{i}@{HOST}:{each.controller}" for i, each in enumerate(ports)),
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
        # A dead broker is noticed in two seconds instead of nine.
        "broker.session.timeout.ms": "2000",
        "broker.heartbeat.interval.ms": "500",
        # A restarted voter waits this long for a leader before it stands itself; a lone one waits for nobody.
        "controller.quorum.fetch.timeout.ms": "2000" if brokers > 1 else "50",
        "controller.quorum.election.timeout.ms": "1000" if brokers > 1 else "50",
        # A broker that says goodbye may come back at once instead of after its session's timeout. Of several,
        # which stop together here, the last would wait minutes for a quorum to say it to.
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
    found = {f"{listener}.sasl.enabled.mechanisms": mechanism, "sasl.enabled.mechanisms": mechanism}
    if mechanism == "PLAIN":
        password = client.sasl_password.get_secret_value() if client.sasl_password else ""
        user = _jaas(f"user_{client.sasl_username or ''}={password}")
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    else:
        # Users of SCRAM are in the cluster's metadata; formatting puts them there.
        user, module = "", "org.apache.kafka.common.security.scram.ScramLoginModule"
    found[f"{listener}.{mechanism.lower()}.sasl.jaas.config"] = f"{module} required {user};"
    return found


def _jaas(option: str) -> str:
    name, _, value = option.partition("=")
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{name}="{escaped}"'


def scram_arguments(client: KafkaSettings) -> list[str]:
    """Arguments of the formatting tool that create the user of `client`, where it uses SCRAM."""
    if not client.sasl_mechanism or client.sasl_mechanism == "PLAIN":
        return []
    password = client.sasl_password.get_secret_value() if client.sasl_password else ""
    return ["--add-scram", f"{client.sasl_mechanism}=[name={client.sasl_username or ''},password={password}]"]


def render_properties(properties: Mapping[str, str]) -> str:
    """`properties` in Java's format, where a backslash escapes and a line ends a value."""
    escaped = {name: value.replace("\\", "\\\\").replace("\n", "\\n") for name, value in properties.items()}
    return "".join(f"{name}={value}\n" for name, value in escaped.items())
