"""Runs each example as a Clonos job on one Kafka, kills it, and then runs the same job on plain Spark if there is such
a version.
"""

from __future__ import annotations

import random
import secrets
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from clonos.client import Client
from clonos.errors import ClonosError
from clonos.local import spark_cluster
from clonos.resources.jobs import Recovery
from clonos.settings import KafkaSettings, Settings
from clonos_demo.direct import DirectJob, KillableJob
from clonos_demo.environment import (
    Topics,
    answer_server,
    environment_for,
    event_counters,
    kafka_for,
    own_prefix,
    work_directory,
)
from clonos_demo.evidence import read_answers
from clonos_demo.example import Example
from clonos_demo.gaps import Gap, Kill, Target, side_by_side
from clonos_demo.hosted import HostedJob, control_plane, platform_home
from clonos_demo.producer import SteadyProducer
from clonos_demo.run import PARTITIONS, Run, kill_delays
from clonos_demo.screen import Counters, Outcome, Screen

PLAIN_KILLS = 1
_SUMMED = ("records_in", "expected", "published", "duplicates", "lost", "order_breaks", "contradictions", "kills")
_COUNTED = ("skipped_lanes", "determinants_recorded", "determinants_replayed")


@dataclass(frozen=True, slots=True)
class Options:
    """The user's options of ``clonos demo``."""

    kills: int = 2  # number of kills of Clonos jobs, over all examples
    seed: int | None = None  # seed of the random moments of the kills; None: a random seed
    plain: bool = True  # whether plain Spark runs the same scenario afterwards, for examples that have a plain job
    records_per_second: float | None = None  # input records per second; None: the example's own number
    # Whether Clonos jobs run on a control plane, whose agents restart them; otherwise the demo restarts them.
    hosted: bool = True
    spark_workers: int = 0  # workers of a Spark cluster on which hosted jobs run; 0: they run on a local master
    standby: bool = True  # whether hosted jobs have a standby; each second kill waits until it is READY


@dataclass(frozen=True, slots=True)
class Report:
    """The results of one ``clonos demo``."""

    seed: int
    jobs: Mapping[str, Outcome]  # example → outcome
    plain: Outcome | None = None  # plain Spark's outcome, if it ran

    @property
    def clean(self) -> bool:
        """Whether no Clonos job lost, duplicated, reordered or contradicted a record."""
        return all(outcome.verdict.clean for outcome in self.jobs.values())

    def outcomes(self) -> list[Outcome]:
        """All outcomes, in the order of the runs."""
        return [*self.jobs.values(), *([self.plain] if self.plain else [])]

    @property
    def gaps(self) -> list[Gap]:
        """The time that readers of Clonos jobs waited after each kill."""
        return [gap for outcome in self.jobs.values() for gap in outcome.gaps]

    def as_json(self) -> dict[str, Any]:
        """Return the object that ``clonos demo --json`` prints: totals over all examples, and the results of each
        example.
        """
        examples: dict[str, dict[str, Any]] = {
            name: {
                **_checked(outcome),
                **_counted(outcome),
                "recoveries": [recovery.model_dump(mode="json") for recovery in outcome.recoveries],
            }
            for name, outcome in self.jobs.items()
        }
        return {
            **{field: sum(example[field] for example in examples.values()) for field in (*_SUMMED, *_COUNTED)},
            "longest_gap_s": max((example["longest_gap_s"] for example in examples.values()), default=0.0),
            "gaps": side_by_side(self.gaps),
            "seed": self.seed,
            "examples": examples,
            "plain": _checked(self.plain) if self.plain else None,
        }


def _checked(outcome: Outcome) -> dict[str, Any]:
    fields = asdict(outcome.verdict)
    del fields["findings"], fields["pending"]
    measured = {"longest_gap_s": round(outcome.longest_gap_s, 3), "gaps": side_by_side(outcome.gaps)}
    measured["latency_ms"] = outcome.latencies.as_json()
    return {**fields, **measured, "kills": outcome.kills}


def _counted(outcome: Outcome) -> dict[str, int]:
    counters = asdict(outcome.counters or Counters())
    return {name: counters[name] for name in _COUNTED}


def shares(kills: int, examples: int) -> list[int]:
    """Divide `kills` among the examples as evenly as possible; the first examples get the remainder."""
    return [kills // examples + (number < kills % examples) for number in range(examples)]


class Demo:
    """Runs all examples of one demo, one after the other.

    Args:
        settings: Directory of the demo's files, and the Kafka to use; default the embedded one.
        examples: The examples to run.
        options: Options of the user.
        screen: Displays the progress.
    """

    def __init__(self, settings: Settings, examples: Sequence[Example], options: Options, screen: Screen) -> None:
        self._settings = settings
        self._examples = examples
        self._options = options
        self._screen = screen
        self._seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed

    def run(self) -> Report:
        """Run all examples; return their results."""
        self._screen.say(f"seed {self._seed} (--seed {self._seed} draws the same kill moments again)")
        directory = work_directory(self._settings)
        report: Report | None = None
        try:
            report = self._run_in(directory)
            return report
        finally:
            self._screen.clear()
            if report is not None and report.clean:
                shutil.rmtree(directory, ignore_errors=True)
            else:
                self._screen.say(f"Logs, checkpoints and topics are kept in {directory}", style="yellow")

    def _run_in(self, directory: Path) -> Report:
        jobs: dict[str, Outcome] = {}
        plain: Outcome | None = None
        with ExitStack() as stack:
            client: Client | None = None
            if self._options.hosted:
                workers = self._options.spark_workers
                spark = f", a Spark cluster of {workers} workers" if workers else ""
                self._screen.say("starting what `clonos up` starts: Kafka, the control plane, two hosts" + spark)
                client, servers = stack.enter_context(
                    control_plane(self._settings, directory, spark_workers=self._options.spark_workers)
                )
                kafka = self._settings.kafka.model_copy(update={"bootstrap_servers": servers})
                prefix = own_prefix(self._settings)
                self._screen.say(f"the control plane is at {client.api}")
            else:
                own = not self._settings.kafka.bootstrap_servers
                self._screen.say("starting Kafka" if own else "using your Kafka")
                kafka, prefix = stack.enter_context(kafka_for(self._settings, directory))
            self._screen.say(f"Kafka is at {kafka.bootstrap_servers}")
            kills = shares(self._options.kills, len(self._examples))
            killed = 0
            for example, share in zip(self._examples, kills, strict=True):
                title = "Clonos" if len(self._examples) == 1 else example.name
                with ExampleRun(
                    example, self._settings, self._options, self._seed, self._screen, directory, kafka, prefix, client
                ) as example_run:
                    jobs[example.name] = example_run.clonos(title, share, killed)
                    killed += share
                    if example.plain and self._options.plain:
                        plain = example_run.plain(min(PLAIN_KILLS, share))
        return Report(self._seed, jobs, plain)


@dataclass(eq=False)
class ExampleRun:
    """One example in a demo, with a subdirectory of its own and, if the job calls an HTTP server, that server."""

    example: Example
    settings: Settings  # of Clonos, such as the way to Kafka
    options: Options  # of the demo's command line
    seed: int  # of all random choices, such as the moments of the kills
    screen: Screen
    directory: Path  # the demo's directory
    kafka: KafkaSettings
    prefix: str  # beginning of the names of topics and jobs
    client: Client | None  # client of the control plane; None: the demo starts and restarts the job itself

    def __post_init__(self) -> None:
        self._directory = self.directory / self.example.name
        self._answers = self._directory / "answers.jsonl"
        self._server: dict[str, str] = {}
        self._stack = ExitStack()

    def __enter__(self) -> ExampleRun:
        """Start the HTTP server."""
        self._directory.mkdir()
        self._answers.touch()
        if self.example.server:
            url = self._stack.enter_context(answer_server(self.example.directory / self.example.server, self._answers))
            self.screen.say(f"the HTTP server of {self.example.name} is at {url}")
            self._server = {"server": url}
        return self

    def __exit__(self, *_exc: object) -> None:
        """Stop the HTTP server."""
        self._stack.close()

    def clonos(self, title: str, kills: int, before: int = 0) -> Outcome:
        """Run the example's Clonos job, kill it `kills` times and check its output.

        Args:
            title: Name of the job on the screen.
            kills: Number of kills.
            before: Number of kills in earlier examples; every second kill of the demo waits for a standby.
        """
        topics = Topics(f"{self.prefix}{self.example.name}-", self.example.topics)
        delays = kill_delays(self._random("kills"), kills, hasty=False)
        if self.client is not None:
            params = {**self._server, **topics.params()}
            name = f"{self.prefix}{self.example.name}"
            cluster = spark_cluster.NAME if self.options.spark_workers else None
            plan = planned(
                delays,
                before,
                standby=self.options.standby,
                executors=cluster is not None,
                in_doubt=not self.example.live,
            )
            standbys = int(any(kill.standby for kill in plan))
            with_standby = f" --standbys {standbys}" if standbys else ""
            on_cluster = f" --cluster {cluster}" if cluster else ""
            options = f"--name {name}{with_standby}{on_cluster}"
            self.screen.say(f"{title}: clonos submit examples/{self.example.name} {options}")
            home = platform_home(self.directory)
            job = HostedJob(self.client, self.example.directory, name, params, home, standbys=standbys, cluster=cluster)
            outcome = self._run(title, topics, job, plan, job.counters, log=name).run()
            recoveries = job.recoveries()
            for number, recovery in enumerate(recoveries, start=1):
                self.screen.say(f"{title}: {_describe(number, recovery)}")
            return replace(outcome, recoveries=tuple(recoveries))
        events = self._directory / "events.jsonl"
        specification = self.example.directory / "job.yaml"
        log = f"{self.prefix}{self.example.name}"
        if self.prefix:
            # On a Kafka that lives on, the job needs a name of its own: its causal log is named after it.
            shipped = yaml.safe_load(specification.read_text(encoding="utf-8"))
            shipped["metadata"]["name"] = log
            shipped["spec"]["main"] = str(self.example.directory / "job.py")
            specification = self._directory / "job.yaml"
            specification.write_text(yaml.safe_dump(shipped), encoding="utf-8")
        command = [sys.executable, "-m", "clonos", "run", str(specification), "--events", str(events)]
        for name, value in {**self._server, **topics.params()}.items():
            command += ["-p", f"{name}={value}"]
        process = self._direct(title, command, "job.log")
        plan = planned(delays, before, standby=False, executors=False, in_doubt=not self.example.live)
        return self._run(title, topics, process, plan, partial(event_counters, events), log=log).run()

    def plain(self, kills: int) -> Outcome | None:
        """Run the same job on plain Spark with `kills` kills; None if the run failed, so that it has no verdict."""
        self.screen.say("now plain Spark, killed right after new output, when its epoch is likely to be in doubt")
        topics = Topics(f"{self.prefix}{self.example.name}-plain-", self.example.topics)
        checkpoints = self._directory / "plain-checkpoints"
        command = [sys.executable, "-m", self.example.plain, "--checkpoints", str(checkpoints)]
        for name, value in {**self._server, **topics.params()}.items():
            command += [f"--{name}", value]
        delays = kill_delays(self._random("plain kills"), kills, hasty=True)
        try:
            return self._run(
                "plain Spark", topics, self._direct("plain Spark", command, "plain.log"), cold(delays), None
            ).run()
        except ClonosError as error:
            # The verdict on the Clonos job stands without the comparison.
            self.screen.say(f"The plain Spark run gave no verdict: {error}", style="yellow")
            return None

    def _random(self, what: str) -> random.Random:
        return random.Random(f"{self.seed} {self.example.name} {what}")

    def _direct(self, title: str, command: list[str], log_name: str) -> DirectJob:
        log = self._directory / log_name
        self.screen.say(f"{title}: starting the job; its output goes to {log}")
        return DirectJob(command, environment_for(self.settings, self.kafka, self._directory / "home"), log)

    def _run(
        self,
        title: str,
        topics: Topics,
        job: KillableJob,
        kills: Sequence[Kill],
        counters: Callable[[], Counters] | None,
        *,
        log: str = "",
    ) -> Run:
        topics.create(self.kafka, PARTITIONS)
        return Run(
            title=title,
            example=self.example,
            kafka=self.kafka,
            topics=topics,
            job=job,
            log=log,
            producer=SteadyProducer(
                self.kafka,
                topics.of(self.example.source),
                self.example.messages(self._random("input")),
                per_second=self.options.records_per_second or self.example.per_second,
            ),
            kills=kills,
            counters=counters,
            answers=partial(read_answers, self._answers),
            screen=self.screen,
        )


def cold(delays: Sequence[float]) -> list[Kill]:
    """Return a kill after each of `delays` (seconds after new output), without waiting for a standby."""
    return [Kill(delay) for delay in delays]


def planned(
    delays: Sequence[float], before: int = 0, *, standby: bool, executors: bool, in_doubt: bool = True
) -> list[Kill]:
    """Return a kill after each of `delays` (seconds after new output), in turns.

    In every second round, drivers are killed while an epoch is in doubt.

    Args:
        delays: Seconds after new output.
        before: Number of earlier kills, after which the turns continue.
        standby: The turns include a kill of a driver with a standby that is READY.
        executors: The turns include a kill of an executor.
        in_doubt: The job has epochs that can be in doubt.
    """
    turns: list[tuple[bool, Target]] = [(False, "driver")]
    turns += [(False, "executor")] if executors else []
    turns += [(True, "driver")] if standby else []
    kills = []
    for number, delay in enumerate(delays, start=before):
        round_number, turn = divmod(number, len(turns))
        waits, target = turns[turn]
        doubted = in_doubt and target == "driver" and round_number % 2 == 0
        kills.append(Kill(delay, waits, target, doubted))
    return kills


def _describe(number: int, recovery: Recovery) -> str:
    gap = f"{recovery.downtime_ms / 1000:.1f} s" if recovery.downtime_ms is not None else "an unknown time"
    why = recovery.failure.what if recovery.failure else recovery.cause
    moved = recovery.to_host not in (None, recovery.from_host)
    where = f"{recovery.from_host} -> {recovery.to_host}" if moved else recovery.from_host
    return (
        f"recovery {number} on {where}: {why} "
        f"Generation {recovery.failed_generation} -> {recovery.generation}, all queries back after {gap}."
    )
