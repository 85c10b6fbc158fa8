"""``clonos status``: the state of all jobs, as the dashboard's banner shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from clonos.cli import show
from clonos.cli.options import Listed
from clonos.cli.remote import Call, remote

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.text import Text

    from clonos.resources.status import Dependencies, JobStatus, Status

_STYLES = {"healthy": "bold green", "failing": "bold red", "not running": "bold"}


@remote(output=Listed)
def status(
    call: Call,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with code 1 if a job, a host or Kafka needs attention.")
    ] = False,
) -> None:
    """Show whether all jobs publish, what needs attention, and what a failure would cost now."""
    state = call.client.health.status()
    call.show(state, _overview)
    if check and state.health == "failing":
        raise typer.Exit(1)


def _overview(state: Status) -> Group:
    from rich.console import Group
    from rich.text import Text

    table = show.table(
        state.jobs,
        {
            "job": lambda job: job.name,
            "state": lambda job: show.state(job.state),
            "health": lambda job: _word(job.health),
            "if it fails now": _forecast,
            "why": lambda job: show.short("; ".join(job.reasons), 120),
        },
    )
    hosts = ", ".join(f"{name} {host}" for name, host in state.hosts.items())
    parts: list[RenderableType] = [Text.assemble(_word(state.health), " ", state.summary)]
    parts += [Text(), table] if state.jobs else []
    return Group(*parts, Text(f"\nHosts: {hosts or 'none'}. {_kafka(state.dependencies)}"))


def _word(health: str) -> Text:
    from rich.text import Text

    return Text(health, _STYLES.get(health, "bold yellow"))


def _forecast(job: JobStatus) -> str | None:
    from clonos.resources.status import BASES

    now = job.forecast
    if now is None:
        return None
    about = f" about {show.duration(1000 * now.estimate_s)}" if now.estimate_s is not None else ""
    if now.basis is not None and now.basis != "job":
        about += f" (from {BASES[now.basis]})"
    if now.warm:
        return f"standby on {now.host}{about}"
    ready = f", READY in about {show.duration(1000 * now.ready_in_s)}" if now.ready_in_s is not None else ""
    return f"cold restart{about}" + (f" (warming up on {now.host}{ready})" if now.host else "")


def _kafka(seen: Dependencies) -> str:
    if seen.silent:
        return f"Kafka does not answer the drivers of {', '.join(seen.silent)}."
    if seen.brokers is None:
        return "Kafka: no driver reports it."
    missing = f", {seen.under_replicated} partitions of causal logs miss a replica" if seen.under_replicated else ""
    return f"Kafka: {seen.brokers} broker{'' if seen.brokers == 1 else 's'}{missing}."
