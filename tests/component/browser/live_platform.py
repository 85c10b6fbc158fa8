"""A local platform with two examples of the repository, after real kills, a savepoint and a verification."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from clonos.client.credentials import Credentials
from clonos.testing.harness import ChildProcess, PlatformJob, Stack, eventually, has_rehearsed

ROOT: Final = Path(__file__).parents[3]
_TIMEOUT_S: Final = 300.0
_KAFKA: Final = "CLONOS_KAFKA__BOOTSTRAP_SERVERS"
# `generate.py` of an example, into its source topic.
_FEED: Final = '"$0" "$1/generate.py" | "$0" -m clonos kafka produce "$2"'


@dataclass(frozen=True)
class Example:
    """A job of ``examples`` with its topics (the source first) and the server that it calls."""

    name: str
    topics: tuple[str, ...]
    server: str
    standbys: int


# One failure is a takeover, the other one a cold restart. Two cores carry no second standby.
EXAMPLES: Final = (
    Example("wordcount", ("lines", "words", "sample", "totals"), "answers.py", standbys=1),
    Example("enrich", ("events", "enriched", "dead"), "devices.py", standbys=0),
)


@dataclass(frozen=True)
class LivePlatform:
    """The running platform.

    Attributes:
        url: Address of the dashboard.
        admin: An admin's token.
        job: Path of the page of a job with a standby.
        recovery: Path of the page of its recovery.
    """

    url: str
    admin: str
    job: str
    recovery: str


@contextmanager
def live_platform(home: Path, say: Callable[[str], None]) -> Iterator[LivePlatform]:
    """Start the platform and the examples, kill both drivers, and yield while both jobs publish.

    Args:
        home: A directory that does not exist yet.
        say: Called before each step, with what is done.
    """
    home.mkdir(parents=True)
    say("starting Kafka, a control plane and two hosts")
    with Stack(home / "platform") as stack, ExitStack() as children:
        jobs = {example.name: PlatformJob(stack.client, example.name) for example in EXAMPLES}
        warm = jobs[EXAMPLES[0].name]
        # One after the other: the takeover does not share the cores with the start of the other job.
        for example, job in zip(EXAMPLES, jobs.values(), strict=True):
            say(f"submitting {example.name}")
            start(stack, example, home, children)
            say(f"waiting for epochs of {job.name}")
            publishing(job, after=-1)
            if example.standbys:
                say(f"waiting until a standby of {job.name} has rehearsed, as in the measurements")
                job.until(lambda job=job: rehearsed(stack, job), "a standby has rehearsed", _TIMEOUT_S)
            say(f"killing the driver of {job.name}")
            job.await_driver().kill()
            job.until(lambda job=job: recovered(job), f"{job.name} has recovered", _TIMEOUT_S)
        say("taking a savepoint")
        stack.cli("savepoint", "create", warm.name, "--name", "before-the-upgrade")
        for example in EXAMPLES:
            say(f"verifying {example.name}")
            verify(stack, example)
        say(f"waiting for the next standby of {warm.name}")
        warm.until(warm.ready_standby, "a standby is READY again", _TIMEOUT_S)
        for job in jobs.values():
            publishing(job, after=newest_epoch(job))
        credentials = Credentials.read(stack.home)
        assert credentials is not None
        assert credentials.token is not None
        page = f"/jobs/{warm.get().id}"
        recovery = f"{page}/recoveries/{warm.recoveries()[0].id}"
        yield LivePlatform(credentials.api, credentials.token, page, recovery)


def start(stack: Stack, example: Example, home: Path, children: ExitStack) -> None:
    """Start the server, the input and the job of an example."""
    folder = ROOT / "examples" / example.name
    answers, log = home / f"{example.name}.jsonl", home / f"{example.name}.log"
    command = [sys.executable, str(folder / example.server), "--port", "0", "--record", str(answers)]
    children.enter_context(ended(ChildProcess(command, {}, log)))
    url = eventually(lambda: log.read_text().strip() if log.exists() else "", f"{example.server} has an address")
    stack.cli("kafka", "create", *example.topics)
    environment = {_KAFKA: stack.kafka.bootstrap_servers}
    feeding = ["bash", "-c", _FEED, sys.executable, str(folder), example.topics[0]]
    children.enter_context(ended(ChildProcess(feeding, environment, home / f"{example.name}-input.log")))
    stack.cli("submit", str(folder), "--standbys", str(example.standbys), "-p", f"server={url}")


@contextmanager
def ended(child: ChildProcess) -> Iterator[None]:
    """Kill a process group at the end."""
    try:
        yield
    finally:
        child.kill()


def rehearsed(stack: Stack, job: PlatformJob) -> bool:
    """Whether a standby of the job is READY and has ended its rehearsals."""
    standby = job.ready_standby()
    return standby is not None and has_rehearsed(stack.home, standby)


def newest_epoch(job: PlatformJob) -> int:
    """The newest epoch that a job has reported; -1: none."""
    return max((query.epoch for query in job.client.jobs.metrics(job.name).queries.values()), default=-1)


def publishing(job: PlatformJob, *, after: int) -> None:
    """Wait for an epoch of a job."""
    job.until(lambda: newest_epoch(job) > after, f"{job.name} finishes an epoch after epoch {after}", _TIMEOUT_S)


def recovered(job: PlatformJob) -> bool:
    """Whether the job's newest recovery has ended with an epoch."""
    newest = next(iter(job.recoveries()), None)
    return newest is not None and newest.outcome == "COMPLETED"


def verify(stack: Stack, example: Example) -> None:
    """Verify a job's output, also if the first attempts prove nothing because the machine is slow."""
    topics = [argument for topic in example.topics[1:] for argument in ("--topic", topic)]

    def verified() -> bool:
        try:
            return bool(stack.cli("job", "verify", example.name, *topics))
        except RuntimeError as error:
            if "Not verified" not in str(error):
                raise
            return False

    eventually(verified, f"the output of {example.name} is verified", timeout_s=_TIMEOUT_S)
