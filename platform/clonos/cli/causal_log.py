"""``clonos causal-log`` and ``verify``: read causal logs, and compare them with the output; they never write."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from clonos.cli import completion
from clonos.cli.options import Listed, Observed, Output, Quiet, Topics, echo, kafka_of_jobs
from clonos.cli.progress import Progress
from clonos.errors import SpecError
from clonos.signals import stop_on_signals

if TYPE_CHECKING:
    from clonos.audit.output_audit import OutputAudit
    from clonos.log.history import Entered, Keep
    from clonos.resources.verification import Verification

app = typer.Typer(no_args_is_help=True, help="Read causal logs.")

KINDS = (
    "claim",
    "assign-lanes",
    "plan",
    "determinants",
    "marker",
    "epoch-parts",
    "epoch-committed",
    "resolution",
    "foreign",
)
_WIDE = 1_000


@app.command("ls")
def list_jobs(output: Listed = Output.TABLE) -> None:
    """List the jobs with a causal log in the configured Kafka, else in the embedded Kafka."""
    import msgspec

    from clonos.cli.record_text import overview_json, overview_table
    from clonos.log.survey import survey
    from clonos.telemetry.printable import console

    overviews = survey(kafka_of_jobs())
    if output is Output.JSON:
        for job in overviews:
            echo(msgspec.json.encode(overview_json(job)))
    elif not overviews:
        echo("No job has a causal log in this Kafka.")
    else:
        # Wide enough for every figure; a narrow terminal wraps lines.
        console(width=_WIDE).print(overview_table(overviews))


@app.command()
def cat(
    job: Annotated[str, typer.Argument(help="Name of the job.", autocompletion=completion.jobs)],
    epoch: Annotated[str | None, typer.Option(help="Show one epoch (12) or a range of epochs (10..12).")] = None,
    query: Annotated[str | None, typer.Option(help="Show records of this query only.")] = None,
    partition: Annotated[list[int] | None, typer.Option(help="Show this log partition only; may be repeated.")] = None,
    kind: Annotated[
        str | None, typer.Option(help=f"Show these kinds only, comma-separated: {', '.join(KINDS)}.")
    ] = None,
    tail: Annotated[int | None, typer.Option(min=1, help="Show the last N records.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow new records until Ctrl-C.")] = False,
    entries: Annotated[
        int, typer.Option(min=0, help="Maximum number of determinants shown per record (text only).")
    ] = 10,
    output: Annotated[Output, typer.Option("--output", "-o", help="Output format.")] = Output.TABLE,
) -> None:
    """Show the records of a job's causal log, in order of time."""
    from clonos.cli.record_text import printer
    from clonos.log.history import History

    keep = record_filter(epoch, query, partition, kind)
    history = History(kafka_of_jobs(), job)
    stop = threading.Event()
    if follow:
        stop_on_signals(stop.set)
    show = printer(job, output, entries)
    try:
        for entered in history.read(keep, last=tail):
            show(entered)
        if follow:
            for entered in history.follow(keep, stop):
                show(entered)
    finally:
        history.close()


def record_filter(epoch: str | None, query: str | None, partitions: Sequence[int] | None, kinds: str | None) -> Keep:
    """Build the filter of ``cat``'s options: a record passes if it matches all of them. None: no such condition.

    `epoch` is one (``12``) or a range (``10..12``), and commas separate `kinds`.
    """
    epochs = _epochs(epoch) if epoch is not None else None
    names = {name.strip() for name in kinds.split(",") if name.strip()} if kinds is not None else None
    if names is not None and (not names or not names <= set(KINDS)):
        raise SpecError(f"--kind {kinds} is unknown.", hint=f"use some of {', '.join(KINDS)}.")

    def keep(entered: Entered) -> bool:
        record = entered.record
        return (
            (not partitions or entered.partition in partitions)
            and (names is None or entered.kind in names)
            and (epochs is None or getattr(record, "epoch", None) in epochs)
            and (query is None or getattr(record, "query", None) == query)
        )

    return keep


def _epochs(text: str) -> range:
    match = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", text)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if first > last:
        raise SpecError(f"--epoch {text} is not an epoch.", hint="use a number (12) or a range (10..12).")
    return range(first, last + 1)


def verify(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Name of the job.", autocompletion=completion.jobs)],
    topic: Topics = None,
    seconds: Observed = 10.0,
    quiet: Quiet = False,
    output: Listed = Output.TABLE,
) -> None:
    """Verify from outside that each epoch of a job was published once: no record is missing, repeated or changed.

    Reads the output with isolation level read_committed in the configured (else the embedded) Kafka, and compares it
    with the markers. Exit code 1 if nothing could be verified, or if the output contradicts the markers.
    """
    import msgspec

    from clonos.audit.output_audit import audit_output

    begun = time.monotonic()
    with Progress(f"audit of {job}", shown=not quiet and output is Output.TABLE) as progress:

        def show(read: int, total: int) -> None:
            left_s = (time.monotonic() - begun) * (total - read) / read if 0 < read < total else None
            progress.show("reading the output", detail=f"{read:,} of {total:,} records", left_s=left_s)

        result = audit_output(kafka_of_jobs(), job, topics=topic or (), seconds=seconds, on_read=show)
    if output is Output.JSON:
        echo(msgspec.json.encode({"job": job, "clean": result.clean, **msgspec.to_builtins(result)}))
    else:
        echo(findings(result))
        echo(f"For the dashboard: clonos job verify {job}")
    if not result.clean:
        raise typer.Exit(1)


def findings(result: OutputAudit | Verification) -> str:
    """Return what an audit of a job's output proved and found, as lines."""
    lines = [
        f"{query}: verified from epoch {first} through epoch {last}."
        for query, (first, last) in sorted(result.verified.items())
    ]
    if result.verified:
        lines.append(f"{result.records} records of these epochs: 0 repeated, 0 missing, 0 changed.")
    lines += [f"Published twice: {lane}." for lane in result.repeated]
    lines += [f"Markers are missing: {epoch}." for epoch in result.incomplete]
    if result.reason:
        lines.append(f"Not verified. {result.reason}")
    return "\n".join(lines)
