"""The jars of sessions whose checkpoint is on S3."""

from __future__ import annotations

from pathlib import Path

import pytest

from clonos.settings import Settings
from clonos.spark import storage
from clonos.spark.storage import storage_jars, verifies_files


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    (tmp_path / "hadoop-aws-1.jar").touch()
    monkeypatch.setattr(storage, "ensure_s3_jars", lambda _settings: tmp_path)
    return Settings(cache=tmp_path)


def test_only_a_checkpoint_on_s3_needs_jars(settings: Settings, tmp_path: Path) -> None:
    jar = str(tmp_path / "hadoop-aws-1.jar")
    assert storage_jars("s3a://bucket/x", {}, settings) == {"spark.jars": jar}
    assert storage_jars("S3A://bucket/x", {"spark.jars": "/own.jar"}, settings) == {"spark.jars": f"/own.jar,{jar}"}
    for location in ("/folder", "file:///folder", "hdfs://host/folder", ""):
        assert storage_jars(location, {}, settings) == {}


@pytest.mark.parametrize(
    "own", [{"spark.jars": "/lib/hadoop-aws-3.5.0.jar"}, {"spark.jars.packages": "org.apache.hadoop:hadoop-aws:3.5.0"}]
)
def test_the_users_own_version_is_used(settings: Settings, own: dict[str, str]) -> None:
    assert storage_jars("s3a://bucket/x", own, settings) == {}


@pytest.mark.parametrize(
    ("location", "verified"),
    [
        ("/folder", True),
        ("file:///folder", True),
        ("hdfs://host/folder", True),
        ("s3a://bucket/x", False),
        ("gs://bucket/x", False),
    ],
)
def test_hadoop_verifies_local_files_and_hdfs(location: str, verified: bool) -> None:
    assert verifies_files(location) == verified
