"""The demo's stories on one Kafka: each example as a Clonos job, then, where there is one, its twin on plain Spark."""

from __future__ import annotations

import random
import secrets
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from clonos.client import Client
from clonos.demo.evidence import read_answers
from clonos.demo.gaps import Gap, Kill, side_by_side
from clonos.demo.hosted import HostedJob, control_plane
from clonos.demo.producer import SteadyProducer
from clonos.demo.run import PARTITIONS, Run, kill_delays
from clonos.demo.scene import Scene
from clonos.demo.screen import Counters, Outcome, Screen
from clonos.demo.stage import (
    EventLog,
    Topics,
    answer_server,
    environment_for,
    example_directory,
    kafka_for,
    messages_of,
    own_prefix,
    work_directory,
)
from clonos.demo.victim import Killable, Victim
from clonos.errors import ClonosError
from clonos.resources.jobs import Recovery
from clonos.settings import KafkaSettings, Settings

PLAIN_KILLS = 1
_SUMMED = ("records_in", "expected", "published", "duplicates", "lost", "order_breaks", "contradictions", "kills")
_COUNTED = ("skipped_lanes", "determinants_recorded", "determinants_replayed")


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the user asked for.

    Attributes:
        kills: How often Clonos jobs are killed, over all examples.
        seed: Decides the moments of the kills; None draws one.
        plain: Whether the same story is told with plain Spark afterwards, of examples that have it.
        records_per_second: The pace of the input.
        hosted: Whether Clonos jobs run on a control plane, which starts them again; else the demo does.
        standby: Whether hosted jobs have a standby; each second kill waits until it is READY.
    """

    kills: int = 2
    seed: int | None = None
    plain: bool = True
    records_per_second: float = 20.0
    hosted: bool = True
    standby: bool = True


@dataclass(frozen=True, slots=True)
class Report:
    """What the demo found.

    Attributes:
        jobs: By example.
        plain: Plain Spark's outcome, if that was told.
    """

    seed: int
    jobs: Mapping[str, Outcome]
    plain: Outcome | None = None

    @property
    def clean(self) -> bool:
        """Whether no Clonos job lost, doubled, reordered or contradicted anything."""
        return all(outcome.verdict.clean for outcome in self.jobs.values())

    def outcomes(self) -> list[Outcome]:
        """All of them, in the order of the story."""
        return [*self.jobs.values(), *([self.plain] if self.plain else [])]

    @property
    def gaps(self) -> list[Gap]:
        """How long readers of Clonos jobs waited after each kill."""
        return [gap for outcome in self.jobs.values() for gap in outcome.gaps]

    def as_json(self) -> dict[str, Any]:
        """The object that ``--json`` prints: totals over all examples, and each example by itself."""
        examples = {name: {**_checked(outcome), **_counted(outcome)} for name, outcome in self.jobs.items()}
        return {
            **{field: sum(one[field] for one in examples.values()) for field in (*_SUMMED, *_COUNTED)},
            "longest_gap_s": max((one["longest_gap_s"] for one in examples.values()), default=0.0),
            "gaps": side_by_side(self.gaps),
            "seed": self.seed,
            "examples": examples,
            "plain": _checked(self.plain) if self.plain else None,
        }


def _checked(outcome: Outcome) -> dict[str, Any]:
    fields = asdict(outcome.verdict)
    del fields["findings"], fields["pending"]
    measured = {"longest_gap_s": round(outcome.longest_gap_s, 3), "gaps": side_by_side(outcome.gaps)}
    return {**fields, **measured, "kills": outcome.kills}


def _counted(outcome: Outcome) -> dict[str, int]:
    counters = asdict(outcome.counters or Counters())
    return {name: counters[name] for name in _COUNTED}


def shares(kills: int, examples: int) -> list[int]:
    """`kills` split over so many examples as evenly as can be; the first ones get what is left over."""
    return [kills // examples + (number < kills % examples) for number in range(examples)]


class Demo:
    """All stories.

    Args:
        settings: Where the demo keeps its files, and the Kafka to use; the embedded one if none is named.
        scenes: The examples to play.
        wishes: What the user asked for.
        screen: What the user sees.
    """

    def __init__(self, settings: Settings, scenes: Sequence[Scene], wishes: Wishes, screen: Screen) -> None:
        self._settings = settings
        self._scenes = scenes
        self._wishes = wishes
        self._screen = screen
        self._seed = secrets.randbelow(1_000_000) if wishes.seed is None else wishes.seed

    def play(self) -> Report:
        """Tell the stories and return what was found.

        Raises:
            ClonosError: Kafka, an HTTP server or a Clonos job did not run; this is no verdict.
        """
        self._screen.say(f"seed {self._seed} (--seed {self._seed} draws the same kill moments again)")
        directory = work_directory(self._settings)
        report: Report | None = None
        try:
            report = self._play_in(directory)
            return report
        finally:
            self._screen.clear()
            if report is not None and report.clean:
                shutil.rmtree(directory, ignore_errors=True)
            else:
                self._screen.say(f"Logs, checkpoints and topics are kept in {directory}", style="yellow")

    def _play_in(self, directory: Path) -> Report:
        jobs: dict[str, Outcome] = {}
        plain: Outcome | None = None
        with ExitStack() as stack:
            client: Client | None = None
            if self._wishes.hosted:
                self._screen.say("starting what `clonos up` starts: Kafka, the control plane, two hosts")
                client, servers = stack.enter_context(control_plane(self._settings, directory))
                kafka = self._settings.kafka.model_copy(update={"bootstrap_servers": servers})
                prefix = own_prefix(self._settings)
                self._screen.say(f"the control plane is at {client.api}")
            else:
                own = not self._settings.kafka.bootstrap_servers
                self._screen.say("starting Kafka" if own else "using your Kafka")
                kafka, prefix = stack.enter_context(kafka_for(self._settings, directory))
            self._screen.say(f"Kafka is at {kafka.bootstrap_servers}")
            kills = shares(self._wishes.kills, len(self._scenes))
            killed = 0
            for scene, share in zip(self._scenes, kills, strict=True):
                title = "Clonos" if len(self._scenes) == 1 else scene.name
                with Telling(
                    scene, self._settings, self._wishes, self._seed, self._screen, directory, kafka, prefix, client
                ) as telling:
                    jobs[scene.name] = telling.clonos(title, share, killed)
                    killed += share
                    if scene.plain and self._wishes.plain:
                        plain = telling.plain(min(PLAIN_KILLS, share))
        return Report(self._seed, jobs, plain)


class Telling:
    """One example on the stage: its HTTP server, if it has one, and a folder of its own."""

    def __init__(
        self,
        scene: Scene,
        settings: Settings,
        wishes: Wishes,
        seed: int,
        screen: Screen,
        directory: Path,
        kafka: KafkaSettings,
        prefix: str,
        client: Client | None,
    ) -> None:
        self._client = client
        self._scene = scene
        self._settings = settings
        self._wishes = wishes
        self._seed = seed
        self._screen = screen
        self._kafka = kafka
        self._prefix = prefix
        self._example = example_directory(scene.name)
        self._directory = directory / scene.name
        self._answers = self._directory / "answers.jsonl"
        self._server: dict[str, str] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Telling:
        """Start the HTTP server."""
        self._directory.mkdir()
        self._answers.touch()
        if self._scene.server:
            url = self._stack.enter_context(answer_server(self._example / self._scene.server, self._answers))
            self._screen.say(f"the HTTP server of {self._scene.name} is at {url}")
            self._server = {"server": url}
        return self

    def __exit__(self, *_exc: object) -> None:
        """Stop the HTTP server."""
        self._stack.close()

    def clonos(self, title: str, kills: int, before: int = 0) -> Outcome:
        """Play the job.

        Args:
            title: What it is called on the screen.
            kills: How often it is killed.
            before: How many kills there were in other examples: each second one waits for a standby.

        Raises:
            ClonosError: It did not run.
        """
        topics = Topics(f"{self._prefix}{self._scene.name}-", self._scene.topics)
        delays = kill_delays(self._random("kills"), kills, hasty=False)
        if self._client is not None:
            params = {**self._server, **topics.params()}
            name = f"{self._prefix}{self._scene.name}"
            plan = alternating(delays, before) if self._wishes.standby else cold(delays)
            standbys = int(any(kill.standby for kill in plan))
            with_standby = f" --standbys {standbys}" if standbys else ""
            self._screen.say(f"{title}: clonos submit examples/{self._scene.name} --name {name}{with_standby}")
            job = HostedJob(self._client, self._example, name, params, standbys=standbys)
            outcome = self._run(title, topics, job, plan, job.counters).play()
            for number, recovery in enumerate(job.recoveries(), start=1):
                self._screen.say(f"{title}: {_told(number, recovery)}")
            return outcome
        events = self._directory / "events.jsonl"
        specification = self._example / "job.yaml"
        if self._prefix:
            # On a Kafka that lives on, the job needs a name of its own: its causal log is named after it.
            shipped = yaml.safe_load(specification.read_text(encoding="utf-8"))
            shipped["metadata"]["name"] = f"{self._prefix}{self._scene.name}"
            shipped["spec"]["main"] = str(self._example / "job.py")
            specification = self._directory / "job.yaml"
            specification.write_text(yaml.safe_dump(shipped), encoding="utf-8")
        command = [sys.executable, "-m", "clonos", "run", str(specification), "--events", str(events)]
        for name, value in {**self._server, **topics.params()}.items():
            command += ["-p", f"{name}={value}"]
        return self._run(
            title, topics, self._victim(title, command, "job.log"), cold(delays), EventLog(events).counters
        ).play()

    def plain(self, kills: int) -> Outcome | None:
        """Play the same on plain Spark; None if that gave no verdict."""
        self._screen.say(
            "now plain Spark, killed only right after new output, when its epoch is likely to be in doubt "
            "(about half of the kills before were of that kind)"
        )
        topics = Topics(f"{self._prefix}{self._scene.name}-plain-", self._scene.topics)
        checkpoints = self._directory / "plain-checkpoints"
        command = [sys.executable, "-m", self._scene.plain, "--checkpoints", str(checkpoints)]
        for name, value in {**self._server, **topics.params()}.items():
            command += [f"--{name}", value]
        delays = kill_delays(self._random("plain kills"), kills, hasty=True)
        try:
            return self._run(
                "plain Spark", topics, self._victim("plain Spark", command, "plain.log"), cold(delays), None
            ).play()
        except ClonosError as error:
            # The verdict on the Clonos job stands without the comparison.
            self._screen.say(f"The plain Spark run gave no verdict: {error}", style="yellow")
            return None

    def _random(self, what: str) -> random.Random:
        return random.Random(f"{self._seed} {self._scene.name} {what}")

    def _victim(self, title: str, command: list[str], log_name: str) -> Victim:
        log = self._directory / log_name
        self._screen.say(f"{title}: starting the job; its output goes to {log}")
        return Victim(command, environment_for(self._settings, self._kafka, self._directory / "home"), log)

    def _run(
        self,
        title: str,
        topics: Topics,
        victim: Killable,
        kills: Sequence[Kill],
        counters: Callable[[], Counters] | None,
    ) -> Run:
        topics.create(self._kafka, PARTITIONS)
        return Run(
            title,
            self._scene,
            kafka=self._kafka,
            topics=topics,
            victim=victim,
            producer=SteadyProducer(
                self._kafka,
                topics.of(self._scene.source),
                messages_of(self._example, self._random("input")),
                per_second=self._wishes.records_per_second,
            ),
            kills=kills,
            counters=counters,
            answers=partial(read_answers, self._answers),
            screen=self._screen,
        )


def cold(delays: Sequence[float]) -> list[Kill]:
    """Kills that wait for no standby."""
    return [Kill(delay) for delay in delays]


def alternating(delays: Sequence[float], before: int = 0) -> list[Kill]:
    """The first kill comes while the job has no standby, the second once one is READY, and so on in turns."""
    return [Kill(delay, standby=number % 2 == 1) for number, delay in enumerate(delays, start=before)]


def _told(number: int, recovery: Recovery) -> str:
    gap = f"{recovery.gap_ms / 1000:.1f} s" if recovery.gap_ms is not None else "unknown"
    why = recovery.failure.what if recovery.failure else recovery.cause
    moved = recovery.to_agent not in (None, recovery.from_agent)
    where = f"{recovery.from_agent} -> {recovery.to_agent}" if moved else recovery.from_agent
    return (
        f"recovery {number} on {where}: {why} "
        f"Generation {recovery.failed_generation} -> {recovery.generation}, {gap} without output."
    )
