"""Holds and requests executors on YARN, for `test_yarn_executors.py`: its argument is a cluster file as JSON."""

from __future__ import annotations

import sys

from clonos.driver.cluster_check import await_executors
from clonos.jobs.cluster import ClusterSpec
from clonos.jobs.spec import ExecutorResources
from clonos.spark.clusters import use_cluster
from clonos.spark.executors import hold_executors, request_executors
from clonos.spark.session import build_session


def main(description: str) -> None:
    """Print each step, and wait for a line of input after it."""
    use = use_cluster(ClusterSpec.model_validate_json(description), ExecutorResources(instances=2, memory_mb=512))
    with build_session("executors", cluster=use) as session:
        await_executors(session.spark, use)
        _step("started")
        hold_executors(session.spark, 1)
        _step("held")
        request_executors(session.spark)
        _step("requested")


def _step(name: str) -> None:
    print(name, flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main(*sys.argv[1:])
