"""Formats records and overviews of causal logs as text and JSON."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import msgspec
from rich.table import Table
from rich.text import Text

from clonos.cli.options import Output, echo
from clonos.log.exported import answer, export, timestamp
from clonos.log.history import Entered
from clonos.log.records import (
    AssignLanes,
    Claim,
    Determinants,
    EpochCommitted,
    EpochParts,
    Marker,
    Plan,
    Record,
    Resolution,
    show_scans,
)
from clonos.log.survey import Overview
from clonos.resources.figures import size
from clonos.telemetry.printable import console

_STYLES = {
    "claim": "bold magenta",
    "plan": "cyan",
    "marker": "green",
    "epoch-parts": "green",
    "epoch-committed": "bold green",
    "foreign": "bold red",
}
_SHORT = 8
_TEXT = 120


def printer(job: str, output: Output, entries: int) -> Callable[[Entered], None]:
    """Return a printer of one record of the causal log of `job`; as text, with at most `entries` determinants."""
    if output is Output.JSON:
        return lambda entered: echo(msgspec.json.encode(export(job, entered)))
    out = console(soft_wrap=True)

    def show(entered: Entered) -> None:
        for line in lines_of(entered, entries):
            out.print(line)

    return show


def lines_of(entered: Entered, entries: int) -> Iterator[Text]:
    """One line for a causal log record, and one for each of its first `entries` determinants."""
    record = entered.record
    void = Text(f"  void: {entered.void}", "red") if entered.void else Text()
    style = "dim" if entered.void else _STYLES.get(entered.kind, "")
    position = f"{entered.partition}@{entered.offset}"
    owner = str(record.owner) if record is not None else "-"
    yield Text.assemble(
        (f"{_clock(entered.at)}  {position:<10} {owner:<13} ", "dim"),
        (f"{entered.kind:<15} ", style),
        (_summary(record) if record is not None else f"{entered.foreign} Starts {entered.start.hex()}.", style),
        void,
    )
    if isinstance(record, Determinants):
        for entry in record.determinants[:entries]:
            text = msgspec.json.encode(answer(entry)).decode()
            yield Text.assemble(
                (" " * 39, ""),
                (f"{entry.service or 'service'}({entry.key.hex()[:_SHORT]}) ", "dim"),
                ("failed: " if entry.failed else "= ", "red" if entry.failed else "dim"),
                (text if len(text) <= _TEXT else text[:_TEXT] + "…", style),
            )
        remaining = len(record.determinants) - entries
        if remaining > 0 and entries:
            yield Text(f"{' ' * 39}… and {remaining} more", "dim")


def _clock(at: int) -> str:
    return dt.datetime.fromtimestamp(at / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _summary(record: Record) -> str:
    match record:
        case Claim():
            parts = []
            if record.marker:
                parts.append(f"on the marker of {record.marker.query} epoch {record.marker.epoch}")
            if record.assignments:
                parts.append(f"{len(record.assignments)} lanes")
            if record.committed:
                parts.append(
                    "committed " + ", ".join(f"{query} {epoch}" for query, epoch in sorted(record.committed.items()))
                )
            text = "; ".join(parts) or "on an empty log"
            return f"{text}; by {record.platform.name}" if record.platform else text
        case AssignLanes():
            return ", ".join(f"{lane.sink}/{lane.lane} → {lane.partition}" for lane in record.assignments)
        case Plan() if record.rescaled_to:
            return f"{record.query} epoch {record.epoch}: repartitions its state into {record.rescaled_to} partitions"
        case Plan():
            inputs = f"{show_scans(record.scans)} → {len(record.input_slices)} lanes"
            return f"{record.query} epoch {record.epoch}: {inputs}, code {record.code}"
        case Determinants():
            count = len(record.determinants)
            return f"{record.query} epoch {record.epoch}: {record.operator} task {record.task}, {count} determinants"
        case Marker():
            return (
                f"{record.query} epoch {record.epoch} lane {record.lane}: {record.records} records "
                f"from {record.input_slice}, digest {record.digest.hex()[:_SHORT]}"
            )
        case EpochParts():
            return f"{record.query} epoch {record.epoch}: {len(record.payloads)} parts, {record.records} records"
        case EpochCommitted():
            took = f" in {record.duration_ms} ms" if record.duration_ms else ""
            return f"{record.query} epoch {record.epoch}: {record.records} records{took}"
        case Resolution():
            return f"{record.query} epoch {record.epoch}: {record.action} {record.code}"


def overview_json(job: Overview) -> dict[str, Any]:
    """Return the overview of one job's causal log as a JSON object."""
    owner = job.owner
    return {
        "job": job.job,
        "lineage": owner.lineage if owner else None,
        "generation": owner.generation if owner else None,
        "claim_id": owner.claim_id if owner else None,
        "since": timestamp(job.since) if job.since is not None else None,
        "queries": {name: {**asdict(query), "in_doubt": query.in_doubt} for name, query in sorted(job.queries.items())},
        "partitions": job.partitions,
        "records": job.records,
        "bytes": job.size,
        "determinants_bytes": job.determinants,
        "foreign": job.foreign,
    }


def overview_table(jobs: Sequence[Overview]) -> Table:
    """Return a table of causal logs, with one row per query of each job."""
    table = Table(box=None, pad_edge=False)
    for name in ("job", "owner", "since", "query"):
        table.add_column(name)
    for name in ("lanes", "planned", "committed", "doubt", "bytes", "determinants"):
        table.add_column(name, justify="right")
    for job in jobs:
        owner = f"{job.owner.lineage}.{job.owner.generation}" if job.owner else "-"
        first = (job.job, owner, _clock(job.since)[:-7] if job.since is not None else "-")
        sizes = (size(job.size), size(job.determinants))
        rows = sorted(job.queries.items())
        if not rows:
            table.add_row(*first, "-", "-", "-", "-", "-", *sizes)
        for number, (name, query) in enumerate(rows):
            doubt = Text(str(query.in_doubt), "yellow" if query.in_doubt else "")
            numbers = (str(query.lanes), _epoch(query.planned), _epoch(query.committed), doubt)
            table.add_row(*(("", "", "") if number else first), name, *numbers, *(("", "") if number else sizes))
        if job.foreign:
            table.add_row("", Text(f"{job.foreign} foreign records", "bold red"))
    return table


def _epoch(number: int) -> str:
    return str(number) if number >= 0 else "-"
