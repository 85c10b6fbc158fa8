"""A job as it goes on: a picture on a terminal, its events elsewhere."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

import typer
from rich.live import Live
from rich.text import Text

from clonos.cli.events import line_of
from clonos.cli.options import until_interrupted
from clonos.cli.picture import Inspection, look, picture
from clonos.cli.show import console, show_json, state
from clonos.client.jobs import ENDED
from clonos.client.problems import of_failure
from clonos.errors import ClonosError
from clonos.resources.jobs import DesiredState, Job, JobState

if TYPE_CHECKING:
    from rich.console import Console

    from clonos.client import Client

_LOOK_S: Final = 0.5


def watch(client: Client, name: str, *, as_json: bool = False) -> None:
    """Until the job has ended, or Ctrl-C.

    Raises:
        ClonosError: The job failed.
    """
    job = client.jobs.get(name)
    out = console()
    with until_interrupted():
        drawn = out.is_terminal and not as_json
        job = _draw(client, job.id, out) if drawn else _tell(client, job, as_json=as_json)
    if job.state is JobState.FAILED and job.failure is not None:
        raise of_failure(job.failure)
    if not as_json:
        out.print(Text.assemble((job.name, "bold"), " is ", state(job.state), "."))


def is_over(job: Job) -> bool:
    """Whether nothing more comes by itself: it has ended, and nobody asked for a start since."""
    started = job.desired_state is DesiredState.RUNNING and job.state in (JobState.STOPPED, JobState.CANCELED)
    return job.state in ENDED and not started


def _draw(client: Client, job: str, out: Console) -> Job:
    found = look(client, job)
    with Live(picture(found), console=out, auto_refresh=False, transient=True) as live:
        while True:
            found = _looked(client, job, found)
            live.update(picture(found), refresh=True)
            if is_over(found.job):
                break
            time.sleep(_LOOK_S)
    out.print(picture(found))
    return found.job


def _looked(client: Client, job: str, before: Inspection) -> Inspection:
    """A control plane that is away for a moment does not end the watching: the client is patient."""
    try:
        return look(client, job)
    except ClonosError as error:
        if not error.retry:
            raise
        return before


def _tell(client: Client, job: Job, *, as_json: bool) -> Job:
    """Its events from now on; what came before is told by one line."""
    _, newest = client.events.newest(1, job=job.id)
    job = client.jobs.get(job.id)  # after that, so that no change falls in between
    if not as_json:
        typer.echo(f"{job.name} is {job.state}, generation {job.generation}.")
    if is_over(job):
        return job
    stop = threading.Event()
    for event in client.events.follow(job=job.id, after=newest, stop=stop):
        if as_json:
            show_json(event)
        else:
            typer.echo(line_of(event).plain)
        if event.type.startswith("job."):
            job = client.jobs.get(job.id)
            if is_over(job):
                stop.set()
    return job
