"""The jars of sessions whose checkpoint is on S3."""

from __future__ import annotations

from pathlib import Path

import pytest

from clonos.settings import Settings
from clonos.spark import storage
from clonos.spark.storage import FILE_CHECKSUMS, checksum_settings, storage_jars


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


def test_spark_writes_checksums_on_s3_only() -> None:
    assert checksum_settings("s3a://bucket/x", {}) == {FILE_CHECKSUMS: "true"}
    assert checksum_settings("s3a://bucket/x", {FILE_CHECKSUMS: "false"}) == {FILE_CHECKSUMS: "false"}
    for location in ("/folder", "file:///folder", "hdfs://host/folder", ""):
        assert checksum_settings(location, {}) == {}
