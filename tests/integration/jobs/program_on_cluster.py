"""Runs one job on a Spark cluster, for `test_cluster_jobs.py`: its arguments are one JSON object."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from clonos.driver.options import RunOptions
from clonos.driver.process import run_job
from clonos.errors import ClonosError
from clonos.jobs.cluster import ClusterSpec
from clonos.jobs.loading import load_job


def main(text: str) -> int:
    """Run the job; returns its exit code."""
    arguments = json.loads(text)
    options = RunOptions(
        params=arguments["params"],
        checkpoint=arguments["checkpoint"],
        events=Path(arguments["events"]),
        conf=arguments["conf"],
        cluster=ClusterSpec.model_validate(arguments["cluster"]) if arguments["cluster"] else None,
    )
    try:
        run_job(load_job(Path(arguments["job"])), options, advice=False)
    except ClonosError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
