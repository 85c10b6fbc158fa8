"""One run of one job: started, killed at chosen moments while input flows, stopped and judged."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence

from clonos.demo.evidence import Answer, Evidence, Sent
from clonos.demo.gaps import WAYS, Gap, Kill
from clonos.demo.producer import SteadyProducer
from clonos.demo.reader import OutputReader, longest_gap
from clonos.demo.scene import Scene
from clonos.demo.screen import SECONDS_SHOWN, Counters, Outcome, Progress, Screen
from clonos.demo.stage import Topics
from clonos.demo.verdict import Verdict
from clonos.demo.victim import Killable
from clonos.errors import ClonosError
from clonos.settings import KafkaSettings

PARTITIONS = 3
_FIRST_OUTPUT_WITHIN_S = 180.0
_GUARDED_WITHIN_S = 300.0
_SLOWLY = 1.0
_LAST_STRETCH_S = 3.0
_SETTLED_WITHIN_S = 120.0
_QUIET_S = 25.0
_LATEST_KILL_S = 3.0
_HASTY_KILL_S = 0.1
_TICK_S = 0.3


def kill_delays(moments: random.Random, kills: int, *, hasty: bool) -> list[float]:
    """How long after new output each kill comes, in seconds.

    Half of them come anywhere within three seconds, half at once, while an epoch is likely to be in doubt;
    `hasty` asks for the second kind only.
    """
    return [
        moments.uniform(0.0, _HASTY_KILL_S if hasty or moments.random() < 0.5 else _LATEST_KILL_S) for _ in range(kills)
    ]


class Run:
    """One job, its input and output, from the first start to the verdict."""

    def __init__(
        self,
        title: str,
        scene: Scene,
        *,
        kafka: KafkaSettings,
        topics: Topics,
        victim: Killable,
        producer: SteadyProducer,
        kills: Sequence[Kill],
        counters: Callable[[], Counters] | None,
        answers: Callable[[], Mapping[str, Answer]],
        screen: Screen,
    ) -> None:
        self._title = title
        self._scene = scene
        self._topics = topics
        self._victim = victim
        self._producer = producer
        self._kills = kills
        self._counters = counters
        self._answers = answers
        self._screen = screen
        self._killed_at: list[float] = []
        self._gaps: list[Gap] = []
        outputs = [topics.of(name) for name in scene.outputs]
        self._reader = OutputReader(kafka, dict.fromkeys(outputs, PARTITIONS), watched=outputs[0])

    def play(self) -> Outcome:
        """Run the story.

        Raises:
            ClonosError: The job ended by itself, or published nothing in time.
        """
        try:
            return self._play()
        finally:
            self._victim.kill()
            self._producer.abandon()
            self._reader.stop()

    def _play(self) -> Outcome:
        self._reader.start()
        self._victim.start()
        self._producer.start()
        self._await_output(0.0, "starting")
        for number, kill in enumerate(self._kills, start=1):
            self._await_guard(kill.standby)
            self._linger(kill.delay_s, f"kill {number} is near")
            self._kill(number, kill)
        self._linger(_LAST_STRETCH_S, "the last stretch")
        input_ended = time.monotonic()
        sent = self._producer.stop()
        self._settle(sent, input_ended)
        exit_code = self._victim.stop()
        if self._counters is not None and exit_code != 0:
            self._screen.say(f"{self._title}: the job ended with exit code {exit_code} on SIGTERM.", style="yellow")
        if not self._reader.drain():
            self._screen.say(f"{self._title}: a transaction was left open, so the output has no end.", style="red")
        return Outcome(
            title=self._title,
            verdict=self._verdict(sent, self._answers()),
            kills=len(self._killed_at),
            longest_gap_s=longest_gap(self._reader.arrivals(), until=input_ended),
            gaps=tuple(self._gaps),
            counters=self._counters() if self._counters else None,
        )

    def _kill(self, number: int, kill: Kill) -> None:
        """Kill it, and see it go on."""
        killed = self._victim.kill()
        self._killed_at.append(killed.at)
        self._victim.start()
        self._screen.say(
            f"{self._title}: kill -9 number {number} of {len(self._kills)}, {kill.delay_s:.2f} s after new output: "
            f"{killed.processes} processes died" + ("; a standby is READY" if kill.standby else ""),
            style="red",
        )
        arrived = self._await_output(time.time() - (time.monotonic() - killed.at), "waiting for new output")
        gap = Gap("standby" if self._victim.taken_over() else "cold", arrived - killed.at)
        self._gaps.append(gap)
        self._screen.say(
            f"{self._title}: {WAYS[gap.way]}: a reader waited {gap.seconds:.2f} s for the next record", style="cyan"
        )

    def _await_output(self, since: float, phase: str) -> float:
        """Wait for output that is made after a moment, in seconds since 1970; when its first record arrived."""
        started = time.monotonic()
        while (arrived := self._reader.await_written_after(since, _TICK_S)) is None:
            self._victim.must_run()
            waited = time.monotonic() - started
            if waited > _FIRST_OUTPUT_WITHIN_S:
                raise ClonosError(f"The job published nothing new in {waited:.0f} s:\n{self._victim.last_words()}")
            self._show(phase)
        return arrived

    def _await_guard(self, standby: bool) -> None:
        """Wait until a standby is READY, or none waits; and then for new output.

        Raises:
            ClonosError: It is not so in time.
        """
        if self._victim.guard(standby):
            return
        what = "a standby is READY" if standby else "no standby waits"
        self._screen.say(f"{self._title}: waiting until {what}; meanwhile {_SLOWLY:g} record a second comes in")
        deadline = time.monotonic() + _GUARDED_WITHIN_S
        # The standby is warmed at a low priority: a driver that is busy would keep two cores from it.
        with self._producer.slowly(_SLOWLY):
            while not self._victim.guard(standby):
                self._victim.must_run()
                if time.monotonic() > deadline:
                    raise ClonosError(f"Not so in {_GUARDED_WITHIN_S:.0f} s: {what}.\n{self._victim.last_words()}")
                time.sleep(_TICK_S)
                self._show(f"waiting until {what}")
        self._await_output(time.time(), "waiting for new output")

    def _linger(self, seconds: float, phase: str) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _TICK_S))
            self._show(phase)
        # A job that died by itself was not killed, and must not be counted as if it had been.
        self._victim.must_run()

    def _settle(self, sent: list[Sent], input_ended: float) -> None:
        """Wait until everything expected is there, or nothing has moved for a long while."""
        deadline = input_ended + _SETTLED_WITHIN_S
        next_look = 0.0
        while (now := time.monotonic()) < deadline:
            self._victim.must_run()
            if now >= next_look:
                if self._verdict(sent, {}).pending == 0:
                    return
                next_look = time.monotonic() + 1.0
            if now - max(self._reader.last_arrival(), input_ended) > _QUIET_S:
                return
            time.sleep(_TICK_S)
            self._show("input has ended; waiting for the rest")

    def _verdict(self, sent: list[Sent], answers: Mapping[str, Answer]) -> Verdict:
        outputs = {name: self._reader.records(self._topics.of(name)) for name in self._scene.outputs}
        return self._scene.check(Evidence(sent, answers, outputs))

    def _show(self, phase: str) -> None:
        now = time.monotonic()
        last = self._reader.last_arrival()
        self._screen.show(
            Progress(
                title=self._title,
                phase=phase,
                records_in=self._producer.acked,
                records_out={name: self._reader.count(self._topics.of(name)) for name in self._scene.outputs},
                repeats=self._reader.repeats,
                kills=len(self._killed_at),
                kills_planned=len(self._kills),
                silent_s=now - last if last else 0.0,
                counters=self._counters() if self._counters else Counters(),
                per_second=self._reader.per_second(SECONDS_SHOWN),
                kill_ages_s=tuple(now - moment for moment in self._killed_at),
            )
        )
