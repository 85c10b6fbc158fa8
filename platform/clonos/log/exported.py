"""Converts records of the causal log to JSON objects with stable keys (see ``docs/log.md``), and back for replays
in tests.
"""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import asdict

from clonos.log.history import Entered
from clonos.log.records import (
    AssignLanes,
    Claim,
    Determinant,
    Determinants,
    EpochCommitted,
    EpochParts,
    LaneAssignment,
    Marker,
    Owner,
    Plan,
    Record,
    Resolution,
)

Exported = dict[str, Any]


def export(job: str, entered: Entered) -> Exported:
    """One record of the causal log as JSON, with its partition and offset."""
    position: Exported = {
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
        return {**position, "foreign": entered.foreign, "start": entered.start.hex()}
    return {**position, **_owner(record.owner), **_fields(record)}


def _owner(owner: Owner) -> Exported:
    return {"lineage": owner.lineage, "generation": owner.generation, "claim_id": owner.claim_id}


def _fields(record: Record) -> Exported:
    match record:
        case Claim():
            marker = record.marker
            return {
                "marker": {**_owner(marker.owner), **_fields(marker)} if marker else None,
                "assignments": _assignments(record.assignments),
                "committed": record.committed,
                "request_key": record.request_key,
                "code": record.code,
                "code_parts": record.code_parts,
                "topic_ids": record.topic_ids,
                "dropped": record.dropped,
                "platform": asdict(record.platform) if record.platform else None,
            }
        case AssignLanes():
            return {"assignments": _assignments(record.assignments)}
        case Plan():
            return {
                "query": record.query,
                "epoch": record.epoch,
                "now": timestamp(record.timestamp_ms),
                # As text: many JSON tools lose bits of a 63-bit number.
                "seed": f"{record.seed:016x}",
                "code": record.code,
                "scans": [[asdict(part) for part in scan] for scan in record.scans],
                "input_slices": [asdict(part) for part in record.input_slices],
                "log_partitions": record.log_partitions,
                "start_offsets": {str(partition): offset for partition, offset in record.start_offsets.items()},
                "offsets": record.offsets,
                "topic_ids": record.topic_ids,
                "static_inputs": record.static_inputs,
                "finished_topics": sorted(record.finished_topics),
                "live": record.live,
                "rescaled_to": record.rescaled_to,
            }
        case Determinants():
            return {
                "query": record.query,
                "epoch": record.epoch,
                "operator": record.operator,
                "task": record.task,
                "determinants": [_determinant(entry) for entry in record.determinants],
            }
        case Marker():
            return {
                "query": record.query,
                "epoch": record.epoch,
                "lane": record.lane,
                "input_slice": asdict(record.input_slice),
                "records": record.records,
                "digest": record.digest.hex(),
                "step": record.step,
                "total": record.total,
                "next_offsets": _by_text(record.next_offsets),
                "time": timestamp(record.time_ms) if record.time_ms else None,
            }
        case EpochParts():
            return {
                "query": record.query,
                "epoch": record.epoch,
                "payloads": [base64.b64encode(payload).decode() for payload in record.payloads],
                "records": record.records,
                "digest": record.digest.hex(),
            }
        case EpochCommitted():
            return {
                "query": record.query,
                "epoch": record.epoch,
                "records": record.records,
                "duration_ms": record.duration_ms,
                "offsets": record.offsets,
            }
        case Resolution():
            return {
                "query": record.query,
                "epoch": record.epoch,
                "action": record.action,
                "code": record.code,
                "topic": record.topic,
            }


def _by_text(offsets: dict[str, dict[int, int]]) -> Exported:
    return {topic: {str(partition): next_ for partition, next_ in parts.items()} for topic, parts in offsets.items()}


def _assignments(assignments: Iterable[LaneAssignment]) -> list[Exported]:
    return [asdict(assignment) for assignment in assignments]


def _determinant(determinant: Determinant) -> Exported:
    return {
        "service": determinant.service,
        "key": determinant.key.hex(),
        "value": answer(determinant),
        "failed": determinant.failed,
        "msgpack": base64.b64encode(determinant.value).decode(),
    }


def answer(determinant: Determinant) -> Any:
    """Return the recorded answer of a service as a JSON value; the error's text if the call failed."""
    if determinant.failed:
        return determinant.value.decode(errors="replace")
    try:
        return msgspec.to_builtins(msgspec.msgpack.decode(determinant.value), str_keys=True)
    except (msgspec.DecodeError, ValueError, TypeError):
        return f"0x{determinant.value.hex()}"


def timestamp(at: int) -> str:
    """Return a time in ms since 1970 as ISO 8601 in UTC."""
    return dt.datetime.fromtimestamp(at / 1000, dt.UTC).isoformat(timespec="milliseconds")


class ExportedEntry(msgspec.Struct):
    """One determinant (recorded answer) in an exported log."""

    key: str  # digest of service and arguments, hexadecimal
    msgpack: str  # the answer as msgpack, in base64
    service: str = ""  # name of the service
    failed: bool = False  # whether the call failed; the answer is then the error's text

    def entry(self) -> Determinant:
        """Convert this determinant back to a record of the causal log."""
        return Determinant(bytes.fromhex(self.key), base64.b64decode(self.msgpack), self.failed, self.service)


class ExportedPlan(msgspec.Struct, tag_field="kind", tag="plan"):
    """The plan of an epoch in an exported log, with the fields that a replay in a test needs."""

    job: str
    lineage: int
    query: str
    epoch: int
    now: dt.datetime  # the epoch's time, which `clonos.now` returns
    seed: str  # seed of the derived services, hexadecimal
    log_partitions: tuple[int, ...]  # log partition of each lane, by lane number
    void: str | None = None  # the reason why the protocol ignores the record; None for a valid one


class ExportedDeterminants(msgspec.Struct, tag_field="kind", tag="determinants"):
    """A record with determinants of one task in an exported log."""

    job: str
    lineage: int
    query: str
    epoch: int
    operator: str
    task: int
    determinants: list[ExportedEntry]
    void: str | None = None  # the reason why the protocol ignores the record; None for a valid one
