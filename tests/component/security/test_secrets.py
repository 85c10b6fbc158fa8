"""Secrets of a specification, read from a host's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from clonos.agent.tasks import with_storage
from clonos.errors import SpecError
from clonos.jobs.cluster import ClusterSpec
from clonos.jobs.spec import JobSpec
from clonos.resources.hosts import HostTask
from clonos.resources.spec_secrets import from_folder, names, resolved, with_secrets


def spec(**part: object) -> JobSpec:
    return JobSpec.model_validate({"metadata": {"name": "orders"}, "spec": part})


def test_secrets_are_filled_in(tmp_path: Path) -> None:
    (tmp_path / "db").write_text("hunter2\n")
    (tmp_path / "s3.key").write_text("a\nb\n")
    original = spec(
        params={"dsn": "postgresql://ada:${secret:db}@db/x", "plain": "x"},
        sparkConf={"spark.hadoop.fs.s3a.secret.key": "${secret:s3.key}"},
    )
    assert names(original) == ["db", "s3.key"]
    filled = resolved(original, from_folder(tmp_path, ""))
    assert filled.spec.params == {"dsn": "postgresql://ada:hunter2@db/x", "plain": "x"}
    assert filled.spec.spark_conf == {"spark.hadoop.fs.s3a.secret.key": "a\nb"}
    assert "hunter2" not in original.model_dump_json()


def test_passwords_of_connections_are_filled_in() -> None:
    original = spec(connections={"crm": {"url": "postgresql://app@db/crm", "password": "${secret:crm}"}})
    assert names(original) == ["crm"]
    filled = resolved(original, {"crm": "hunter2"}.__getitem__)
    assert filled.spec.connections["crm"].password == "hunter2"
    assert JobSpec.model_validate_json(filled.model_dump_json(exclude_unset=True)) == filled
    assert "hunter2" not in repr(filled)


def test_unset_fields_stay_unset_in_the_resolved_spec(tmp_path: Path) -> None:
    original = spec(params={"x": "y"})
    assert resolved(original, from_folder(tmp_path, "")) is original
    assert "spark_conf" not in resolved(spec(params={"x": "${secret:a}"}), lambda name: "1").spec.model_fields_set


def test_missing_secrets_are_reported(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "long").write_text("x" * 70_000)
    for name in ("missing", "folder", "binary", "long"):
        with pytest.raises(SpecError, match=name):
            resolved(spec(params={"x": f"${{secret:{name}}}"}), from_folder(tmp_path, ""))


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "..", ".x", "", "a/b", "a\0b", "x" * 101])
def test_a_name_is_a_file_of_the_folder_and_nothing_else(name: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="is not a valid name of a secret"):
        resolved(spec(params={"x": f"${{secret:{name}}}"}), from_folder(tmp_path, ""))


def test_a_job_gets_the_secrets_of_its_owner_only(tmp_path: Path) -> None:
    for owner in ("ada", "bob", "eve%2F..%2Fada"):
        (tmp_path / owner).mkdir()
        (tmp_path / owner / "db").write_text(owner)
    (tmp_path / "shared").write_text("no owner's")
    wanted = spec(params={"x": "${secret:db}"})
    assert resolved(wanted, from_folder(tmp_path, "ada")).spec.params == {"x": "ada"}
    assert resolved(wanted, from_folder(tmp_path, "eve/../ada")).spec.params == {"x": "eve%2F..%2Fada"}
    for owner, name in (("mallory", "db"), ("..", "db"), ("ada", "shared")):
        with pytest.raises(SpecError):
            resolved(spec(params={"x": f"${{secret:{name}}}"}), from_folder(tmp_path, owner))


def cluster(**settings: object) -> ClusterSpec:
    return ClusterSpec.model_validate({"metadata": {"name": "c"}, "spec": {"master": "spark://m:7077", **settings}})


def test_a_host_task_gets_the_settings_of_file_systems_with_their_secrets(tmp_path: Path) -> None:
    for folder, secret in (("ada", "hunter2"), ("clusters", "hunter3")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "s3").write_text(secret)
    key, endpoint = "spark.hadoop.fs.s3a.secret.key", "spark.hadoop.fs.s3a.endpoint"
    job = spec(sparkConf={key: "${secret:s3}", endpoint: "e", "spark.task.cpus": "1"}).model_dump(mode="json")
    arguments = {"savepoint": "s", "location": "s3a://b/x", "storage": {"spec": job, "owner": "ada", "cluster": None}}
    task = HostTask(task="t", kind="delete-savepoint", arguments=arguments)
    filled = with_storage(task, tmp_path).arguments
    assert filled == {"savepoint": "s", "location": "s3a://b/x", "sparkConf": {key: "hunter2", endpoint: "e"}}
    assert "hunter" not in task.model_dump_json()
    arguments["storage"]["cluster"] = cluster(sparkConf={key: "${secret:s3}"}).model_dump(mode="json", by_alias=True)  # type: ignore[index]
    filled = with_storage(HostTask(task="t", kind="savepoint", arguments=arguments), tmp_path).arguments
    assert filled["sparkConf"][key] == "hunter3", "the cluster's settings take precedence"
    local = HostTask(task="t", kind="savepoint", arguments={"location": "/x"})
    assert with_storage(local, tmp_path) is local


def test_a_cluster_gets_the_secrets_of_clusters(tmp_path: Path) -> None:
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "auth").write_text("hunter2\n")
    (tmp_path / "clusters" / "store").write_text("hunter3")
    (tmp_path / "shared").write_text("no cluster's")
    conf = {"spark.ssl.keyPassword": "${secret:store}", "spark.driver.host": "a"}
    described = cluster(authSecret="auth", sparkConf=conf)
    actual = with_secrets(described, tmp_path)
    assert actual.cluster.spec.spark_conf == {"spark.ssl.keyPassword": "hunter3", "spark.driver.host": "a"}
    assert actual.environment == {"CLONOS_CLUSTER_SECRET": "hunter2"}
    assert "hunter" not in described.model_dump_json()
    assert with_secrets(cluster(), tmp_path).environment == {}
    for settings in ({"authSecret": "shared"}, {"sparkConf": {"spark.x": "${secret:shared}"}}):
        with pytest.raises(SpecError, match="shared"):
            with_secrets(cluster(**settings), tmp_path)


def test_no_job_gets_the_secrets_of_clusters(tmp_path: Path) -> None:
    """Also not one of a subject with the name of their folder."""
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "auth").write_text("hunter2")
    for owner in ("clusters", "ada", ""):
        with pytest.raises(SpecError):
            resolved(spec(params={"x": "${secret:auth}"}), from_folder(tmp_path, owner))
