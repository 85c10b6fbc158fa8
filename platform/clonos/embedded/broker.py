"""The embedded Kafka: the real Apache Kafka in KRaft mode, as detached processes on this machine."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from clonos.embedded import aot
from clonos.embedded.cluster import BrokerStatus, Cluster, ClusterStatus, addresses, random_id
from clonos.embedded.jars import Jars, exclusive
from clonos.embedded.java import java_binary, java_major
from clonos.embedded.layout import choose_ports, render_properties, scram_arguments, server_properties
from clonos.embedded.processes import Recorded, State, end, spawn
from clonos.errors import BrokerUnavailable, DirectoryTaken
from clonos.kafka import await_brokers
from clonos.settings import KafkaSettings

_RECORD = "cluster.json"
_LOCK = ".lock"
_STOP_S = 20.0
_UNSAFE_WARNINGS_MAJOR = 24
# Both measured: the serial collector and the first compiler alone halve the time to be ready.
_JVM_FLAGS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xms128m")


class EmbeddedKafka:
    """A Kafka cluster in one directory of this machine.

    The brokers outlive the process that started them. Another process finds them by their directory.
    As a context manager it starts on entry and stops on exit.

    Args:
        directory: Data, logs and the record of what runs.
        brokers: How many; default: as many as the directory has, else one.
        ports: Client ports, one per broker; default: those of the last start, else free ones.
        jars: From `clonos.embedded.jars.ensure_jars`; needed to start, not to stop or ask.
        client: How clients are to connect (protocol, mechanism, user); addresses in it are ignored.
        properties: More broker settings. The client listener's prefix is ``listener.name.client.``.
        heap_mb: Heap of each broker.
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
        self._wanted = brokers
        self._named_ports = tuple(ports or ())
        self._jars = jars
        self._client = client or KafkaSettings()
        self._properties = dict(properties or {})
        self._heap_mb = heap_mb
        self._training_flags: list[str] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def bootstrap_servers(self) -> str:
        """Addresses of all brokers, for clients; empty before the first start."""
        cluster = self._read()
        return addresses(cluster.ports) if cluster else ""

    @property
    def kafka(self) -> KafkaSettings:
        """Settings with which a client reaches this cluster."""
        return self._client.model_copy(update={"bootstrap_servers": self.bootstrap_servers})

    def status(self) -> ClusterStatus:
        """What runs, as anyone can see it from the directory."""
        cluster = self._read()
        if cluster is None:
            return ClusterStatus(self._directory, "", ())
        brokers = tuple(self._status(cluster, node) for node in range(len(cluster.ports)))
        return ClusterStatus(self._directory, addresses(cluster.ports), brokers)

    def start(self, *, timeout_s: float = 60.0) -> None:
        """Start all brokers and wait until they answer.

        Raises:
            DirectoryTaken: A cluster runs there already, or the directory holds something else.
            PortTaken: A port that was asked for is in use.
            BrokerUnavailable: A broker ended, or did not answer in time.
        """
        with self._exclusive():
            previous = self._read()
            self._refuse_if_taken(previous)
            wanted = self._wanted or (len(previous.ports) if previous else 1)
            ports = choose_ports(self._named_ports, wanted, previous=previous.ports if previous else ())
            cluster = Cluster(previous.cluster_id if previous else random_id(), ports, [None] * wanted)
            for node in range(wanted):
                self._configure(cluster, node)
            # Written before the data, so that a half-formatted directory is known to be ours.
            self._write(cluster)
            self._format(cluster)
            for node in range(wanted):
                cluster.processes[node] = self._spawn(node)
                self._write(cluster)
        try:
            self._await_ready(cluster, self.kafka, wanted, timeout_s)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop all brokers; their data stays. Nothing happens where none runs."""
        cluster = self._read()
        if cluster:
            end(
                [process for process in cluster.processes if process],
                grace_s=_STOP_S,
                settled=lambda: len(cluster.ports) > 1 and self._logs_closed(cluster),
            )

    def _logs_closed(self, cluster: Cluster) -> bool:
        """Whether every broker has closed its logs.

        The last of several then still waits five seconds for a quorum that has gone; its metadata is
        on disk at every append, so there is nothing to wait for.
        """
        return all((self._home(node) / "data" / ".kafka_cleanshutdown").exists() for node in range(len(cluster.ports)))

    def kill(self, node: int) -> None:
        """End broker `node` as a crash would."""
        self._signal(node, signal.SIGKILL)
        deadline = time.monotonic() + _STOP_S
        while self.status().brokers[node].state != "stopped" and time.monotonic() < deadline:
            time.sleep(0.005)

    def pause(self, node: int) -> None:
        """Freeze broker `node`."""
        self._signal(node, signal.SIGSTOP)

    def resume(self, node: int) -> None:
        """Let a frozen broker go on."""
        self._signal(node, signal.SIGCONT)

    def start_broker(self, node: int, *, timeout_s: float = 60.0) -> None:
        """Start broker `node` of a cluster again and wait until the others know it.

        Raises:
            DirectoryTaken: It is running.
            BrokerUnavailable: It ended, or did not answer in time.
        """
        with self._exclusive():
            cluster = self._existing()
            if self._status(cluster, node).state != "stopped":
                raise DirectoryTaken(f"Broker {node} in {self._directory} is running.", hint="stop it first.")
            cluster.processes[node] = self._spawn(node)
            self._write(cluster)
        states = [self._status(cluster, i).state for i in range(len(cluster.ports))]
        # Asked at the broker itself: it lists itself only once it takes part.
        own = self._client.model_copy(update={"bootstrap_servers": addresses([cluster.ports[node]])})
        self._await_ready(cluster, own, states.count("running"), timeout_s, only=node)

    def train(self) -> Path | None:
        """Make the start-up cache of this Java and these jars, with a broker in this (scratch) directory.

        Returns:
            The cache, or None where this Java knows none.
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
            if any(each.name != _LOCK for each in self._directory.iterdir()):
                raise DirectoryTaken(
                    f"{self._directory} is not empty and holds no embedded Kafka.",
                    kept="nothing in it was touched.",
                    hint="choose another folder with --directory.",
                )
            return
        if any(process and process.find() for process in cluster.processes):
            raise DirectoryTaken(
                f"Kafka is already running in {self._directory}, at {addresses(cluster.ports)}.",
                kept="it was left alone.",
                hint="use it as it is, stop it with `clonos kafka stop`, or choose another folder with --directory.",
            )
        if self._wanted and self._wanted != len(cluster.ports):
            raise DirectoryTaken(
                f"{self._directory} holds a cluster of {len(cluster.ports)} brokers, not of {self._wanted}.",
                kept="its data was left alone.",
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
        """Format the storage of those brokers that have none, all at the same time."""
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
                    f"Kafka could not prepare {self._directory}: {output.strip()[-2000:]}",
                    kept="no broker was started.",
                    hint="check the broker settings that were given.",
                )

    def _spawn(self, node: int) -> Recorded:
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
        deadline = time.monotonic() + timeout_s
        while True:
            for node in watched:
                if self._status(cluster, node).state == "stopped":
                    raise BrokerUnavailable(
                        f"Broker {node} ended while it started. The end of its log:\n{self._last_lines(node)}",
                        kept="data written by earlier starts.",
                        hint=f"see {self._log(node)}.",
                    )
            left = deadline - time.monotonic()
            try:
                await_brokers(kafka, brokers=brokers, timeout_s=min(max(left, 0.1), 2.0))
            except BrokerUnavailable as error:
                if left <= 0:
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
        """Hold the directory, so that two starts at once do not both find it free."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            held = ExitStack()
            held.enter_context(exclusive(self._directory / _LOCK))
        except OSError as error:
            raise DirectoryTaken(
                f"{self._directory} cannot be used: {error}.", hint="choose another folder with --directory."
            ) from error
        with held:
            yield

    def _existing(self) -> Cluster:
        cluster = self._read()
        if cluster is None:
            raise BrokerUnavailable(f"There is no embedded Kafka in {self._directory}.", hint="start it first.")
        return cluster

    def _read(self) -> Cluster | None:
        try:
            return Cluster.load((self._directory / _RECORD).read_text())
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, NotADirectoryError) as error:
            raise DirectoryTaken(
                f"{self._directory / _RECORD} is not readable: {error}.", hint="choose another folder with --directory."
            ) from error

    def _write(self, cluster: Cluster) -> None:
        draft = self._directory / f"{_RECORD}.new"
        draft.write_text(cluster.dump())
        draft.replace(self._directory / _RECORD)
