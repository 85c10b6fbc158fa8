"""Folders of checkpoints are compared as identities, not as texts."""

from __future__ import annotations

import pytest

from clonos.jobs.locations import locate


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("/data/a", "file:///data/a/"),
        ("/data/a", "FILE://localhost/data/./a"),
        ("/data/a", "/data//x/../a"),
        ("/data/a", "file:///data/%2e/%61"),
        ("/data/a", "/%252e/data/a"),
        ("/data/a", "/data"),
        ("/data/a", "/data/a/out/state"),
        ("hdfs://nn:8020/c", "HDFS://NN/c"),
        ("hdfs://nn:8020/c", "hdfs://nn.:08020/c"),
        ("hdfs://nn:8020/c", "hdfs://nn:9000/c"),
        ("hdfs://nn:8020/c", "hdfs:///c"),
        ("s3a://bucket/c", "s3://Bucket:80/./c"),
        ("s3a://bucket/c", "s3n://bucket//c/"),
        ("abfss://data@acc.dfs.core.windows.net/c", "abfs://data@ACC.blob.core.windows.net:443/c"),
        ("gs://bucket/c", "gs://BUCKET/c/d"),
    ],
)
def test_spellings_of_one_folder_overlap(one: str, other: str) -> None:
    assert locate(one).overlaps(locate(other))
    assert locate(other).overlaps(locate(one))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("/data/a", "/data/ab"),
        ("/data/a", "/data/b"),
        ("hdfs://nn/c", "hdfs://other/c"),
        ("hdfs://nn/c", "/c"),
        ("s3a://bucket/c", "s3a://bucket-too/c"),
        ("abfss://data@acc.dfs.core.windows.net/c", "abfss://more@acc.dfs.core.windows.net/c"),
    ],
)
def test_other_folders_do_not_overlap(one: str, other: str) -> None:
    assert not locate(one).overlaps(locate(other))


def test_below_a_root_is_certain() -> None:
    """A root allows no folder that may be on another file system."""
    root = locate("hdfs://nn:8020/data")
    assert locate("hdfs://NN/data/./x").is_below(root)
    for outside in ("hdfs://nn:9000/data/x", "hdfs:///data/x", "hdfs://nn/data-too", "hdfs://nn/data/../x"):
        assert not locate(outside).is_below(root), outside
