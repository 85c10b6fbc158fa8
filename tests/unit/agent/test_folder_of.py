"""Which locations are folders of a host."""

from __future__ import annotations

from pathlib import Path

import pytest

from clonos.agent.users import folder_of


@pytest.mark.parametrize(
    ("location", "folder"),
    [
        ("/srv/jobs/x", Path("/srv/jobs/x")),
        ("file:///srv/jobs/x", Path("/srv/jobs/x")),
        ("hdfs://host:8020/srv/jobs/x", None),
        ("s3a://bucket/srv/jobs/x", None),
    ],
)
def test_a_path_of_hdfs_or_s3_is_not_a_folder_of_the_host(location: str, folder: Path | None) -> None:
    assert folder_of(location) == folder
