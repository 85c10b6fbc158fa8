"""The configuration of a session on a Spark cluster, and what is refused before it is built."""

from __future__ import annotations

import re
import socket
import tempfile
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clonos.errors import ClusterUnavailable, SessionIncompatible, SpecError
from clonos.jobs.cluster import SECRET_VARIABLE, ClusterSpec
from clonos.jobs.spec import ExecutorResources
from clonos.settings import KafkaSettings, RegistrySettings
from clonos.spark import managers
from clonos.spark.clusters import (
    ClusterUse,
    is_loopback,
    python_of,
    require_encryption,
    require_master,
    ship_code,
    use_cluster,
    use_master,
)
from clonos.spark.managers import HADOOP_VARIABLES
from clonos.spark.session import GUARD, is_local, session_conf

MASTER = "spark://master:7077"
EXECUTOR = ExecutorResources(instances=3, cores=2, memory_mb=700)


def described(**settings: Any) -> ClusterSpec:
    return ClusterSpec.model_validate({"metadata": {"name": "east"}, "spec": {"master": MASTER, **settings}})


def use(**settings: Any) -> ClusterUse:
    return use_cluster(described(**settings), EXECUTOR)


def test_executors_follow_from_the_specification() -> None:
    conf = session_conf("job", "auto", {}, cluster=use())
    assert conf["spark.master"] == MASTER
    assert conf["spark.executor.instances"] == "3"
    assert conf["spark.executor.cores"] == "2"
    assert conf["spark.executor.memory"] == "700m"
    assert conf["spark.cores.max"] == "6"
    assert conf["spark.sql.shuffle.partitions"] == "12"
    assert conf["spark.plugins"] == GUARD
    assert conf["spark.ui.enabled"] == "false"
    assert "spark.driver.host" not in conf


def test_only_a_standalone_cluster_has_a_maximum_of_cores() -> None:
    assert "spark.cores.max" not in session_conf("job", "auto", {}, cluster=use(master="yarn"))


def test_the_cluster_has_priority_over_the_job() -> None:
    cluster = use(sparkConf={"spark.driver.host": "gateway", "spark.ui.enabled": "true", "spark.plugins": "org.Other"})
    job = {"spark.driver.host": "mine", "spark.sql.shuffle.partitions": "5", "spark.master": "local[2]"}
    conf = session_conf("job", "auto", job, cluster=cluster)
    assert conf["spark.driver.host"] == "gateway"
    assert conf["spark.ui.enabled"] == "true"
    assert conf["spark.sql.shuffle.partitions"] == "5"
    assert conf["spark.plugins"] == f"org.Other,{GUARD}"
    assert conf["spark.master"] == MASTER


def test_a_cluster_cannot_change_required_settings() -> None:
    with pytest.raises(SpecError, match="dynamicAllocation") as refused:
        session_conf("job", "auto", {}, cluster=use(sparkConf={"spark.dynamicAllocation.enabled": "true"}))
    assert "cluster file" in refused.value.hint


def test_flags_of_executors_are_added_to_the_users() -> None:
    conf = session_conf("job", MASTER, {"spark.executor.extraJavaOptions": "-XX:+UseSerialGC"})
    assert conf["spark.executor.extraJavaOptions"] == "-Dio.netty.noUnsafe=false -XX:+UseSerialGC"


def test_a_master_without_a_description_gets_default_executors() -> None:
    conf = session_conf("job", "spark://127.0.0.1:7077", {})
    assert (conf["spark.cores.max"], conf["spark.sql.shuffle.partitions"]) == ("2", "4")
    assert conf["spark.driver.host"] == "127.0.0.1"
    assert conf["spark.plugins"] == GUARD


def test_cores_of_the_driver_bound_its_slots() -> None:
    conf = session_conf("job", "auto", {}, cores=3)
    assert (conf["spark.master"], conf["spark.sql.shuffle.partitions"]) == ("local[6]", "6")


def test_the_secret_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    with pytest.raises(SpecError, match="needs the secret spark-east"):
        use(authSecret="spark-east")
    monkeypatch.setenv(SECRET_VARIABLE, "hidden")
    conf = session_conf("job", "auto", {}, cluster=use(authSecret="spark-east"))
    assert conf["spark.authenticate.secret"] == "hidden"
    for name in ("spark.authenticate", "spark.network.crypto.enabled", "spark.io.encryption.enabled"):
        assert conf[name] == "true"


@pytest.mark.parametrize(
    ("secret", "settings", "passwords", "refused"),
    [
        ("", {}, {"sasl_password": "p"}, True),
        ("", {}, {"ssl_key_password": "p"}, True),
        ("", {}, {}, False),
        ("", {"trustedNetwork": True}, {"sasl_password": "p"}, False),
        ("", {"sparkConf": {"spark.authenticate": "true"}}, {"sasl_password": "p"}, True),
        (
            "",
            {"sparkConf": {"spark.authenticate": "true", "spark.ssl.rpc.enabled": "true"}},
            {"sasl_password": "p"},
            False,
        ),
        ("hidden", {}, {"sasl_password": "p"}, False),
    ],
)
def test_passwords_need_encryption(
    secret: str, settings: dict[str, Any], passwords: dict[str, Any], refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, secret)
    cluster = use(**settings)
    conf = session_conf("job", "auto", {}, cluster=cluster)
    kafka = KafkaSettings.model_validate(passwords)
    if not refused:
        require_encryption(conf, cluster, kafka, RegistrySettings())
        return
    with pytest.raises(SessionIncompatible, match="without encryption") as error:
        require_encryption(conf, cluster, kafka, RegistrySettings())
    assert "authSecret" in error.value.hint


def test_a_password_of_the_registry_needs_encryption_too() -> None:
    cluster = use()
    with pytest.raises(SessionIncompatible, match="CLONOS_REGISTRY__PASSWORD"):
        require_encryption({}, cluster, KafkaSettings(), RegistrySettings.model_validate({"password": "p"}))


@pytest.mark.parametrize(
    ("settings", "python"),
    [
        ({}, "/mine"),
        ({"python": "/opt/python"}, "/opt/python"),
        ({"environment": "hdfs:///envs/e.tar.gz"}, "./environment/bin/python"),
        ({"environment": "hdfs:///envs/e.tar.gz", "python": "bin/pypy"}, "./environment/bin/pypy"),
    ],
)
def test_python_of_executors(settings: dict[str, str], python: str) -> None:
    cluster = use(**settings)
    assert python_of(cluster, "/mine") == python
    archives = session_conf("job", "auto", {"spark.archives": "a.zip"}, cluster=cluster)["spark.archives"]
    assert archives == ("a.zip,hdfs:///envs/e.tar.gz#environment" if "environment" in settings else "a.zip")


@pytest.mark.parametrize(
    ("master", "loopback", "local"),
    [
        ("spark://127.0.0.1:7077", True, False),
        ("spark://localhost:1,[::1]:2", True, False),
        ("spark://127.0.0.1:7077,other:7077", False, False),
        ("spark://master:7077", False, False),
        ("local-cluster[2,1,1024]", True, False),
        ("yarn", False, False),
        ("auto", False, True),
        ("local", False, True),
        ("local[4]", False, True),
    ],
)
def test_kinds_of_masters(master: str, loopback: bool, local: bool) -> None:
    assert is_loopback(master) == loopback
    assert is_local(master) == local


def test_a_master_that_does_not_answer_is_refused_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        require_master(use_master(f"spark://127.0.0.1:1,127.0.0.1:{port}", EXECUTOR))
    with pytest.raises(ClusterUnavailable, match=f"127.0.0.1:{port}"):
        require_master(use_master(f"spark://127.0.0.1:{port}", EXECUTOR))


def test_yarn_needs_the_address_of_its_resource_manager(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in HADOOP_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(SpecError, match="does not know the resource manager of the cluster east") as refused:
        require_master(use(master="yarn"))
    assert "HADOOP_CONF_DIR" in refused.value.hint
    require_master(use(master="yarn", sparkConf={"spark.hadoop.yarn.resourcemanager.address": "rm:8032"}))
    monkeypatch.setenv("YARN_CONF_DIR", str(tmp_path))
    with pytest.raises(SpecError):
        require_master(use_master("yarn", EXECUTOR))
    (tmp_path / "yarn-site.xml").touch()
    require_master(use_master("yarn", EXECUTOR))


def test_yarn_unpacks_an_environment_itself() -> None:
    cluster = use(master="yarn", environment="hdfs:///envs/e.tar.gz")
    conf = session_conf("job", "auto", {"spark.archives": "a.zip"}, cluster=cluster)
    assert conf["spark.yarn.dist.archives"] == "hdfs:///envs/e.tar.gz#environment"
    assert conf["spark.archives"] == "a.zip"


def test_yarn_has_encryption_and_a_secret_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, "of a standalone cluster")
    cluster = use(master="yarn")
    conf = session_conf("job", "auto", {}, cluster=cluster)
    assert "spark.authenticate.secret" not in conf
    require_encryption(conf, cluster, KafkaSettings.model_validate({"sasl_password": "p"}), RegistrySettings())
    assert conf["spark.executor.failuresValidityInterval"] == "1h"
    other = use(master="yarn", sparkConf={"spark.authenticate": "false"})
    with pytest.raises(SessionIncompatible):
        require_encryption(
            session_conf("job", "auto", {}, cluster=other),
            other,
            KafkaSettings.model_validate({"sasl_password": "p"}),
            RegistrySettings(),
        )


K8S = "k8s://https://api:6443"
PODS = {"image": "registry.example/executor:1", "namespace": "streams", "serviceAccount": "executor"}


def test_pods_of_executors_follow_from_the_cluster_file(tmp_path: Path) -> None:
    template = tmp_path / "pod.yaml"
    pods = {**PODS, "podTemplate": str(template), "pullSecrets": ["one", "two"]}
    cluster = use(master=K8S, kubernetes=pods)
    conf = session_conf("job", "auto", {"spark.kubernetes.namespace": "of-the-job"}, cluster=cluster)
    names = {name.removeprefix("spark.kubernetes."): value for name, value in conf.items() if "kubernetes." in name}
    assert names == {
        "driver.service.deleteOnTermination": "false",
        "container.image": "registry.example/executor:1",
        "namespace": "streams",
        "authenticate.executor.serviceAccountName": "executor",
        "executor.podTemplateFile": str(template),
        "container.image.pullSecrets": "one,two",
    }
    assert conf["spark.authenticate"] == conf["spark.network.crypto.enabled"] == "true"
    assert "spark.driver.host" not in conf
    with pytest.raises(SpecError, match=r"pod\.yaml of the cluster east is not on this host"):
        require_master(cluster)
    template.touch()
    require_master(cluster)


@pytest.mark.parametrize(("namespace", "owner"), [("streams", True), ("elsewhere", False)])
def test_a_driver_in_a_pod_gives_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, namespace: str, owner: bool
) -> None:
    (tmp_path / "namespace").write_text(f"{namespace}\n")
    monkeypatch.setattr(managers, "_POD", tmp_path / "namespace")
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    conf = session_conf("job", "auto", {}, cluster=use(master=K8S, kubernetes=PODS))
    assert conf["spark.driver.host"] in {"127.0.0.1", "::1"}
    assert conf.get("spark.kubernetes.driver.pod.name") == ("localhost" if owner else None)
    set_by_admin = use(master=K8S, kubernetes=PODS, sparkConf={"spark.driver.host": "agents.streams.svc"})
    assert session_conf("job", "auto", {}, cluster=set_by_admin)["spark.driver.host"] == "agents.streams.svc"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"master": K8S}, "needs the field kubernetes, with the image of executors"),
        ({"master": "yarn", "kubernetes": PODS}, "kubernetes needs a master such as k8s://https://HOST:PORT"),
        ({"master": K8S, "kubernetes": {**PODS, "image": ""}}, "image"),
        ({"master": K8S, "kubernetes": {**PODS, "namespace": "Not_A_Name"}}, "namespace"),
        ({"master": K8S, "kubernetes": {**PODS, "podTemplate": "relative.yaml"}}, "podTemplate"),
        (
            {"master": K8S, "kubernetes": PODS, "sparkConf": {"spark.kubernetes.namespace": "other"}},
            "fields of kubernetes set spark.kubernetes.namespace: leave it out of sparkConf",
        ),
    ],
)
def test_descriptions_of_kubernetes_that_are_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        described(**settings)


@pytest.mark.parametrize("master", ["yarn", "k8s://https://api:6443"])
def test_a_secret_is_refused_where_spark_generates_it(master: str) -> None:
    with pytest.raises(ValueError, match="authSecret is for standalone clusters"):
        described(master=master, authSecret="spark-east")


def test_code_is_shipped_with_its_data_files(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    files = {"job.py": "1", "helper.py": "2", "parts/inner.py": "3", "model.txt": "4"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    archives: list[str] = []
    context = SimpleNamespace(addArchive=archives.append, _python_includes=[])
    spark: Any = SimpleNamespace(sparkContext=context)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    assert ship_code(spark, tmp_path, files, scratch) == ["helper", "job", "parts"]
    (archive,) = archives
    path, _hash, folder = archive.partition("#")
    assert context._python_includes == [folder]
    with zipfile.ZipFile(path) as content:
        assert {name: content.read(name).decode() for name in content.namelist()} == files
    assert ship_code(spark, tmp_path, [], scratch) == []


def test_sockets_of_python_workers_have_short_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The temporary folder of a driver that an agent starts is below the agent's own; a socket's path is short."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("x" * 70)))
    setting = "spark.python.unix.domain.socket.dir"
    assert session_conf("job", "auto", {}, cluster=use())[setting] == "/tmp"
    assert session_conf("job", "auto", {})[setting] == "/tmp"
