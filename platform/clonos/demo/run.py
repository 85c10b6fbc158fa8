"""One run of one job: started, killed at chosen moments while input flows, stopped and judged."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence

from clonos.demo.evidence import Answer, Evidence, Sent
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
_LAST_STRETCH_S = 3.0
_SETTLED_WITHIN_S = 120.0
_QUIET_S = 25.0
_LATEST_KILL_S = 3.0
_HASTY_KILL_S = 0.1
_IN_FLIGHT_S = 0.3
_TICK_S = 0.1


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
        delays: Sequence[float],
        counters: Callable[[], Counters] | None,
        answers: Callable[[], Mapping[str, Answer]],
        screen: Screen,
    ) -> None:
        self._title = title
        self._scene = scene
        self._topics = topics
        self._victim = victim
        self._producer = producer
        self._delays = delays
        self._counters = counters
        self._answers = answers
        self._screen = screen
        self._killed_at: list[float] = []
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
        for number, delay in enumerate(self._delays, start=1):
            self._await_new_output()
            self._linger(delay, f"kill {number} is near")
            died = self._victim.kill()
            self._killed_at.append(time.monotonic())
            self._victim.start()
            self._screen.say(
                f"{self._title}: kill -9 number {number} of {len(self._delays)}, {delay:.2f} s after new output: "
                f"{died} processes died; started again",
                style="red",
            )
        self._await_new_output()
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
            counters=self._counters() if self._counters else None,
        )

    def _await_new_output(self) -> None:
        # What the job published before it was killed is not new. Its successor takes seconds to start.
        self._reader.await_quiet(_IN_FLIGHT_S)
        seen = self._reader.count()
        started = time.monotonic()
        while not self._reader.wait_beyond(seen, _TICK_S):
            self._victim.must_run()
            waited = time.monotonic() - started
            if waited > _FIRST_OUTPUT_WITHIN_S:
                raise ClonosError(f"The job published nothing new in {waited:.0f} s:\n{self._victim.last_words()}")
            self._show("waiting for new output" if self._killed_at else "starting")

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
                kills_planned=len(self._delays),
                silent_s=now - last if last else 0.0,
                counters=self._counters() if self._counters else Counters(),
                per_second=self._reader.per_second(SECONDS_SHOWN),
                kill_ages_s=tuple(now - moment for moment in self._killed_at),
            )
        )
