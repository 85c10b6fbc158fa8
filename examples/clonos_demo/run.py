"""One run of one job in the demo: start, kills at chosen moments while input arrives, stop, and the verdict."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from clonos.deadline import Deadline
from clonos.errors import ClonosError
from clonos.settings import KafkaSettings
from clonos_demo.direct import KillableJob
from clonos_demo.environment import Topics
from clonos_demo.evidence import Answer, Evidence, Sent
from clonos_demo.example import Example
from clonos_demo.gaps import RECOVERY_KINDS, Gap, Kill, RecoveryKind
from clonos_demo.in_doubt import EpochInDoubt
from clonos_demo.latency import Latencies
from clonos_demo.producer import SteadyProducer
from clonos_demo.reader import OutputReader, longest_gap
from clonos_demo.screen import SECONDS_SHOWN, Counters, Outcome, Progress, Screen
from clonos_demo.verdict import Verdict

PARTITIONS = 3
_FIRST_OUTPUT_WITHIN_S = 180.0
_GUARDED_WITHIN_S = 600.0  # a query that cannot be rehearsed takes two minutes for each batch
_SLOWLY = 1.0
_LAST_STRETCH_S = 3.0
_SETTLED_WITHIN_S = 300.0
_QUIET_S = 90.0  # on a busy machine an epoch on cold executors takes half a minute
_LATEST_KILL_S = 3.0
_HASTY_KILL_S = 0.1
_TICK_S = 0.3
# Requests to the control plane take CPU time from the takeover that is being measured.
_REQUESTS_EVERY_S = 1.0


def kill_delays(moments: random.Random, kills: int, *, hasty: bool) -> list[float]:
    """Random delays of the kills, in seconds after new output.

    About half of the delays (with `hasty` all) are at most 0.1 s, when an epoch is likely to be in doubt. The others
    are at most 3 s.
    """
    return [
        moments.uniform(0.0, _HASTY_KILL_S if hasty or moments.random() < 0.5 else _LATEST_KILL_S) for _ in range(kills)
    ]


@dataclass(kw_only=True, eq=False)
class Run:
    """Runs one job with its producer and its reader, kills the job as planned, and computes the verdict."""

    title: str
    example: Example
    kafka: KafkaSettings
    topics: Topics
    job: KillableJob
    log: str  # name of the job in its causal log; empty: the job has no log
    producer: SteadyProducer
    kills: Sequence[Kill]
    counters: Callable[[], Counters] | None  # reads the job's own counters; None: the job has none
    answers: Callable[[], Mapping[str, Answer]]  # reads the answers of the HTTP server, by their ids
    screen: Screen

    def __post_init__(self) -> None:
        self._killed_at: list[float] = []
        self._gaps: list[Gap] = []
        self._silences: list[tuple[float, float]] = []  # begin and end of each gap
        self._newest_counters = Counters()
        self._next_request_at = 0.0
        outputs = [self.topics.of(name) for name in self.example.outputs]
        self._reader = OutputReader(self.kafka, dict.fromkeys(outputs, PARTITIONS), watched=outputs[0])
        self._in_doubt: EpochInDoubt | None = None

    def run(self) -> Outcome:
        """Run the job to its verdict."""
        try:
            return self._run_to_verdict()
        finally:
            self.job.kill()
            self.producer.abandon()
            self._reader.stop()
            if self._in_doubt is not None:
                self._in_doubt.close()

    def _run_to_verdict(self) -> Outcome:
        self._reader.start()
        self.job.start()
        self.producer.start()
        self._await_output(0.0, "starting")
        for number, kill in enumerate(self.kills, start=1):
            self._await_guard(kill.standby)
            self._linger(kill.delay_s, f"kill {number} is near")
            self._kill(number, kill)
        self._linger(_LAST_STRETCH_S, "the last stretch")
        input_ended = time.monotonic()
        sent = self.producer.stop()
        self._settle(sent, input_ended)
        exit_code = self.job.stop()
        if self.counters is not None and exit_code != 0:
            self.screen.say(f"{self.title}: the job ended with exit code {exit_code} on SIGTERM.", style="yellow")
        if not self._reader.drain():
            self.screen.say(f"{self.title}: a transaction was left open, so the output has no end.", style="red")
        return Outcome(
            title=self.title,
            verdict=self._verdict(sent, self.answers()),
            kills=len(self._killed_at),
            longest_gap_s=longest_gap(self._reader.arrivals(), until=input_ended),
            gaps=tuple(self._gaps),
            latencies=Latencies.of(
                sent, self._reader.records(self.topics.of(self.example.outputs[0])), tuple(self._silences)
            ),
            counters=self.counters() if self.counters else None,
        )

    def _kill(self, number: int, kill: Kill) -> None:
        """Kill the job, and wait for its next output."""
        in_doubt = kill.in_doubt and self._freeze_in_doubt()
        killed = self.job.kill(kill.target)
        self._killed_at.append(killed.at)
        self._next_request_at = killed.at + _REQUESTS_EVERY_S
        self.job.start()
        self.screen.say(
            f"{self.title}: kill -9 number {number} of {len(self.kills)}, "
            + ("while an epoch is in doubt: " if in_doubt else f"{kill.delay_s:.2f} s after new output: ")
            + f"{killed.processes} processes of the {kill.target} died"
            + ("; a standby is READY" if kill.standby else ""),
            style="red",
        )
        since = time.time() - (time.monotonic() - killed.at)
        if kill.target == "driver":
            since = self._await_claim(since)
        arrived = self._await_output(since, "waiting for new output")
        kind: RecoveryKind = "standby" if self.job.taken_over() else "cold"
        gap = Gap("executor" if kill.target == "executor" else kind, arrived - killed.at)
        self._gaps.append(gap)
        self._silences.append((killed.at, arrived))
        self.screen.say(
            f"{self.title}: {RECOVERY_KINDS[gap.kind]}: a reader waited {gap.seconds:.2f} s for the next record",
            style="cyan",
        )

    def _freeze_in_doubt(self) -> bool:
        """Freeze the driver while an epoch is in doubt; returns whether that succeeded."""
        driver = self.job.driver()
        if driver is None or not self.log:
            return False
        self._in_doubt = self._in_doubt or EpochInDoubt(self.kafka, self.log, self._reader.await_more)
        return self._in_doubt.freeze(driver)

    def _await_claim(self, killed_at: float) -> float:
        """Wait until the next driver's first output differs from the killed one's; return that moment."""
        deadline = Deadline(_FIRST_OUTPUT_WITHIN_S)
        while True:
            time.sleep(_REQUESTS_EVERY_S)
            if (since := self.job.next_driver_since(killed_at)) is not None:
                return since
            if deadline.passed():
                raise ClonosError(f"No driver claimed the log in {_FIRST_OUTPUT_WITHIN_S:.0f} s:\n{self.job.tail()}")
            self._observe("waiting for the next driver")

    def _await_output(self, since: float, phase: str) -> float:
        """Wait for output written after `since` (seconds since 1970); return the arrival of its first record."""
        started = time.monotonic()
        while (arrived := self._reader.await_written_after(since, _TICK_S)) is None:
            waited = time.monotonic() - started
            if waited > _FIRST_OUTPUT_WITHIN_S:
                raise ClonosError(f"The job published nothing new in {waited:.0f} s:\n{self.job.tail()}")
            self._observe(phase)
        return arrived

    def _await_guard(self, standby: bool) -> None:
        """Wait until a standby is READY and had time to rehearse, or none waits; and then for new output."""
        if self.job.allow_standby(standby):
            return
        what = "a standby is READY" if standby else "no standby waits"
        self.screen.say(f"{self.title}: waiting until {what}; until then {_SLOWLY:g} record a second comes in")
        if standby:
            self.screen.say(
                f"{self.title}: a standby starts Spark and runs the job's queries on no rows, so that a takeover does "
                "not wait for that. It takes half a minute, and longer on a busy machine."
            )
        began = time.monotonic()
        deadline = Deadline(_GUARDED_WITHIN_S)
        # A busy driver would take the cores from the standby that warms up.
        with self.producer.slowly(_SLOWLY):
            while not self.job.allow_standby(standby):
                if deadline.passed():
                    raise ClonosError(f"Not so in {_GUARDED_WITHIN_S:.0f} s: {what}.\n{self.job.tail()}")
                time.sleep(_REQUESTS_EVERY_S)
                self._observe(f"waiting until {what}; {self.job.standby_phase()}")
        seconds = time.monotonic() - began
        phase = f"; {self.job.standby_phase()}" if standby else ""
        self.screen.say(f"{self.title}: {what}, after {seconds:.0f} s{phase}")
        self._await_output(time.time(), "waiting for new output")

    def _linger(self, seconds: float, phase: str) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _TICK_S))
            self._observe(phase)
        # A job that exited by itself must not count as a kill.
        self.job.check_running()

    def _settle(self, sent: list[Sent], input_ended: float) -> None:
        """Wait until all expected records are published, or no progress for a long time."""
        deadline = input_ended + _SETTLED_WITHIN_S
        next_look = 0.0
        while (now := time.monotonic()) < deadline:
            if now >= next_look:
                if self._verdict(sent, {}).pending == 0:
                    return
                next_look = time.monotonic() + 1.0
            if now - max(self._reader.last_arrival(), input_ended) > _QUIET_S:
                return
            time.sleep(_TICK_S)
            self._observe("input has ended; waiting for the rest")

    def _verdict(self, sent: list[Sent], answers: Mapping[str, Answer]) -> Verdict:
        outputs = {name: self._reader.records(self.topics.of(name)) for name in self.example.outputs}
        return self.example.check(Evidence(sent, answers, outputs))

    def _observe(self, phase: str) -> None:
        """Show the progress. Once a second, but not in the second after a kill, check the job and read its counters."""
        now = time.monotonic()
        if now >= self._next_request_at:
            self._next_request_at = now + _REQUESTS_EVERY_S
            self.job.check_running()
            self._newest_counters = self.counters() if self.counters else Counters()
        last = self._reader.last_arrival()
        self.screen.show(
            Progress(
                title=self.title,
                phase=phase,
                records_in=self.producer.acked,
                records_out={name: self._reader.count(self.topics.of(name)) for name in self.example.outputs},
                repeats=self._reader.repeats,
                kills=len(self._killed_at),
                kills_planned=len(self.kills),
                silent_s=now - last if last else 0.0,
                counters=self._newest_counters,
                per_second=self._reader.per_second(SECONDS_SHOWN),
                kill_ages_s=tuple(now - moment for moment in self._killed_at),
            )
        )
