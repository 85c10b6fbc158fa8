"""Records of a causal log as text, and which of them are asked for."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from clonos.cli.log import KINDS
from clonos.cli.options import Output
from clonos.errors import SpecError
from clonos.log.exported import answer, export, timestamp
from clonos.log.history import Entered, Keep
from clonos.log.records import Allot, Claim, Determinants, End, Held, Marker, Plan, Record, Resolution
from clonos.log.survey import Overview

_STYLES = {"claim": "bold magenta", "plan": "cyan", "marker": "green", "end": "bold green", "foreign": "bold red"}
_SHORT = 8
_TEXT = 120


def wanted(epoch: str | None, query: str | None, partitions: Sequence[int] | None, kinds: str | None) -> Keep:
    """The filter that the options make.

    Raises:
        SpecError: One of them cannot be understood.
    """
    epochs = _epochs(epoch) if epoch is not None else None
    named = {name.strip() for name in kinds.split(",") if name.strip()} if kinds is not None else None
    if named is not None and (not named or not named <= set(KINDS)):
        raise SpecError(f"--kind {kinds} is not known.", hint=f"use some of {', '.join(KINDS)}.")

    def keep(entered: Entered) -> bool:
        record = entered.record
        return (
            (not partitions or entered.partition in partitions)
            and (named is None or entered.kind in named)
            and (epochs is None or getattr(record, "epoch", None) in epochs)
            and (query is None or getattr(record, "query", None) == query)
        )

    return keep


def _epochs(text: str) -> range:
    found = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", text)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    if first > last:
        raise SpecError(f"--epoch {text} is not an epoch.", hint="use a number (12) or a range (10..12).")
    return range(first, last + 1)


def printer(job: str, output: Output, entries: int) -> Callable[[Entered], None]:
    """Shows records one by one."""
    if output is Output.JSON:
        return lambda entered: typer.echo(msgspec.json.encode(export(job, entered)))
    console = Console(highlight=False, soft_wrap=True)

    def show(entered: Entered) -> None:
        for line in lines_of(entered, entries):
            console.print(line)

    return show


def lines_of(entered: Entered, entries: int) -> Iterator[Text]:
    """One line for the record, and one for each of its first answers."""
    record = entered.record
    void = Text(f"  void: {entered.void}", "red") if entered.void else Text()
    style = "dim" if entered.void else _STYLES.get(entered.kind, "")
    place = f"{entered.partition}@{entered.offset}"
    owner = str(record.owner) if record is not None else "-"
    yield Text.assemble(
        (f"{_clock(entered.at)}  {place:<10} {owner:<13} ", "dim"),
        (f"{entered.kind:<12} ", style),
        (_told(record) if record is not None else f"{entered.foreign} Starts {entered.start.hex()}.", style),
        void,
    )
    if isinstance(record, Determinants):
        for entry in record.entries[:entries]:
            said = msgspec.json.encode(answer(entry)).decode()
            yield Text.assemble(
                (" " * 39, ""),
                (f"{entry.service or 'service'}({entry.key.hex()[:_SHORT]}) ", "dim"),
                ("failed: " if entry.failed else "= ", "red" if entry.failed else "dim"),
                (said if len(said) <= _TEXT else said[:_TEXT] + "…", style),
            )
        left = len(record.entries) - entries
        if left > 0 and entries:
            yield Text(f"{' ' * 39}… and {left} more", "dim")


def _clock(at: int) -> str:
    return dt.datetime.fromtimestamp(at / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _told(record: Record) -> str:
    match record:
        case Claim():
            parts = []
            if record.marker:
                parts.append(f"on the marker of {record.marker.query} epoch {record.marker.epoch}")
            if record.allotments:
                parts.append(f"{len(record.allotments)} lanes")
            if record.ended:
                parts.append("ended " + ", ".join(f"{query} {epoch}" for query, epoch in sorted(record.ended.items())))
            return "; ".join(parts) or "of an empty log"
        case Allot():
            return ", ".join(f"{one.sink}/{one.lane} → {one.partition}" for one in record.allotments)
        case Plan():
            read = " and ".join(_ranges(scan) for scan in record.scans) or "nothing"
            return f"{record.query} epoch {record.epoch}: {read} → {len(record.held)} lanes, code {record.code}"
        case Determinants():
            count = len(record.entries)
            return f"{record.query} epoch {record.epoch}: {record.operator} task {record.task}, {count} answers"
        case Marker():
            return (
                f"{record.query} epoch {record.epoch} lane {record.lane}: {record.records} records "
                f"from {record.held}, digest {record.digest.hex()[:_SHORT]}"
            )
        case End():
            return f"{record.query} epoch {record.epoch}: {record.records} records"
        case Resolution():
            return f"{record.query} epoch {record.epoch}: {record.action} {record.code}"


def _ranges(scan: Sequence[Held]) -> str:
    return "[" + ", ".join(str(held) for held in scan) + "]"


def overview_json(job: Overview) -> dict[str, Any]:
    """The JSON object of one job."""
    owner = job.owner
    return {
        "job": job.job,
        "lineage": owner.lineage if owner else None,
        "generation": owner.generation if owner else None,
        "driver": owner.driver if owner else None,
        "since": timestamp(job.since) if job.since is not None else None,
        "queries": {name: {**asdict(query), "in_doubt": query.in_doubt} for name, query in sorted(job.queries.items())},
        "partitions": job.partitions,
        "records": job.records,
        "bytes": job.size,
        "determinants_bytes": job.determinants,
        "foreign": job.foreign,
    }


def overview_table(jobs: Sequence[Overview]) -> Table:
    """One row for each query of each job."""
    table = Table(box=None, pad_edge=False)
    for name in ("job", "owner", "since", "query"):
        table.add_column(name)
    for name in ("lanes", "planned", "ended", "doubt", "bytes", "determinants"):
        table.add_column(name, justify="right")
    for job in jobs:
        owner = f"{job.owner.lineage}.{job.owner.generation}" if job.owner else "-"
        first = (job.job, owner, _clock(job.since)[:-7] if job.since is not None else "-")
        sizes = (_bytes(job.size), _bytes(job.determinants))
        rows = sorted(job.queries.items())
        if not rows:
            table.add_row(*first, "-", "-", "-", "-", "-", *sizes)
        for number, (name, query) in enumerate(rows):
            doubt = Text(str(query.in_doubt), "yellow" if query.in_doubt else "")
            numbers = (str(query.lanes), _epoch(query.planned), _epoch(query.ended), doubt)
            table.add_row(*(("", "", "") if number else first), name, *numbers, *(("", "") if number else sizes))
        if job.foreign:
            table.add_row("", Text(f"{job.foreign} foreign records", "bold red"))
    return table


def _epoch(number: int) -> str:
    return str(number) if number >= 0 else "-"


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
