"""Watches a job: a live view on a terminal, its events elsewhere."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from rich.live import Live
from rich.text import Text

from clonos.cli.events import line_of
from clonos.cli.options import echo, until_interrupted
from clonos.cli.picture import Inspection, fetch, picture
from clonos.cli.show import console, show_json, state
from clonos.client.jobs import ENDED
from clonos.client.responses import error_of_failure
from clonos.errors import ClonosError
from clonos.resources.jobs import DesiredState, Job, JobState

if TYPE_CHECKING:
    from rich.console import Console

    from clonos.client import Client

_POLL_S: Final = 0.5


def watch(client: Client, name: str, *, as_json: bool = False) -> None:
    """Watch a job until it ends or Ctrl-C; if the job has failed, raise its error."""
    job, interrupted = client.jobs.get(name), True
    out = console()
    with until_interrupted():
        live = out.is_terminal and not as_json
        job = _draw(client, job.id, out) if live else _print_events(client, job, as_json=as_json)
        interrupted = False
    if interrupted:
        job = client.jobs.get(job.id)
    if job.state is JobState.FAILED and job.failure is not None:
        raise error_of_failure(job.failure)
    if not as_json:
        out.print(Text.assemble((job.name, "bold"), " is ", state(job.state), "."))


def is_over(job: Job) -> bool:
    """Whether the job has ended and no start is requested."""
    starting = job.desired_state is DesiredState.RUNNING and job.state in (JobState.STOPPED, JobState.CANCELED)
    return job.state in ENDED and not starting


def _draw(client: Client, job: str, out: Console) -> Job:
    inspection = fetch(client, job)
    with Live(picture(inspection), console=out, auto_refresh=False, transient=True) as live:
        while True:
            inspection = _refresh(client, job, inspection)
            live.update(picture(inspection), refresh=True)
            if is_over(inspection.job):
                break
            time.sleep(_POLL_S)
    out.print(picture(inspection))
    return inspection.job


def _refresh(client: Client, job: str, before: Inspection) -> Inspection:
    """The current data, or `before` if the control plane is unavailable for a moment."""
    try:
        return fetch(client, job)
    except ClonosError as error:
        if not error.retry:
            raise
        return before


def _print_events(client: Client, job: Job, *, as_json: bool) -> Job:
    """Print the current state in one line, then each new event."""
    _, newest = client.events.newest(1, job=job.id)
    job = client.jobs.get(job.id)  # after the request above, so that no change is missed
    if not as_json:
        echo(f"{job.name} is {job.state}, generation {job.generation}.")
    if is_over(job):
        return job
    stop = threading.Event()
    for event in client.events.follow(job=job.id, after=newest, stop=stop):
        if as_json:
            show_json(event)
        else:
            echo(line_of(event).plain)
        if event.type.startswith("job."):
            job = client.jobs.get(job.id)
            if is_over(job):
                stop.set()
    return job
