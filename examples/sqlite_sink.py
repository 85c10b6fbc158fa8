"""A sink: each epoch is one transaction of an SQLite database (docs/sinks.md, "Many writers, one commit")."""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame

from clonos.errors import SpecError
from clonos.extend.sink import DeliveryMode, Digest, OutputMode, SinkEpoch
from clonos.settings import KafkaSettings

TABLES = """
CREATE TABLE IF NOT EXISTS output (key TEXT, value TEXT);
CREATE TABLE IF NOT EXISTS epochs
  (log TEXT, lineage INTEGER, query TEXT, epoch INTEGER, digest TEXT, PRIMARY KEY (log, lineage, query, epoch));
"""


class SqliteSink:
    """Inserts the columns key and value into the table `output` of the database `path`, which all tasks share."""

    keeps_marker = True

    def __init__(
        self, name: str, *, path: str, output_mode: OutputMode = "append", delivery: DeliveryMode = "atomic-epoch"
    ) -> None:
        self.name, self.path, self.output_mode, self.delivery = name, Path(path), output_mode, delivery

    def check(self, kafka: KafkaSettings) -> None:
        """Create the tables."""
        with closing(sqlite3.connect(self.path)) as database:
            database.executescript(TABLES)

    def check_frame(self, frame: DataFrame) -> None:
        """Refuse other columns."""
        if frame.columns != ["key", "value"]:
            raise SpecError(f"The SQLite sink has no columns {frame.columns}.", hint="select key and value.")

    def write_part(self, epoch: SinkEpoch, part: int, batches: Iterator[pa.RecordBatch]) -> bytes:
        """Write the rows of a partition to a file; return its name."""
        rows = [list(row.values()) for batch in batches for row in batch.to_pylist()]
        name = f"{self.path.name}-{epoch.identity.owner.claim_id}-{epoch.identity.epoch}-{part}"
        self.path.with_name(name).write_text(json.dumps(rows))
        return name.encode()

    def commit(self, epoch: SinkEpoch, payloads: Sequence[bytes], digest: Digest) -> None:
        """Insert the rows of all files, and the marker, in one transaction."""
        files = [self.path.with_name(name.decode()) for name in payloads]
        with closing(sqlite3.connect(self.path)) as database, database:
            database.execute("INSERT INTO epochs VALUES (?, ?, ?, ?, ?)", (*_key(epoch), str(digest)))
            for file in files:
                database.executemany("INSERT INTO output VALUES (?, ?)", json.loads(file.read_text()))
        for file in files:
            file.unlink()

    def committed(self, epoch: SinkEpoch) -> Digest | None:
        """Read the marker of the epoch."""
        found = "SELECT digest FROM epochs WHERE (log, lineage, query, epoch) = (?, ?, ?, ?)"
        with closing(sqlite3.connect(self.path)) as database:
            row = database.execute(found, _key(epoch)).fetchone()
        return Digest.parse(row[0]) if row else None


def _key(epoch: SinkEpoch) -> tuple[str, int, str, int]:
    identity = epoch.identity
    return identity.log_topic, identity.owner.lineage, identity.query, identity.epoch
