"""Kafka with an authorizer: the rights of docs/operating.md suffice for a job, and an error names each missing one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from pydantic import SecretStr

from clonos.audit.visible_output import VisibleOutput
from clonos.embedded.broker import EmbeddedKafka
from clonos.embedded.jars import ensure_jars
from clonos.errors import KafkaAccessDenied
from clonos.jobs.context import JobContext
from clonos.kafka import client_config, produce
from clonos.log.reading import LogReader
from clonos.log.truncation import truncate
from clonos.settings import KafkaSettings, Settings
from clonos.testing.harness import read_committed

pytestmark = [pytest.mark.turn(14), pytest.mark.embedded]

_PAGE: Final = Path(__file__).parents[3] / "docs/operating.md"
_ROW: Final = re.compile(r"^\| (topic|transactional id|consumer group) \| ([^|]+) \| ([A-Z_, ]+) \|", re.MULTILINE)
_KINDS: Final = {
    "topic": ResourceType.TOPIC,
    "transactional id": ResourceType.TRANSACTIONAL_ID,
    "consumer group": ResourceType.GROUP,
}
_USER: Final = "User:driver"


class Right(NamedTuple):
    """A right of the page's table."""

    kind: str
    where: str
    operation: str


def documented() -> list[Right]:
    """The rights of the table in docs/operating.md, without the rights of `clonos doctor`."""
    rows = [row for row in _ROW.findall(_PAGE.read_text()) if "doctor" not in row[1]]
    return [Right(kind, where, operation) for kind, where, names in rows for operation in names.split(", ")]


@dataclass
class Guarded:
    """A cluster where the user `driver` has only the rights that a test grants."""

    admin: AdminClient
    kafka: KafkaSettings  # of the user `driver`
    owner: KafkaSettings

    def grant(self, job: str, rights: list[Right]) -> None:
        anything: tuple[Any, ...] = (
            ResourceType.ANY,
            None,
            ResourcePatternType.ANY,
            _USER,
            None,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        for deleted in self.admin.delete_acls([AclBindingFilter(*anything)]).values():
            deleted.result(60)
        for added in self.admin.create_acls([acl for right in rights for acl in self._rules(job, right)]).values():
            added.result(60)

    def _rules(self, job: str, right: Right) -> Iterator[AclBinding]:
        names = ["in"] if "sources" in right.where else ["out"] if "sinks" in right.where else []
        prefix = "prefix" in right.where
        for name in names or [re.search(r"`([^`]+)`", right.where)[1].replace("<job>", job)]:  # type: ignore[index]
            pattern = ResourcePatternType.PREFIXED if prefix else ResourcePatternType.LITERAL
            operation = AclOperation[right.operation]
            yield AclBinding(_KINDS[right.kind], name, pattern, _USER, "*", operation, AclPermissionType.ALLOW)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    sasl: dict[str, Any] = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
    owner = KafkaSettings(**sasl, sasl_username="owner", sasl_password=SecretStr("a"))
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:owner;User:ANONYMOUS",
        "listener.name.client.plain.sasl.jaas.config": f'{plain} user_owner="a" user_driver="b";',
    }
    home = tmp_path_factory.mktemp("kafka")
    jars = ensure_jars(Settings())
    with EmbeddedKafka(home, jars=jars, client=owner, properties=properties, heap_mb=256) as cluster:
        driver = cluster.kafka.model_copy(update={"sasl_username": "driver", "sasl_password": SecretStr("b")})
        admin = AdminClient(client_config(cluster.kafka))
        for created in admin.create_topics([NewTopic("in", 1), NewTopic("out", 1)]).values():
            created.result(60)
        yield Guarded(admin, driver, cluster.kafka)


def feed(kafka: KafkaSettings, values: list[str]) -> None:
    from confluent_kafka import Producer

    producer = Producer(client_config(kafka))
    for value in values:
        produce(producer, "in", value.encode())
    assert producer.flush(30) == 0


def published(kafka: KafkaSettings) -> Counter[str]:
    return Counter((message.value() or b"").decode() for message in read_committed(kafka, "out"))


def copy(ctx: JobContext) -> None:
    ctx.sink(ctx.source("in", max_per_epoch=1).select("value"), topic="out", name="out")


JOB: Final = """
import clonos

@clonos.service
def asked(word: str) -> str:
    return word

@clonos.udf("string")
def judge(value):
    return asked(value.decode())

@clonos.job(name="{name}", trigger={{"availableNow": True}})
def go(ctx):
    ctx.sink(ctx.source("in").select(judge("value").alias("value")), topic="out", name="out")
"""


def clonos(guarded: Guarded, home: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    settings = {
        "CLONOS_HOME": str(home),
        "CLONOS_KAFKA__BOOTSTRAP_SERVERS": guarded.kafka.bootstrap_servers,
        "CLONOS_KAFKA__SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "CLONOS_KAFKA__SASL_MECHANISM": "PLAIN",
        "CLONOS_KAFKA__SASL_USERNAME": "driver",
        "CLONOS_KAFKA__SASL_PASSWORD": "b",
    }
    command = [sys.executable, "-m", "clonos", *arguments]
    variables = {**os.environ, **settings, **environment}
    # In a session of its own: a fault kills the process group.
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=240, start_new_session=True)


def test_the_documented_rights_suffice(
    guarded: Guarded, run_on: Callable[[KafkaSettings], Any], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guarded.grant(name, [right for right in documented() if "optional" not in right.where])
    before = published(guarded.owner)
    words = [f"{name}-{number}" for number in range(5)]
    feed(guarded.owner, words)
    (tmp_path / "job.py").write_text(JOB.format(name=name))
    run = ("run", str(tmp_path / "job.py"), "--plain")
    killed = clonos(guarded, tmp_path, *run, CLONOS_FAULT="lane-committed:kill")
    assert killed.returncode < 0, killed.stderr
    replayed = clonos(guarded, tmp_path, *run)
    assert replayed.returncode == 0, replayed.stderr
    output = published(guarded.owner)
    assert {word: output[word] for word in words} == dict.fromkeys(words, 1)
    assert sum(before.values()) + len(words) <= sum(output.values())

    verified = clonos(guarded, tmp_path, "verify", name, "--topic", "out")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    consumed = clonos(guarded, tmp_path, "kafka", "consume", "out")
    assert consumed.returncode == 0, consumed.stderr
    assert set(words) <= {line.strip() for line in consumed.stdout.splitlines()}

    # The log is truncated each few epochs.
    few_epochs_between_truncations(monkeypatch)
    guarded.grant(f"{name}t", documented())
    runs = run_on(guarded.kafka)
    runs(copy, f"{name}t")
    assert max(event["partitions"] for event in runs.events_of("truncated")) > 0


def test_readers_need_no_right_on_a_group(guarded: Guarded, name: str) -> None:
    """Slow readers, so that the client has time to look for the coordinator of its group."""
    guarded.grant(name, [Right("topic", "the job's sources", "READ")])
    feed(guarded.owner, [f"{name}-{number}" for number in range(1500)])
    reader = LogReader(guarded.kafka, "in")
    end = reader.bounds(0)[1]
    read = 0
    for _ in reader.messages(0, end - 1500, end):
        read += 1
        if read % 500 == 0:
            time.sleep(0.5)
    assert read == 1500
    audit = VisibleOutput(guarded.kafka, ["in"], lambda *_: None)
    assert audit.snapshot().records >= 1500


def few_epochs_between_truncations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clonos.driver.epochs.RETAINED_EPOCHS", 2)
    monkeypatch.setattr("clonos.driver.epochs.truncate", partial(truncate, retained=1))


LOG: Final = Right("topic", "`clonos.<job>.log`", "")
REFUSED: Final = {
    "log-create": (LOG._replace(operation="CREATE"), None, "CREATE on the topic clonos.{job}.log"),
    "log-settings": (
        LOG._replace(operation="DESCRIBE_CONFIGS"),
        None,
        "DESCRIBE_CONFIGS on the topic clonos.{job}.log",
    ),
    "log-grow": (LOG._replace(operation="ALTER"), None, "ALTER on the topic clonos.{job}.log"),
    "log-read": (LOG._replace(operation="READ"), None, "READ on the topic clonos.{job}.log"),
    "log-write": (LOG._replace(operation="WRITE"), None, "WRITE on the topic clonos.{job}.log"),
    "sources": (Right("topic", "the job's sources", "READ"), None, "READ on the topic in"),
    "sources-read": (Right("topic", "the job's sources", "READ"), "DESCRIBE", "[in]"),
    "sinks": (Right("topic", "the job's sinks and dead-letter topics", "WRITE"), None, "[out]"),
    "sinks-write": (Right("topic", "the job's sinks and dead-letter topics", "WRITE"), "DESCRIBE", "[out]"),
    "transactions": (
        Right("transactional id", "prefix `clonos.<job>.`", "WRITE"),
        None,
        "WRITE on the transactional id clonos.{job}.control",
    ),
}


@pytest.mark.parametrize(("missing", "instead", "names"), REFUSED.values(), ids=REFUSED)
def test_an_error_names_a_missing_right(
    guarded: Guarded,
    run_on: Callable[[KafkaSettings], Any],
    name: str,
    missing: Right,
    instead: str | None,
    names: str,
) -> None:
    assert missing in documented()
    rights = [right for right in documented() if right != missing]
    guarded.grant(name, [*rights, *([missing._replace(operation=instead)] if instead else [])])
    feed(guarded.owner, [name])
    with pytest.raises(KafkaAccessDenied) as refusal:
        run_on(guarded.kafka)(copy, name)
    assert names.format(job=name) in str(refusal.value)


def test_a_job_without_the_right_to_truncate_runs(
    guarded: Guarded, run_on: Callable[[KafkaSettings], Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_epochs_between_truncations(monkeypatch)
    guarded.grant(name, [right for right in documented() if right != LOG._replace(operation="DELETE")])
    feed(guarded.owner, [f"{name}-{number}" for number in range(5)])
    runs = run_on(guarded.kafka)
    runs(copy, name)
    assert f"DELETE on the topic clonos.{name}.log" in runs.events_of("not-truncated")[0]["hint"]


def test_every_right_of_the_page_is_needed() -> None:
    tried = {missing for missing, _, _ in REFUSED.values()} | {LOG._replace(operation="DELETE")}
    assert {right for right in documented() if "optional" not in right.where and "verify" not in right.where} == tried
