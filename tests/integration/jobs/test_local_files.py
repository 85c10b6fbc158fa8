"""The local file system of Clonos hard-links immutable files, so that copies of state take no time at any size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession


@pytest.mark.parametrize("way", ["copyToLocalFile", "copyFromLocalFile"])
def test_tables_are_linked_to_and_all_else_is_copied(spark: SparkSession, tmp_path: Path, way: str) -> None:
    hadoop = spark.sparkContext._jvm.org.apache.hadoop.fs
    files = hadoop.FileSystem.get(spark.sparkContext._jsc.hadoopConfiguration())
    assert files.getClass().getName() == "clonos.LocalFileSystem"

    def copied(source: Path, target: Path) -> bool:
        """Copy a file; return whether the copy is a separate file, not a hard link."""
        getattr(files, way)(hadoop.Path(str(source)), hadoop.Path(str(target)))
        assert target.read_bytes() == source.read_bytes()
        return not target.samefile(source)

    table, other = tmp_path / "000007.sst", tmp_path / "000008.log"
    table.write_bytes(b"table")
    other.write_bytes(b"other")
    assert not copied(table, tmp_path / "new" / "000007-1.sst")
    assert copied(other, tmp_path / "000008-1.log")

    # A copy onto an existing hard link leaves the file unchanged under its other name.
    (tmp_path / "000009.sst").write_bytes(b"older")
    (tmp_path / "target.sst").hardlink_to(tmp_path / "000009.sst")
    assert not copied(table, tmp_path / "target.sst")
    assert (tmp_path / "000009.sst").read_bytes() == b"older"

    # A copy to another disk is a separate file.
    elsewhere = Path("/dev/shm")
    if elsewhere.is_dir() and elsewhere.stat().st_dev != tmp_path.stat().st_dev:
        target = elsewhere / f"{tmp_path.name}.sst"
        try:
            assert copied(table, target)
        finally:
            target.unlink(missing_ok=True)
            target.with_name(f".{target.name}.crc").unlink(missing_ok=True)


def test_a_file_is_not_renamed_onto_another(spark: SparkSession, tmp_path: Path) -> None:
    """Spark checks for a file, then renames onto it: a driver paused in between must not replace a newer file."""
    hadoop = spark.sparkContext._jvm.org.apache.hadoop.fs
    files = hadoop.FileSystem.get(spark.sparkContext._jsc.hadoopConfiguration())

    def renamed(source: Path, target: Path) -> bool:
        return bool(files.rename(hadoop.Path(str(source)), hadoop.Path(str(target))))

    temporary, final = tmp_path / ".5.tmp", tmp_path / "5"
    for content in ("newer", "older"):
        temporary.write_text(content)
        temporary.with_name("..5.tmp.crc").write_text(f"of {content}")
        assert renamed(temporary, final) == (content == "newer")
    assert final.read_text() == "newer"
    assert final.with_name(".5.crc").read_text() == "of newer"
    assert temporary.read_text() == "older"

    (tmp_path / "folder").mkdir()
    assert renamed(tmp_path / "folder", tmp_path / "moved")
    assert (tmp_path / "moved").is_dir()


def test_a_checkpoint_has_this_file_system_without_the_setting(spark: SparkSession, tmp_path: Path) -> None:
    """As on a cluster, where the setting would reach executors before they have the class."""
    jvm = spark.sparkContext._jvm
    conf = jvm.org.apache.hadoop.conf.Configuration(spark.sparkContext._jsc.hadoopConfiguration())
    conf.unset("fs.file.impl")
    conf.setBoolean("fs.file.impl.disable.cache", True)
    folder = jvm.org.apache.hadoop.fs.Path(tmp_path.as_uri())
    assert folder.getFileSystem(conf).getClass().getName() != "clonos.LocalFileSystem"
    assert jvm.clonos.CheckpointFiles(folder, conf).fs().getClass().getName() == "clonos.LocalFileSystem"

    # A user's own class stays.
    conf.set("fs.file.impl", "org.apache.hadoop.fs.RawLocalFileSystem")
    assert jvm.clonos.CheckpointFiles(folder, conf).fs().getClass().getName().endswith(".RawLocalFileSystem")


def test_a_listing_equals_that_of_hadoop(spark: SparkSession, tmp_path: Path) -> None:
    context = spark.sparkContext
    jvm, hadoop = context._jvm, context._jvm.org.apache.hadoop.fs
    own = hadoop.FileSystem.get(context._jsc.hadoopConfiguration())
    conf = jvm.org.apache.hadoop.conf.Configuration(context._jsc.hadoopConfiguration())
    conf.set("fs.file.impl", "org.apache.hadoop.fs.LocalFileSystem")
    conf.setBoolean("fs.file.impl.disable.cache", True)
    hadoops = hadoop.FileSystem.get(conf)
    assert {files.getClass().getName() for files in (own, hadoops)} == {
        "clonos.LocalFileSystem",
        "org.apache.hadoop.fs.LocalFileSystem",
    }

    def listed(files: Any, folder: str, pattern: str) -> list[tuple[str, int, bool]]:
        statuses = files.listStatus(hadoop.Path(folder), hadoop.GlobFilter(pattern))
        return sorted((status.getPath().toString(), status.getLen(), status.isDirectory()) for status in statuses)

    for name in ("1.zip", "1.changelog", ".1.zip.crc", ".hidden", "a b:c%20.zip"):
        (tmp_path / name).write_text(name)
    (tmp_path / "folder.zip").mkdir()
    (tmp_path / "dangling.zip").symlink_to(tmp_path / "removed")
    for folder in (str(tmp_path), tmp_path.as_uri()):
        for pattern in ("*", "*.zip", "*.crc", "none"):
            assert listed(own, folder, pattern) == listed(hadoops, folder, pattern)
    assert len(listed(own, str(tmp_path), "*.zip")) == 3

    file = str(tmp_path / "1.zip")
    assert listed(own, file, "*") == listed(hadoops, file, "*") != []
    for files in (own, hadoops):
        with pytest.raises(Py4JJavaError, match="FileNotFoundException"):
            listed(files, str(tmp_path / "missing"), "*")
