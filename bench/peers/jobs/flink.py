"""The benchmarks' job on PyFlink's Table API, exactly-once with a checkpoint every 200 ms, on a local cluster.

A restart continues from the newest complete checkpoint in ``--folder``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd
from pyflink.common import Configuration
from pyflink.table import DataTypes, EnvironmentSettings, TableEnvironment
from pyflink.table.expressions import col
from pyflink.table.udf import udf

CHECKPOINT_MS = 200
TUNED_CHECKPOINT_MS = 50
PARALLELISM = 2


@udf(result_type=DataTypes.BYTES())
def shout(value: bytes) -> bytes:
    """A small computation on each record."""
    return value.upper()


@udf(result_type=DataTypes.BYTES(), func_type="pandas")
def shout_all(values: pd.Series) -> pd.Series:
    """A small computation on each record, in pandas."""
    return values.str.decode("utf-8").str.upper().str.encode("utf-8")


COLUMNS = {"identity": col("v"), "python": shout(col("v")), "udf": shout_all(col("v"))}


def newest_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that is complete."""
    complete = folder.glob("*/chk-*/_metadata")
    return max((path.parent for path in complete), key=lambda path: path.stat().st_mtime, default=None)


def main() -> None:
    """Run until the process is killed."""
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "kind", "input", "output", "folder", "connector"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--tuned", action="store_true")
    arguments = parser.parse_args()
    folder = Path(arguments.folder)
    settings = {
        "pipeline.jars": f"file://{arguments.connector}",
        "parallelism.default": str(PARALLELISM),
        "execution.checkpointing.interval": f"{TUNED_CHECKPOINT_MS if arguments.tuned else CHECKPOINT_MS}ms",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.dir": f"file://{folder}",
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "execution.buffer-timeout.interval": "5ms",
        "python.fn-execution.bundle.time": "20",
    }
    if checkpoint := newest_checkpoint(folder):
        settings["execution.state-recovery.path"] = f"file://{checkpoint}"
    configuration = Configuration()
    for key, value in settings.items():
        configuration.set_string(key, value)
    tables = TableEnvironment.create(
        EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(configuration).build()
    )
    common = f"""
        'connector' = 'kafka', 'properties.bootstrap.servers' = '{arguments.bootstrap}',
        'key.format' = 'raw', 'key.fields' = 'k', 'value.format' = 'raw', 'value.fields-include' = 'EXCEPT_KEY'
    """
    tables.execute_sql(
        f"""CREATE TABLE records (k BYTES, v BYTES) WITH ({common}, 'topic' = '{arguments.input}',
        'scan.startup.mode' = 'earliest-offset', 'properties.group.id' = 'flink-{arguments.output}',
        'properties.fetch.max.wait.ms' = '5')"""
    )
    tables.execute_sql(
        f"""CREATE TABLE published (k BYTES, v BYTES) WITH ({common}, 'topic' = '{arguments.output}',
        'sink.delivery-guarantee' = 'exactly-once', 'sink.transactional-id-prefix' = '{arguments.output}',
        'properties.transaction.timeout.ms' = '60000')"""
    )
    rows = tables.from_path("records").select(col("k"), COLUMNS[arguments.kind].alias("v"))
    rows.execute_insert("published").wait()


if __name__ == "__main__":
    main()
