"""The demo's two stories, on one Kafka and one HTTP server: the Clonos job, then the same on plain Spark."""

from __future__ import annotations

import random
import secrets
import shutil
import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from clonos.demo.evidence import read_answers
from clonos.demo.producer import SteadyProducer, text_lines
from clonos.demo.run import PARTITIONS, Run, kill_delays
from clonos.demo.screen import Counters, Outcome, Screen
from clonos.demo.stage import (
    EventLog,
    Topics,
    answer_server,
    environment_for,
    example_directory,
    kafka_for,
    work_directory,
)
from clonos.demo.victim import Victim
from clonos.errors import ClonosError
from clonos.settings import KafkaSettings, Settings

PLAIN_KILLS = 2


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the user asked for.

    Attributes:
        kills: How often the Clonos job is killed.
        seed: Decides the moments of the kills; None draws one.
        plain: Whether the same story is told with plain Spark afterwards.
        lines_per_second: The pace of the input.
    """

    kills: int = 3
    seed: int | None = None
    plain: bool = True
    lines_per_second: float = 20.0


@dataclass(frozen=True, slots=True)
class Report:
    """What the demo found."""

    seed: int
    job: Outcome
    plain: Outcome | None

    @property
    def clean(self) -> bool:
        """Whether the Clonos job lost, doubled, reordered and contradicted nothing."""
        return self.job.verdict.clean

    def as_json(self) -> dict[str, Any]:
        """The object that ``--json`` prints."""
        counters = self.job.counters or Counters()
        return {
            **_checked(self.job),
            "skipped_lanes": counters.skipped_lanes,
            "determinants_recorded": counters.determinants_recorded,
            "determinants_replayed": counters.determinants_replayed,
            "seed": self.seed,
            "plain": _checked(self.plain) if self.plain else None,
        }


def _checked(outcome: Outcome) -> dict[str, Any]:
    fields = asdict(outcome.verdict)
    del fields["findings"], fields["pending"]
    return {**fields, "longest_gap_s": round(outcome.longest_gap_s, 3), "kills": outcome.kills}


class Demo:
    """Both stories.

    Args:
        settings: Where the demo keeps its files, and the Kafka to use; the embedded one if none is named.
        wishes: What the user asked for.
        screen: What the user sees.
    """

    def __init__(self, settings: Settings, wishes: Wishes, screen: Screen) -> None:
        self._settings = settings
        self._wishes = wishes
        self._screen = screen
        self._seed = secrets.randbelow(1_000_000) if wishes.seed is None else wishes.seed
        self._example = example_directory()
        self._text = text_lines(self._example / "lines.txt")

    def play(self) -> Report:
        """Tell both stories and return what was found.

        Raises:
            ClonosError: Kafka, the HTTP server or the Clonos job did not run; this is no verdict.
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
        answers = directory / "answers.jsonl"
        with ExitStack() as stack:
            self._screen.say("starting Kafka" if not self._settings.kafka.bootstrap_servers else "using your Kafka")
            kafka, prefix = stack.enter_context(kafka_for(self._settings, directory))
            server = stack.enter_context(answer_server(self._example / "answers.py", answers))
            self._screen.say(f"Kafka is at {kafka.bootstrap_servers}, the HTTP server at {server}")
            job = self._clonos_run(directory, kafka, prefix, server).play()
            if self._wishes.plain:
                self._screen.say(
                    "now plain Spark, killed only right after new output, when its epoch is likely to be in doubt "
                    "(about half of the kills before were of that kind)"
                )
            plain = self._plain_outcome(directory, kafka, prefix, server) if self._wishes.plain else None
        return Report(self._seed, job, plain)

    def _plain_outcome(self, directory: Path, kafka: KafkaSettings, prefix: str, server: str) -> Outcome | None:
        try:
            return self._plain_run(directory, kafka, prefix, server).play()
        except ClonosError as error:
            # The verdict on the Clonos job stands without the comparison.
            self._screen.say(f"The plain Spark run gave no verdict: {error}", style="yellow")
            return None

    def _clonos_run(self, directory: Path, kafka: KafkaSettings, prefix: str, server: str) -> Run:
        topics = Topics.named(prefix)
        events = directory / "events.jsonl"
        params = {"server": server, **asdict(topics)}
        specification = self._example / "job.py"
        if prefix:
            # On a Kafka that lives on, the job needs a name of its own: its causal log is named after it.
            specification = directory / "job.yaml"
            shipped = yaml.safe_load((self._example / "job.yaml").read_text(encoding="utf-8"))
            shipped["metadata"]["name"] = f"{prefix}wordcount"
            shipped["spec"]["main"] = str(self._example / "job.py")
            specification.write_text(yaml.safe_dump(shipped), encoding="utf-8")
        command = [sys.executable, "-m", "clonos", "run", str(specification), "--events", str(events)]
        for name, value in params.items():
            command += ["-p", f"{name}={value}"]
        moments = random.Random(self._seed)
        delays = kill_delays(moments, self._wishes.kills, hasty=False)
        return self._run("Clonos", directory, kafka, topics, command, delays=delays, events=EventLog(events))

    def _plain_run(self, directory: Path, kafka: KafkaSettings, prefix: str, server: str) -> Run:
        topics = Topics.named(f"{prefix}plain-")
        checkpoints = directory / "plain-checkpoints"
        command = [sys.executable, "-m", "clonos.demo.plain", "--checkpoints", str(checkpoints), "--server", server]
        for name, value in asdict(topics).items():
            command += [f"--{name}", value]
        moments = random.Random(self._seed + 1)
        delays = kill_delays(moments, min(PLAIN_KILLS, self._wishes.kills), hasty=True)
        return self._run("plain Spark", directory, kafka, topics, command, delays=delays, events=None)

    def _run(
        self,
        title: str,
        directory: Path,
        kafka: KafkaSettings,
        topics: Topics,
        command: list[str],
        *,
        delays: list[float],
        events: EventLog | None,
    ) -> Run:
        topics.create(kafka, PARTITIONS)
        log = directory / f"{title.lower().replace(' ', '-')}.log"
        self._screen.say(f"{title}: starting the job; its output goes to {log}")
        return Run(
            title,
            kafka=kafka,
            topics=topics,
            victim=Victim(command, environment_for(self._settings, kafka, directory / "home"), log),
            producer=SteadyProducer(
                kafka,
                topics.lines,
                self._text,
                per_second=self._wishes.lines_per_second,
                partitions=PARTITIONS,
            ),
            delays=delays,
            events=events,
            answers=partial(read_answers, directory / "answers.jsonl"),
            screen=self._screen,
        )
