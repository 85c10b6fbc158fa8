"""The numbers that SQLite gives out to events, log lines and similar rows: none is given out twice."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, text

from clonos_api.store.tables import Base

# Far more numbers than the lost transactions have used.
_SKIPPED: Final = 1_000_000
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def skip_numbers(connection: Connection) -> None:
    """Skip numbers of events, log lines and similar rows, for a database that may lack its newest transactions.

    Readers continue after the number that they read last. They would miss new rows whose numbers they have read
    already, with rows that are lost.
    """
    numbered = [
        {"name": table.name}
        for table in Base.metadata.tables.values()
        if table.dialect_options["sqlite"]["autoincrement"]
    ]
    known = "SELECT 1 FROM sqlite_sequence WHERE name = :name"
    connection.execute(text(f"INSERT INTO sqlite_sequence SELECT :name, 0 WHERE NOT EXISTS ({known})"), numbered)
    connection.execute(text("UPDATE sqlite_sequence SET seq = seq + :skipped"), {"skipped": _SKIPPED})


def skip_lost_numbers(connection: Connection) -> None:
    """Skip numbers if the machine has started since the last call: a failed machine may have lost transactions.

    ``user_version``, an integer in the file that SQLite itself does not use, identifies the machine's last start.
    """
    boot = zlib.crc32(_BOOT_ID.read_bytes()) >> 2 | 1  # not 0, the value in a new file
    last = connection.execute(text("PRAGMA user_version")).scalar_one()
    if last != boot:
        if last:
            skip_numbers(connection)
        connection.execute(text(f"PRAGMA user_version = {boot}"))
