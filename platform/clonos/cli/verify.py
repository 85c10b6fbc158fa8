"""``clonos verify``: compare a job's output with the markers of its causal log."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from clonos.cli import completion
from clonos.cli.options import Listed, Observed, Output, Quiet, Topics, echo, kafka_of_jobs
from clonos.cli.progress import Progress

if TYPE_CHECKING:
    from clonos.audit.output_audit import OutputAudit
    from clonos.resources.verification import Verification


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
