"""Locations of checkpoints in requests: one percent-encoding, and no way out of a folder."""

from __future__ import annotations

import pytest

from clonos_api.admission.spec_checks import check_location


@pytest.mark.parametrize(
    "location",
    [
        "/other/../srv/x",
        "/other/%2e%2e/srv/x",
        "/other%2f..%2fsrv/x",
        "/other/%252e%252e/srv/x",
        "file:///other/%25252e%252e/srv/x",
        "s3a://b/other/%252e%252e/allowed/x",
        "hdfs://nn/other%252f..%252fallowed/x",
        "/other/%255c..%255cx",
        "s3a://b/other/%5c..%5callowed",
    ],
)
def test_a_path_that_leaves_its_folder_is_refused(location: str) -> None:
    assert check_location(location, "spec.checkpoint")


@pytest.mark.parametrize("location", ["/srv/x", "/srv/a%20b", "s3a://b/100%25/x", "hdfs://nn/a/..b", "/srv/%7Euser"])
def test_other_paths_are_allowed(location: str) -> None:
    assert not check_location(location, "spec.checkpoint")
