"""``clonos verify``: compare a job's output with the markers of its causal log."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from clonos.cli import completion
from clonos.cli.options import Listed, Output, echo
from clonos.cli.progress import Progress, Quiet

if TYPE_CHECKING:
    from clonos.audit.output_audit import OutputAudit
    from clonos.resources.verification import Verification


def verify(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Name of the job.", autocompletion=completion.jobs)],
    topic: Annotated[
        list[str] | None,
        typer.Option(help="A topic to which the job publishes; name all of them (default: those in the causal log)."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to observe a running job.")] = 10.0,
    quiet: Quiet = False,
    output: Listed = Output.TABLE,
) -> None:
    """Verify from outside that each epoch of a job was published once: no record is missing, repeated or changed.

    Reads the output with isolation level read_committed in the configured (else the embedded) Kafka, and compares it
    with the markers. Exit code 1 if nothing could be verified, or if the output contradicts the markers.
    """
    import msgspec

    from clonos.audit.output_audit import audit_output
    from clonos.embedded.reachable import reachable_kafka
    from clonos.settings import Settings

    begun = time.monotonic()
    with Progress(f"audit of {job}", shown=not quiet and output is Output.TABLE) as progress:

        def show(read: int, total: int) -> None:
            left_s = (time.monotonic() - begun) * (total - read) / read if 0 < read < total else None
            progress.show("reading the output", detail=f"{read:,} of {total:,} records", left_s=left_s)

        kafka = reachable_kafka(Settings())
        result = audit_output(kafka, job, topics=topic or (), seconds=seconds, on_read=show)
    if output is Output.JSON:
        echo(msgspec.json.encode({"job": job, "clean": result.clean, **msgspec.to_builtins(result)}))
    else:
        print_verification(result)
        echo(f"For the dashboard: clonos job verify {job}")
    if not result.clean:
        raise typer.Exit(1)


def print_verification(result: OutputAudit | Verification) -> None:
    """Print what an audit of a job's output proved and found."""
    for query, (first, last) in sorted(result.verified.items()):
        echo(f"{query}: verified from epoch {first} through epoch {last}.")
    if result.verified:
        echo(f"{result.records} records of these epochs: 0 repeated, 0 missing, 0 changed.")
    for lane in result.repeated:
        echo(f"Published twice: {lane}.")
    for epoch in result.incomplete:
        echo(f"Markers are missing: {epoch}.")
    if result.reason:
        echo(f"Not verified. {result.reason}")
