"""Records of the log as JSON objects with stable keys, described in ``docs/log.md``; and back, for replays in tests."""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Iterable
from typing import Any

import msgspec

from clonos.log.history import Entered
from clonos.log.records import (
    Allot,
    Allotment,
    Claim,
    Determinants,
    End,
    Entry,
    Held,
    Marker,
    Owner,
    Plan,
    Resolution,
)

Exported = dict[str, Any]


def export(job: str, entered: Entered) -> Exported:
    """One record with its place."""
    placed: Exported = {
        "job": job,
        "partition": entered.partition,
        "offset": entered.offset,
        "at": timestamp(entered.at),
        "bytes": entered.size,
        "kind": entered.kind,
        "void": entered.void or None,
    }
    record = entered.record
    if record is None:
        return {**placed, "foreign": entered.foreign, "start": entered.start.hex()}
    return {**placed, **_owner(record.owner), **_fields(record)}


def _owner(owner: Owner) -> Exported:
    return {"lineage": owner.lineage, "generation": owner.generation, "driver": owner.driver}


def _fields(record: Claim | Allot | Plan | Determinants | Marker | End | Resolution) -> Exported:
    match record:
        case Claim():
            marker = record.marker
            return {
                "marker": {**_owner(marker.owner), **_fields(marker)} if marker else None,
                "allotments": _allotments(record.allotments),
                "ended": record.ended,
                "wish": record.wish,
            }
        case Allot():
            return {"allotments": _allotments(record.allotments)}
        case Plan():
            return {
                "query": record.query,
                "epoch": record.epoch,
                "now": timestamp(record.at),
                # As text: it has 63 bits, more than many JSON tools keep of a number.
                "seed": f"{record.seed:016x}",
                "code": record.code,
                "scans": [[_held(held) for held in scan] for scan in record.scans],
                "held": [_held(held) for held in record.held],
                "partitions": record.partitions,
                "since": {str(partition): offset for partition, offset in record.since.items()},
                "offsets": record.offsets,
            }
        case Determinants():
            return {
                "query": record.query,
                "epoch": record.epoch,
                "operator": record.operator,
                "task": record.task,
                "entries": [_entry(entry) for entry in record.entries],
            }
        case Marker():
            return {
                "query": record.query,
                "epoch": record.epoch,
                "lane": record.lane,
                "held": _held(record.held),
                "records": record.records,
                "digest": record.digest.hex(),
            }
        case End():
            return {"query": record.query, "epoch": record.epoch, "records": record.records}
        case Resolution():
            return {
                "query": record.query,
                "epoch": record.epoch,
                "action": record.action,
                "code": record.code,
            }


def _allotments(allotments: Iterable[Allotment]) -> list[Exported]:
    return [{"sink": one.sink, "lane": one.lane, "partition": one.partition} for one in allotments]


def _held(held: Held) -> Exported:
    return msgspec.structs.asdict(held)


def _entry(entry: Entry) -> Exported:
    return {
        "service": entry.service,
        "key": entry.key.hex(),
        "value": answer(entry),
        "failed": entry.failed,
        "msgpack": base64.b64encode(entry.value).decode(),
    }


def answer(entry: Entry) -> Any:
    """What an entry holds, as JSON can show it: the answer, or the error's text where it failed."""
    if entry.failed:
        return entry.value.decode(errors="replace")
    try:
        return msgspec.to_builtins(msgspec.msgpack.decode(entry.value), str_keys=True)
    except (msgspec.DecodeError, ValueError, TypeError):
        return f"0x{entry.value.hex()}"


def timestamp(at: int) -> str:
    """Milliseconds since the Unix epoch as ISO 8601 in UTC."""
    return dt.datetime.fromtimestamp(at / 1000, dt.UTC).isoformat(timespec="milliseconds")


class ExportedEntry(msgspec.Struct):
    """One determinant in an export."""

    key: str
    msgpack: str
    service: str = ""
    failed: bool = False

    def entry(self) -> Entry:
        """The entry as the log holds it."""
        return Entry(bytes.fromhex(self.key), base64.b64decode(self.msgpack), self.failed, self.service)


class ExportedPlan(msgspec.Struct, tag_field="kind", tag="plan"):
    """A plan in an export, as far as a replay in a test needs it."""

    job: str
    lineage: int
    query: str
    epoch: int
    now: dt.datetime
    seed: str
    partitions: tuple[int, ...]
    void: str | None = None


class ExportedDeterminants(msgspec.Struct, tag_field="kind", tag="determinants"):
    """Determinants in an export."""

    job: str
    lineage: int
    query: str
    epoch: int
    operator: str
    task: int
    entries: list[ExportedEntry]
    void: str | None = None
