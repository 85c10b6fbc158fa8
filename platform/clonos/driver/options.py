"""The options of one run: the arguments of ``clonos run`` that the driver needs beside the job's specification."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from clonos.driver.resolutions import RequestedResolution
from clonos.jobs.cluster import ClusterSpec
from clonos.log.platform_identity import Platform


@dataclass(frozen=True)
class RunOptions:
    """The options of one run of a job."""

    params: Mapping[str, str] = field(default_factory=dict)  # job parameters; they override the specification's
    conf: Mapping[str, str] = field(default_factory=dict)  # Spark configuration; it overrides the specification's
    # Location (path or URI) of the job's checkpoints, one directory for each query. Empty: the specification's, else
    # `clonos.driver.driver.default_checkpoint`.
    checkpoint: str = ""
    # The subject that the job belongs to, then those whose folders it may open too; empty without a control plane.
    owners: tuple[str, ...] = ()
    platform: Platform | None = None  # the platform of the driver; None: unknown, which follows claims of all platforms
    adopt: bool = False  # whether the first claim may follow one of another platform
    events: Path | None = None  # file to which events are appended as JSON lines
    wait_for_kafka: bool = False  # also at the start; while the job runs the driver waits in any case
    new_lineage: bool = False  # start a new lineage: the output of older lineages no longer counts
    # Idempotency key of `new_lineage`. A retry with the same key continues the lineage that the first request created.
    request_key: str = ""
    stop_timeout_s: float | None = None  # for the epoch in progress, after a stop request; None: as long as it takes
    resolutions: tuple[RequestedResolution, ...] = ()  # the user's decisions about epochs in doubt
    accept_new_code: bool = False  # replay epochs in doubt with the current code, although other code planned them
    # Only finish the epochs in doubt that this code planned, and end; nothing else is read.
    finish_in_doubt: bool = False
    accept_unpublished: bool = False  # as `accept_new_code`, for epochs in doubt without any published output
    cluster: ClusterSpec | None = None  # the Spark cluster; None: the specification's master
