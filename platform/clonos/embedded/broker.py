"""The embedded Kafka: the real Apache Kafka in KRaft mode, as detached processes of this machine."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import msgspec

from clonos.deadline import Deadline
from clonos.embedded import aot
from clonos.embedded.cluster import BrokerStatus, Cluster, ClusterStatus, addresses, random_id
from clonos.embedded.jars import Jars, exclusive
from clonos.embedded.java import java_binary, java_major
from clonos.embedded.layout import choose_ports, render_properties, scram_arguments, server_properties
from clonos.embedded.processes import ProcessRecord, State, spawn, stop_all
from clonos.errors import BrokerUnavailable, DirectoryInUse
from clonos.kafka import await_brokers
from clonos.private_folders import create_private
from clonos.settings import KafkaSettings

_RECORD = "cluster.json"
_LOCK = ".lock"
_STOP_S = 20.0
_UNSAFE_WARNINGS_MAJOR = 24
# Measured: the serial collector and the first compiler halve the start-up time.
_JVM_FLAGS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xms128m")


class EmbeddedKafka:
    """A cluster of Kafka brokers on this machine, with all its files in one directory.

    The brokers outlive the process that started them. Another process finds them by their directory.
    As a context manager it starts on entry and stops on exit.

    Args:
        directory: Directory of data, logs and the list of processes.
        brokers: Number of brokers; default: the number in the directory, else one.
        ports: Client ports, one per broker; default: the previous ports, else free ones.
        jars: Result of `clonos.embedded.jars.ensure_jars`; needed to start, not to stop or inspect.
        client: Client protocol, mechanism and user; its addresses are ignored.
        properties: Further broker settings. The client listener's prefix is ``listener.name.client.``.
        heap_mb: Heap of each broker, in MiB.
    """

    def __init__(
        self,
        directory: Path,
        *,
        brokers: int | None = None,
        ports: Sequence[int] | None = None,
        jars: Jars | None = None,
        client: KafkaSettings | None = None,
        properties: Mapping[str, str] | None = None,
        heap_mb: int = 512,
    ) -> None:
        self._directory = directory.absolute()
        self._broker_count = brokers
        self._requested_ports = tuple(ports or ())
        self._jars = jars
        self._client = client or KafkaSettings()
        self._properties = dict(properties or {})
        self._heap_mb = heap_mb
        self._training_flags: list[str] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    @property
    def bootstrap_servers(self) -> str:
        """Addresses of all brokers, for clients; empty before the first start."""
        cluster = self._read()
        return addresses(cluster.ports) if cluster else ""

    @property
    def kafka(self) -> KafkaSettings:
        """Settings of clients that connect to this cluster."""
        return self._client.model_copy(update={"bootstrap_servers": self.bootstrap_servers})

    def status(self) -> ClusterStatus:
        """Return the state of all brokers, read from the directory."""
        cluster = self._read()
        if cluster is None:
            return ClusterStatus(self._directory, "", ())
        brokers = tuple(self._status(cluster, node) for node in range(len(cluster.ports)))
        return ClusterStatus(self._directory, addresses(cluster.ports), brokers)

    def start(self, *, timeout_s: float = 60.0) -> None:
        """Start all brokers and wait until they respond.

        Raises:
            DirectoryInUse: A cluster runs in the directory, or the directory contains other data.
            PortInUse: A requested port is in use.
            BrokerUnavailable: A broker exited, or was not ready in time.
        """
        with self._exclusive():
            previous = self._read()
            self._refuse_if_taken(previous)
            count = self._broker_count or (len(previous.ports) if previous else 1)
            ports = choose_ports(self._requested_ports, count, previous=previous.ports if previous else ())
            cluster = Cluster(previous.cluster_id if previous else random_id(), ports, [None] * count)
            for node in range(count):
                self._configure(cluster, node)
            # Written before the data, so that a half-formatted directory is recognised.
            self._write(cluster)
            self._format(cluster)
            for node in range(count):
                cluster.processes[node] = self._spawn(node)
                self._write(cluster)
        try:
            self._await_ready(cluster, self.kafka, count, timeout_s)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop all running brokers; their data stays."""
        cluster = self._read()
        if cluster:
            stop_all(
                [process for process in cluster.processes if process],
                grace_s=_STOP_S,
                settled=lambda: len(cluster.ports) > 1 and self._logs_closed(cluster),
            )

    def _logs_closed(self, cluster: Cluster) -> bool:
        """Whether every broker has closed its logs.

        The last of several brokers then waits five seconds for a lost quorum. Its metadata is on disk after every
        append, so the wait is useless.
        """
        return all((self._home(node) / "data" / ".kafka_cleanshutdown").exists() for node in range(len(cluster.ports)))

    def kill(self, node: int) -> None:
        """Kill broker `node` with SIGKILL."""
        self._signal(node, signal.SIGKILL)
        deadline = Deadline(_STOP_S)
        while self.status().brokers[node].state != "stopped" and not deadline.passed():
            time.sleep(0.005)

    def pause(self, node: int) -> None:
        """Pause the process of broker `node` with SIGSTOP."""
        self._signal(node, signal.SIGSTOP)

    def resume(self, node: int) -> None:
        """Resume the process of a paused broker with SIGCONT."""
        self._signal(node, signal.SIGCONT)

    def start_broker(self, node: int, *, timeout_s: float = 60.0) -> None:
        """Start the stopped broker `node` of a cluster, and wait until it has joined the cluster."""
        with self._exclusive():
            cluster = self._existing()
            if self._status(cluster, node).state != "stopped":
                raise DirectoryInUse(f"Broker {node} in {self._directory} is running.", hint="stop it first.")
            cluster.processes[node] = self._spawn(node)
            self._write(cluster)
        states = [self._status(cluster, i).state for i in range(len(cluster.ports))]
        # The request goes to the broker itself, which lists itself only after it has joined.
        own = self._client.model_copy(update={"bootstrap_servers": addresses([cluster.ports[node]])})
        self._await_ready(cluster, own, states.count("running"), timeout_s, only=node)

    def train(self) -> Path | None:
        """Create the ahead-of-time cache of brokers for this Java and these jars; None if this Java supports none.

        This cluster, which must not run yet, is started for the training and stopped.
        """
        java = java_binary()
        if not aot.supported(java):
            return None
        file = self._aot_file(java)
        with aot.training_flags(file) as flags:
            self._training_flags = flags
            try:
                self.start()
            finally:
                self._training_flags = []
                self.stop()
        return file

    def _refuse_if_taken(self, cluster: Cluster | None) -> None:
        if cluster is None:
            if any(file.name != _LOCK for file in self._directory.iterdir()):
                raise DirectoryInUse(
                    f"{self._directory} is not empty and contains no embedded Kafka.",
                    kept="nothing in it was changed.",
                    hint="choose another folder with --directory.",
                )
            return
        if any(process and process.find() for process in cluster.processes):
            raise DirectoryInUse(
                f"Kafka is already running in {self._directory}, at {addresses(cluster.ports)}.",
                kept="it keeps running.",
                hint="use it, stop it with `clonos kafka stop`, or choose another folder with --directory.",
            )
        if self._broker_count and self._broker_count != len(cluster.ports):
            raise DirectoryInUse(
                f"{self._directory} contains a cluster of {len(cluster.ports)} brokers, not of {self._broker_count}.",
                kept="its data was not changed.",
                hint=f"start it with {len(cluster.ports)} brokers, or choose another folder with --directory.",
            )

    def _configure(self, cluster: Cluster, node: int) -> None:
        home = self._home(node)
        home.mkdir(parents=True, exist_ok=True)
        properties = server_properties(node, cluster.ports, home / "data", client=self._client, extra=self._properties)
        config = home / "server.properties"
        config.touch(mode=0o600)  # it may hold a password
        config.write_text(render_properties(properties))

    def _format(self, cluster: Cluster) -> None:
        tools = []
        for node in range(len(cluster.ports)):
            if (self._home(node) / "data" / "meta.properties").exists():
                continue
            config = str(self._home(node) / "server.properties")
            arguments = ["format", "--cluster-id", cluster.cluster_id, "--config", config]
            command = [*self._java(node), "kafka.tools.StorageTool", *arguments, *scram_arguments(self._client)]
            tools.append(
                subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
                )
            )
        outputs = [tool.communicate()[0] for tool in tools]
        for tool, output in zip(tools, outputs, strict=True):
            if tool.returncode:
                raise BrokerUnavailable(
                    f"Kafka could not format {self._directory}: {output.strip()[-2000:]}",
                    kept="no broker was started.",
                    hint="check the broker settings.",
                )

    def _spawn(self, node: int) -> ProcessRecord:
        home = self._home(node)
        command = [*self._java(node, *self._training_flags), "kafka.Kafka", str(home / "server.properties")]
        return spawn(command, output=home / "console.log", directory=home)

    def _java(self, node: int, *flags: str) -> list[str]:
        if self._jars is None:
            raise ValueError("jars are needed to start a broker")
        java = java_binary()
        cache = flags or aot.use_flags(java, self._aot_file(java))
        command = [str(java), *_JVM_FLAGS, f"-Xmx{self._heap_mb}m", *cache]
        if java_major(java) >= _UNSAFE_WARNINGS_MAJOR:
            command += ["--sun-misc-unsafe-memory-access=allow", "--enable-native-access=ALL-UNNAMED"]
        config = Path(__file__).with_name("broker-log4j2.properties")
        command += [f"-Dlog4j2.configurationFile={config}", f"-Dclonos.log.file={self._log(node)}"]
        return [*command, "-cp", f"{self._jars.broker}/*"]

    def _aot_file(self, java: Path) -> Path:
        if self._jars is None:
            raise ValueError("jars are needed to start a broker")
        return aot.cache_file(self._jars, "broker", java, *_JVM_FLAGS)

    def _await_ready(
        self, cluster: Cluster, kafka: KafkaSettings, brokers: int, timeout_s: float, *, only: int | None = None
    ) -> None:
        watched = range(len(cluster.ports)) if only is None else [only]
        deadline = Deadline(timeout_s)
        while True:
            for node in watched:
                if self._status(cluster, node).state == "stopped":
                    raise BrokerUnavailable(
                        f"Broker {node} exited during start. The end of its log:\n{self._last_lines(node)}",
                        kept="existing data is unchanged.",
                        hint=f"see {self._log(node)}.",
                    )
            remaining_s = deadline.left_s()
            try:
                await_brokers(kafka, brokers=brokers, timeout_s=min(max(remaining_s, 0.1), 2.0))
            except BrokerUnavailable as error:
                if remaining_s <= 0:
                    lines = self._last_lines(watched[0])
                    raise BrokerUnavailable(
                        f"{error.what} The end of its log:\n{lines}", hint=f"see {self._log(watched[0])}."
                    ) from error
            else:
                return

    def _last_lines(self, node: int, count: int = 15) -> str:
        lines: list[str] = []
        for file in (self._home(node) / "console.log", self._log(node)):
            if file.exists():
                lines += file.read_text(errors="replace").splitlines()[-count:]
        return "\n".join(lines)

    def _signal(self, node: int, number: signal.Signals) -> None:
        process = self._existing().processes[node]
        if process:
            process.send(number)

    def _status(self, cluster: Cluster, node: int) -> BrokerStatus:
        process = cluster.processes[node]
        state: State = process.state() if process else "stopped"
        pid = process.pid if process and state != "stopped" else None
        return BrokerStatus(node, state, addresses([cluster.ports[node]]), pid, self._log(node))

    def _home(self, node: int) -> Path:
        return self._directory / f"broker-{node}"

    def _log(self, node: int) -> Path:
        return self._home(node) / "broker.log"

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Lock the directory, so that only one start runs at a time."""
        try:
            create_private(self._directory)
            locks = ExitStack()
            locks.enter_context(exclusive(self._directory / _LOCK))
        except OSError as error:
            raise DirectoryInUse(
                f"{self._directory} is not usable: {error}.", hint="choose another folder with --directory."
            ) from error
        with locks:
            yield

    def _existing(self) -> Cluster:
        cluster = self._read()
        if cluster is None:
            raise BrokerUnavailable(f"There is no embedded Kafka in {self._directory}.", hint="start it first.")
        return cluster

    def _read(self) -> Cluster | None:
        try:
            return msgspec.json.decode((self._directory / _RECORD).read_bytes(), type=Cluster)
        except FileNotFoundError:
            return None
        except (ValueError, NotADirectoryError) as error:
            raise DirectoryInUse(
                f"{self._directory / _RECORD} is not readable: {error}.", hint="choose another folder with --directory."
            ) from error

    def _write(self, cluster: Cluster) -> None:
        draft = self._directory / f"{_RECORD}.new"
        draft.write_bytes(msgspec.json.format(msgspec.json.encode(cluster)))
        draft.replace(self._directory / _RECORD)
