"""Options of a submitted specification: every known escape is refused, and options that jobs need are accepted."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from clonos.errors import SpecError
from clonos.jobs.secret_refs import references, resolve
from clonos.jobs.spec import JobSpec
from clonos.resources.failures import SpecRefused
from clonos_api.admission import spec_checks
from clonos_api.admission.allowed_options import KAFKA, REFUSED, SPARK, SPARK_PREFIXES
from clonos_api.http.problems import problem_of
from support.scripted import create, spec, upload


def fields(**spec: Any) -> list[str]:
    whole = JobSpec.model_validate({"metadata": {"name": "orders"}, "spec": spec})
    return [problem.field for problem in spec_checks.check_spec(whole)]


KAFKA_REFUSED = [
    "plugin.library.paths",
    "sasl.kerberos.kinit.cmd",
    "sasl.kerberos.service.name",
    "ssl.ca.location",
    "ssl.key.location",
    "ssl.keystore.location",
    "ssl.truststore.location",
    "ssl.crl.location",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.oauthbearer.jwks.endpoint.url",
    "sasl.oauthbearer.config",
    "enable.sasl.oauthbearer.unsecure.jwt",
    "sasl.jaas.config",
    "listener.name.sasl_ssl.plain.sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.client.callback.handler.class",
    "sasl.login.class",
    "ssl.engine.factory.class",
    "ssl.engines",
    "ssl.provider",
    "ssl.providers",
    "security.providers",
    "interceptor.classes",
    "metric.reporters",
    "partitioner.class",
    "partition.assignment.strategy",
    "key.deserializer",
    "value.serializer",
    "schema.registry.url",
    "opaque",
    "debug",
    "dr_cb",
    "transactional.id",
    "enable.idempotence",
    "isolation.level",
    "group.id",
    "auto.offset.reset",
    "an.option.of.a.later.version",
    "",
]


@pytest.mark.parametrize("name", KAFKA_REFUSED)
@pytest.mark.parametrize("prefix", ["", "kafka."])
def test_kafka_options_that_are_refused(name: str, prefix: str) -> None:
    problems = spec_checks.check_kafka_options({prefix + name: "x"})
    assert [problem.field for problem in problems] == [f"options.{prefix}{name}"]
    assert all(problem.what and problem.hint for problem in problems)


@pytest.mark.parametrize("name", [name for name in KAFKA_REFUSED if name])
def test_the_same_as_parameters_of_a_job(name: str) -> None:
    assert fields(params={f"kafka.{name}": "x"}) == [f"spec.params.kafka.{name}"]


def test_kafka_options_that_jobs_need() -> None:
    options = {"bootstrap.servers": "broker:9092", "kafka.compression.type": "lz4", "linger.ms": 5, "acks": "all"}
    assert spec_checks.check_kafka_options(options) == []


SPARK_REFUSED = [
    "spark.driver.extraJavaOptions",
    "spark.executor.extraJavaOptions",
    "spark.driver.defaultJavaOptions",
    "spark.executor.defaultJavaOptions",
    "spark.driver.extraClassPath",
    "spark.executor.extraClassPath",
    "spark.driver.extraLibraryPath",
    "spark.driver.userClassPathFirst",
    "spark.jars",
    "spark.jars.packages",
    "spark.jars.repositories",
    "spark.jars.ivy",
    "spark.jars.ivySettings",
    "spark.files",
    "spark.archives",
    "spark.submit.pyFiles",
    "spark.submit.deployMode",
    "spark.master",
    "spark.master.rest.enabled",
    "spark.master.rest.port",
    "spark.deploy.defaultCores",
    "spark.app.name",
    "spark.executorEnv.LD_PRELOAD",
    "spark.driverEnv.PATH",
    "spark.yarn.appMasterEnv.X",
    "spark.yarn.dist.files",
    "spark.kubernetes.container.image",
    "spark.kubernetes.driver.podTemplateFile",
    "spark.plugins",
    "spark.extraListeners",
    "spark.sql.extensions",
    "spark.sql.catalog.evil",
    "spark.sql.queryExecutionListeners",
    "spark.sql.streaming.streamingQueryListeners",
    "spark.sql.hive.metastore.jars",
    "spark.sql.hive.metastore.jars.path",
    "spark.sql.warehouse.dir",
    "spark.local.dir",
    "spark.eventLog.dir",
    "spark.eventLog.enabled",
    "spark.pyspark.python",
    "spark.pyspark.driver.python",
    "spark.python.daemon.module",
    "spark.python.use.daemon",
    "spark.r.command",
    "spark.ui.enabled",
    "spark.ui.filters",
    "spark.metrics.conf",
    "spark.redaction.regex",
    "spark.acls.enable",
    "spark.admin.acls",
    "spark.authenticate.secret",
    "spark.ssl.keyStore",
    "spark.network.crypto.enabled",
    "spark.security.credentials.hive.enabled",
    "spark.serializer",
    "spark.closure.serializer",
    "spark.shuffle.manager",
    "spark.sql.streaming.stateStore.providerClass",
    "spark.sql.streaming.checkpointFileManagerClass",
    "spark.sql.streaming.checkpointLocation",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled",
    "spark.sql.parquet.output.committer.class",
    "spark.speculation",
    "spark.task.maxFailures",
    "spark.stage.maxConsecutiveAttempts",
    "spark.sql.adaptive.enabled",
    "spark.hadoop.fs.file.impl",
    "spark.hadoop.fs.s3a.aws.credentials.provider",
    "spark.hadoop.hadoop.security.credential.provider.path",
    "spark.hadoop.javax.jdo.option.ConnectionURL",
    "spark.kafka.clusters.x.sasl.token.mechanism",
    "spark.driver.host",
    "spark.a.setting.of.a.later.version",
    "SPARK.JARS",
    "Spark.jars",
    "hadoop.fs.defaultFS",
    "spark.sql.shuffle.partitions\nspark.jars",
    "spark.sql.shuffle.partitions spark.jars",
    "spark.sql.shuffle.partitions=1",
    "",
]


@pytest.mark.parametrize("name", SPARK_REFUSED)
def test_spark_settings_that_are_refused(name: str) -> None:
    assert len(fields(sparkConf={name: "https://elsewhere/evil.jar"})) == 1


@pytest.mark.parametrize(
    "value", ["${env:AWS_SECRET}", "${system:user.home}", "${spark.master}", "a\nspark.jars b", "\0"]
)
def test_values_that_spark_would_read_as_something_else(value: str) -> None:
    assert fields(sparkConf={"spark.sql.session.timeZone": value}) == ["spec.sparkConf.spark.sql.session.timeZone"]


@pytest.mark.parametrize("setting", ["cores.max", "executor.cores", "executor.instances", "executor.memory"])
def test_settings_around_the_limits_of_executors_are_refused(setting: str) -> None:
    assert fields(cluster="c", sparkConf={f"spark.{setting}": "1"}) == [f"spec.sparkConf.spark.{setting}"]


def test_settings_that_jobs_need() -> None:
    conf = {
        "spark.sql.shuffle.partitions": 4,
        "spark.executor.memory": "2g",
        "spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB": "500",
        "spark.hadoop.fs.s3a.secret.key": "${secret:s3}",
    }
    assert (
        fields(sparkConf=conf, params={"orders": "orders", "keys": "7", "url": "https://x/y"}, main="./src/job.py")
        == []
    )


def test_allowed_settings_are_never_refused() -> None:
    """The list of reasons wins; an option in both could not be set."""
    for name in KAFKA | SPARK:
        assert not [why for pattern, why in REFUSED if pattern.search(name.lower())], name
    assert all(prefix.endswith(".") for prefix in SPARK_PREFIXES)


@pytest.mark.parametrize(
    ("params", "refused"),
    [
        ({"password": "hunter2"}, True),
        ({"db.password": "hunter2"}, True),
        ({"apiKey": "abc"}, True),
        ({"AWS_SECRET_ACCESS_KEY": "abc"}, True),
        ({"kafka.sasl.password": "hunter2"}, True),
        ({"kafka.sasl.password": "${secret:kafka}"}, False),
        ({"password": "${secret:db}"}, False),
        ({"password": "x${secret:db}"}, True),
        ({"password": ""}, False),
        ({"dsn": "postgresql://ada:hunter2@db/x"}, True),
        ({"dsn": "postgresql://ada:${secret:db}@db/x"}, False),
        ({"x": "${secret:../../etc/passwd}"}, True),
        ({"x": "${secret:}"}, True),
        ({"x": "${secret:.hidden}"}, True),
        ({"token_type": "bearer", "keys": "3", "primary_key": "id", "tokens": "12"}, False),
    ],
)
def test_secrets_come_by_reference(params: dict[str, str], refused: bool) -> None:
    assert bool(fields(params=params)) is refused


def test_passwords_of_connections_come_by_reference() -> None:
    url = "postgresql://app@db/crm"
    assert fields(connections={"crm": {"url": url, "password": "${secret:crm}"}}) == []
    assert fields(connections={"crm": {"url": url, "password": "hunter2"}}) == ["spec.connections.crm.password"]
    assert fields(connections={"c\nrm": {"url": url}}) == ["spec.connections.c\\nrm"]
    many = {f"c{number}": {"url": url} for number in range(201)}
    assert fields(connections=many) == ["spec.connections"]


def test_a_refused_secret_is_not_repeated() -> None:
    spec = JobSpec.model_validate({"metadata": {"name": "x"}, "spec": {"params": {"password": "hunter2"}}})
    with pytest.raises(SpecRefused) as caught:
        spec_checks.refuse(spec_checks.check_spec(spec))
    body = problem_of(caught.value).model_dump_json()
    assert "hunter2" not in body
    assert "${secret:NAME}" in body
    assert problem_of(caught.value).status == 422
    assert [problem["field"] for problem in problem_of(caught.value).errors] == ["spec.params.password"]


@pytest.mark.parametrize(
    ("master", "fine"),
    [
        ("auto", True),
        ("local", True),
        ("local[*]", True),
        ("local[8]", True),
        ("spark://anywhere", False),
        ("spark://host:7077", False),
        ("local[2,4]", False),
        ("local-cluster[2,1,1024]", False),
        ("k8s://https://elsewhere", False),
        ("yarn", False),
        ("sc://elsewhere", False),
        ("spark://host:7077 --conf x", False),
        ("", False),
    ],
)
def test_masters(master: str, fine: bool) -> None:
    assert fields(master=master) == ([] if fine else ["spec.master"])


def test_a_master_of_a_cluster_is_refused_with_a_hint(ada: httpx.Client, name: str) -> None:
    body = {"spec": spec(name), "artifact": upload(ada), "start": False}
    body["spec"]["spec"]["master"] = "spark://anywhere:7077"
    refused = ada.post("/jobs", json=body)
    assert refused.status_code == 422
    assert [(error["field"], "cluster: NAME" in error["hint"]) for error in refused.json()["errors"]] == [
        ("spec.master", True)
    ]
    created = create(ada, name)
    changed = {"spec": body["spec"]}
    assert ada.patch(f"/jobs/{created['id']}", json=changed, headers={"If-Match": "*"}).status_code == 422


@pytest.mark.parametrize(
    ("location", "fine"),
    [
        ("/var/lib/clonos/x", True),
        ("relative/x", False),
        ("s3a://bucket/x", True),
        ("hdfs://namenode:8020/x", True),
        ("abfss://container@account.dfs.core.windows.net/x", True),
        ("file:///x", True),
        ("http://169.254.169.254/latest", False),
        ("https://elsewhere/x", False),
        ("jar:file:///x", False),
        ("ftp://x", False),
        ("s3a://key:secret@bucket/x", False),
        ("s3a://bucket/x?versionId=1", False),
        ("/a/../../etc", False),
        ("s3a://bucket/../x", False),
        ("a\\b", False),
        ("/a\nb", False),
        ("hdfs://host:notaport/x", False),
        ("hdfs://[::1/x", False),
        ("", False),
        ("/" + "x" * 2000, False),
    ],
)
def test_locations(location: str, fine: bool) -> None:
    assert fields(checkpoint=location) == ([] if fine else ["spec.checkpoint"])


@pytest.mark.parametrize("main", ["/etc/passwd", "../job.py", "a/../../job.py", "a\\job.py", "C:job.py", "a\0.py"])
def test_main_stays_inside_of_the_code(main: str) -> None:
    assert fields(main=main) == ["spec.main"]


def test_sizes() -> None:
    assert fields(driver={"memory": "1000000m"}) == ["spec.driver.memory"]
    assert fields(executor={"memory": "1000000m"}) == ["spec.executor.memory"]
    assert fields(executor={"instances": 100, "cores": 101}) == ["spec.executor"]
    assert fields(executor={"instances": 100, "cores": 100, "memory": "256g"}) == []
    assert fields(params={f"p{n}": "x" for n in range(201)}) == ["spec.params"]
    assert fields(sparkConf={f"spark.{n}": "x" for n in range(201)}) == ["spec.sparkConf"]
    assert fields(params={"p": "x" * 70_000}) == ["spec.params.p", "spec"]
    labels = JobSpec.model_validate({"metadata": {"name": "x", "labels": {"a b": "c"}}})
    assert [problem.field for problem in spec_checks.check_spec(labels)] == ["metadata.labels"]


def test_references() -> None:
    assert references(["${secret:a} and ${secret:b.c}", "none"]) == {"a", "b.c"}
    assert resolve("x${secret:a}y${secret:b}", {"a": "1", "b": "2"}.__getitem__) == "x1y2"
    # References in the value of a secret are not resolved.
    assert resolve("${secret:a}", {"a": "${secret:b}"}.__getitem__) == "${secret:b}"
    for wrong in ("${secret:a/b}", "${secret:}", "${secret:..}", "${secret:" + "a" * 101 + "}"):
        with pytest.raises(SpecError):
            resolve(wrong, str)
