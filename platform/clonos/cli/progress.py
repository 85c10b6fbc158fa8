"""Progress of what takes longer than two seconds, on stderr: what a command waits for, and for how long yet.

A terminal shows one line, which is rewritten. Elsewhere a line is written when the phase changes. The remaining time is
an estimate: the median of earlier durations, which are requested once, and only if they are shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from statistics import median
from typing import TYPE_CHECKING, Final, Self

from clonos.cli import show
from clonos.cli.options import echo
from clonos.errors import ClonosError, NoHost, WaitTimeout

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

    from clonos.cli.remote import Call
    from clonos.client import Client
    from clonos.resources.jobs import Job
    from clonos.resources.service import Operation

_AFTER_S: Final = 2.0
_STARTS: Final = ("start", "restart", "resolve", "rollback")  # operations that wait for a host
_NEWEST: Final = 5  # an estimate is the median of this number of durations
_EVENTS: Final = 200
_POLL_S: Final = 0.5
_WORKS_S: Final = 180.0  # for the first epochs of a started job
_FIRST_S: Final = 20.0  # in which a query that never finished an epoch either does, or has no input
_HOST_S: Final = 10.0  # for a free slot, if there are hosts
_PLACED_S: Final = 3.0
_WITHOUT_DRIVER: Final = ("CREATED", "STOPPED", "FAILED", "FINISHED")  # states of jobs


class Progress:
    """The progress of one wait; a context manager that clears its line at the end.

    Args:
        what: What the command waits for, such as ``start of wordcount``.
        shown: Whether anything is shown.
        usual_s: Returns the usual duration in seconds, or None if it is unknown.
        console: Where to write; default stderr.
        clock: Monotonic time in seconds.

    Example:
        >>> with Progress("start of wordcount") as progress:  # doctest: +SKIP
        ...     progress.show("STARTING")
    """

    def __init__(
        self,
        what: str,
        *,
        shown: bool = True,
        usual_s: Callable[[], float | None] = lambda: None,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._shown = shown
        self._ask_usual = usual_s
        self._usual_s: float | None = None
        self._console = console
        self._clock = clock
        self._begun = clock()
        self._phase: str | None = None
        self._live: Live | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def due(self) -> bool:
        """Whether `show` shows anything: the wait takes longer than two seconds."""
        return self._shown and self._clock() - self._begun > _AFTER_S

    def show(self, phase: str, *, detail: str = "", left_s: float | None = None) -> None:
        """Show the current phase and how far it is, if the wait takes longer than two seconds.

        The remaining seconds `left_s` are estimated from the usual duration if they are None.
        """
        if not self.due:
            return
        if self._phase is None:
            self._usual_s = self._ask_usual()
        if self._console is None:
            self._console = show.console(stderr=True)
        text = ", ".join(filter(None, (f"{self._what}: {phase}", detail, self._times(left_s))))
        if self._console.is_terminal:
            self._rewrite(self._console, text)
        elif phase != self._phase:
            self._console.print(text, markup=False)
        self._phase = phase

    def _rewrite(self, console: Console, text: str) -> None:
        from rich.live import Live
        from rich.text import Text

        if self._live is None:
            self._live = Live(
                console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
            )
            self._live.start()
        self._live.update(Text(text, "dim", no_wrap=True, overflow="ellipsis"), refresh=True)

    def _times(self, left_s: float | None) -> str:
        elapsed_s = self._clock() - self._begun
        text = _seconds(elapsed_s)
        if left_s is None and self._usual_s is not None:
            left_s = self._usual_s - elapsed_s
            if left_s < 1:
                return f"{text}, longer than the usual {_seconds(self._usual_s)}"
        return text if left_s is None else f"{text}, about {_seconds(max(left_s, 1))} left"


def completed(call: Call, operation: Operation, name: str) -> Operation:
    """Wait until an operation on `name` is completed, and show the progress.

    Raises:
        NoHost: The operation waits for a host, and none is READY.
        ClonosError: The operation failed.
    """
    client = call.client
    patience = _HostPatience(client)
    with _progress(
        call, f"{operation.kind.replace('-', ' ')} of {name}", lambda: _usual_s(client, operation)
    ) as progress:

        def report(current: Operation) -> None:
            if current.kind in _STARTS and current.job is not None:
                patience.check(client.jobs.get(current.job))
            if progress.due:
                progress.show(_phase(client, current))

        return client.operations.wait(operation, on_poll=report)


def operate(call: Call, job: str, request: Callable[[str], Operation], *, starts: bool = False) -> None:
    """Send a request for an operation on a job, wait for its end, and print the job's state.

    With `starts`, wait until a job without a driver works again.
    """
    client = call.client
    begins = starts and call.wait and client.jobs.get(job).state in _WITHOUT_DRIVER
    operation = request(job)
    if call.wait:
        operation = completed(call, operation, job)
        if begins:
            working(call, job)
    if call.as_json:
        show.show_json(operation)
        return
    current = client.jobs.get(job)
    where = f" on {current.host}" if current.host and current.state in ("RUNNING", "STARTING", "RECOVERING") else ""
    echo(f"{current.name} is {current.state}{where}, generation {current.generation}.")
    if not call.wait:
        echo(f"The operation is {operation.id}.", err=True)
    for name, value in operation.result.items():
        echo(f"{name}: {value}")


def running(call: Call, job: Job) -> Job:
    """Wait until a new job works, and show the progress; returns the job, which another request may have stopped.

    Raises:
        NoHost: No host runs the job.
        ClonosError: As `working`.
    """
    client = call.client
    patience = _HostPatience(client)
    with _progress(call, f"start of {job.name}", lambda: _starts_usually_s(client)) as progress:
        while job.state in ("CREATED", "STARTING", "RECOVERING"):
            time.sleep(_POLL_S)
            job = client.jobs.get(job.id)
            patience.check(job)
            progress.show(f"{job.state} on {job.host}" if job.host else str(job.state))
    _raise_failure(job)
    working(call, job.id)
    return client.jobs.get(job.id)


def _progress(call: Call, what: str, usual_s: Callable[[], float | None] = lambda: None) -> Progress:
    return Progress(what, shown=not call.quiet and not call.as_json, usual_s=usual_s)


def _raise_failure(job: Job) -> None:
    from clonos.client.responses import error_of_failure

    if job.state == "FAILED" and job.failure is not None:
        raise error_of_failure(job.failure)


def placed(client: Client, job: Job) -> None:
    """Wait until a new job has a host, at most three seconds; `NoHost` if none accepts the job."""
    patience = _HostPatience(client)
    until = time.monotonic() + _PLACED_S
    while job.run is None and job.state in ("CREATED", "STARTING") and time.monotonic() < until:
        time.sleep(_POLL_S)
        job = client.jobs.get(job.id)
        patience.check(job)


class _HostPatience:
    """Ends a wait for a job that no host runs: at once if no host is READY, else after ten seconds."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._since: float | None = None

    def check(self, job: Job) -> None:
        """Raise `NoHost` if the job has waited long enough for a host."""
        from clonos.client.responses import error_of_failure

        failure = job.failure if job.state in ("STARTING", "RECOVERING") else None
        if failure is None or failure.error != NoHost.slug:
            self._since = None
            return
        self._since = self._since or time.monotonic()
        patient = failure.retry and time.monotonic() - self._since < _HOST_S
        if patient and any(host.state == "READY" for host in self._client.hosts.list().data):
            return
        kept = f"job {job.name} waits, and starts as soon as a host accepts it."
        raise error_of_failure(failure.model_copy(update={"kept": kept}))


def working(call: Call, job: str) -> None:
    """Wait until each query of a started job has finished an epoch, or has no input: before, it may fail any moment.

    A query that never finished an epoch may have no input, which nobody reports: it has `_FIRST_S` seconds to fail.

    Raises:
        WaitTimeout: A query has input, and has not finished an epoch in time.
        ClonosError: The job failed, with this error.
    """
    client = call.client
    began = time.monotonic()
    current = client.jobs.get(job)
    with _progress(call, f"first epoch of {current.name} (at most {_WORKS_S:.0f} s)") as progress:
        while current.state in ("STARTING", "RUNNING", "RECOVERING"):
            waited_s = time.monotonic() - began
            awaited = _awaited(client, current, may_have_no_input=waited_s > _FIRST_S)
            if current.state == "RUNNING" and not awaited:
                if waited_s > _FIRST_S:
                    echo(f"{current.name} had no input yet, or computes its first epoch.", err=True)
                return
            if waited_s > _WORKS_S:
                cause = f" Its last error: {current.failure.what}" if current.failure is not None else ""
                raise WaitTimeout(
                    f"{current.name} is {current.state}, and has not finished an epoch of "
                    f"{', '.join(awaited)} in {_WORKS_S:.0f} s.{cause}",
                    kept="the job continues.",
                    hint=f"watch it: `clonos job watch {current.name}`. With --no-wait the command does not wait.",
                )
            progress.show(f"{current.state} on {current.host}")
            time.sleep(_POLL_S)
            current = client.jobs.get(job)
    _raise_failure(current)


def _awaited(client: Client, job: Job, *, may_have_no_input: bool) -> list[str]:
    """Return the queries that neither finished an epoch nor reported that they have no input."""
    run = client.jobs.run(job.id, job.run) if job.run is not None else None
    if run is None or run.awaited is None:
        return [] if may_have_no_input else ["each query"]
    if not may_have_no_input:
        return run.awaited
    known = client.jobs.metrics(job.id).queries
    return [name for name in run.awaited if name in known and known[name].epochs]


def _starts_usually_s(client: Client) -> float | None:
    """Estimate the seconds from STARTING to RUNNING, from the newest starts of any jobs."""
    try:
        events, _ = client.events.newest(_EVENTS, types=["job.state"])
    except ClonosError:
        return None
    began: dict[str | None, float] = {}
    took: list[float] = []
    for event in events:
        at = event.at.timestamp()
        if event.data.get("to") == "STARTING":
            began[event.job] = at
        elif event.data.get("to") == "RUNNING" and event.job in began:
            took.append(at - began.pop(event.job))
    return _median(took[-_NEWEST:])


def _usual_s(client: Client, operation: Operation) -> float | None:
    """Estimate the duration of an operation: of the same kind on the same job, else on any job."""
    for job in dict.fromkeys((operation.job, None)):
        try:
            newest = client.operations.list(job=job, state="COMPLETED", limit=200).data
        except ClonosError:
            return None
        took = [
            (done.ended_at - done.created_at).total_seconds()
            for done in newest
            if done.kind == operation.kind and done.ended_at is not None
        ]
        if took:
            return _median(took[:_NEWEST])
    return None


def _phase(client: Client, operation: Operation) -> str:
    """Return the state of the operation's job, or of the operation."""
    if operation.job is not None and operation.kind != "delete":
        try:
            job = client.jobs.get(operation.job)
        except ClonosError:
            pass  # the wait continues, and reports errors that last
        else:
            return f"{job.state} on {job.host}{_step(operation, job)}" if job.host else str(job.state)
    return "in progress"


def _step(operation: Operation, job: Job) -> str:
    """Say what an upgrade waits for while the job runs."""
    if operation.kind != "upgrade" or job.state != "RUNNING":
        return ""
    if job.observed_version != job.version:
        return f", while a standby of version {job.version} warms up"
    return f", waits for the queries of version {job.version}, at most a minute"


def _median(seconds: Iterable[float]) -> float | None:
    values = list(seconds)
    return median(values) if values else None


def _seconds(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
