"""A load on replicas: agents whose drivers report epochs, people who submit, start and stop, readers of the events.

All of them do as the real ones do when a request fails: they ask again, another replica too, with the same
`Idempotency-Key`, the same offset, the same `Last-Event-ID`. What they were told is remembered, to be compared with
what there is.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import httpx

from observe import eventually
from scripted import spec
from serving import API
from stored import EventFile

EPOCH_S = 1.0
PAUSE_S = 0.2
SILENT_S = 3.0


@dataclass
class Driver:
    """A run, as its agent knows it."""

    job: str
    file: EventFile = field(default_factory=EventFile)
    offsets: list[int] = field(default_factory=lambda: [0])
    pushed: int = 0
    next_epoch_at: float = 0.0
    report: dict[str, Any] = field(default_factory=dict)
    unwanted: bool = False

    def measure(self) -> None:
        """Know the offsets of new lines."""
        while len(self.offsets) <= len(self.file.lines):
            self.offsets.append(self.offsets[-1] + len(self.file.lines[len(self.offsets) - 1].encode()) + 1)


class Caller:
    """Somebody with a token, who asks another replica when one does not answer."""

    def __init__(self, load: Load, token: str, first: int) -> None:
        self._load = load
        self._first = first
        headers = {"Authorization": f"Bearer {token}"}
        self.clients = [
            httpx.AsyncClient(base_url=url + API, headers=headers, trust_env=False, timeout=8.0) for url in load.urls
        ]

    @property
    def at(self) -> int:
        """The replica that is asked next: one's own, unless it did not answer a moment ago."""
        turns = [(self._first + turn) % len(self.clients) for turn in range(len(self.clients))]
        return min(turns, key=lambda turn: self._load.silent[turn] > time.monotonic())

    async def close(self) -> None:
        for client in self.clients:
            await client.aclose()

    async def ask(self, method: str, path: str, **how: Any) -> httpx.Response | None:
        """The answer; None if there was none: for a while others are asked then, as a load balancer does it."""
        at = self.at
        try:
            answer = await self.clients[at].request(method, path, **how)
        except httpx.TransportError:
            self._load.silent[at] = time.monotonic() + SILENT_S
            await asyncio.sleep(0.05)
            return None
        self._load.note(answer)
        return answer


class Load:
    """The load; in a thread of its own, so that tests may wait.

    Args:
        urls: Of the replicas.
        admin: An admin's token.
        agents: So many hosts.
        jobs: So many that run all the time.
        people: Each starts and stops jobs of their own, and submits some.

    Attributes:
        wrong: What nobody should have been answered.
        away: Times of 503.
        accepted: Times at which something that a person asked for was accepted.
        counted: Times at which epochs were taken.
        asked: What people were told to be accepted: by key the job, the kind, and the operation.
    """

    def __init__(self, urls: Sequence[str], admin: str, *, agents: int = 4, jobs: int = 30, people: int = 3) -> None:
        self.urls, self.admin = list(urls), admin
        self.wrong: list[str] = []
        self.away: list[float] = []
        self.accepted: list[float] = []
        self.counted: list[float] = []
        self.asked: dict[str, tuple[str, str, str]] = {}
        self.told: dict[str, int] = {}
        self.silent = [0.0] * len(self.urls)
        self.resting = False
        self._agents, self._jobs, self._people = agents, [f"steady-{number}" for number in range(jobs)], people
        self._busy: set[int] = set()
        self._claims: dict[str, int] = {}
        self._epochs: dict[str, int] = {}
        self._drivers: list[dict[str, Driver]] = []
        self.readers: list[list[int]] = []
        self._first_seq = 0
        self._artifact = ""
        self._random = random.Random(5)
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")
        self._failure: BaseException | None = None

    def __enter__(self) -> Load:
        self._thread.start()
        try:
            eventually(lambda: self._started.is_set() or not self._thread.is_alive(), "the load begins", timeout_s=120)
            self.check()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)
        assert not self._thread.is_alive()

    def note(self, answer: httpx.Response) -> None:
        """What everybody may be answered at any time: what was asked for, or when to come back."""
        if answer.status_code == 503:
            self.away.append(time.monotonic())
            if not answer.headers.get("Retry-After", "").isdigit() or answer.json()["status"] != 503:
                self.wrong.append(f"{answer.request.method} {answer.request.url}: 503 without Retry-After")
        elif answer.status_code >= 500:
            self.wrong.append(f"{answer.request.method} {answer.request.url}: {answer.status_code} {answer.text}")

    def check(self) -> None:
        """Nobody was answered what should not be."""
        if self._failure is not None:
            raise self._failure
        assert not self.wrong, self.wrong[:5]

    def rest(self) -> None:
        """Wait until nobody asks for anything and all that was to be told is told; see `resume`."""
        self.resting = True
        eventually(lambda: self._failure or (not self._busy and self._all_told()), "all was told", timeout_s=60)
        self.check()

    def resume(self) -> None:
        """Go on."""
        self.resting = False

    def _all_told(self) -> bool:
        living = [one for drivers in self._drivers for one in drivers.values()]
        return all(one.pushed == len(one.file.lines) and not one.unwanted for one in living)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._live())
        except BaseException as error:
            self._failure = error
        finally:
            self._loop.close()

    async def _live(self) -> None:
        # anyio's: httpcore closes what it has dropped from its pool, whatever is cancelled meanwhile, but only if anyio
        # cancels it.
        async with contextlib.AsyncExitStack() as stack, anyio.create_task_group() as group:

            async def until_stopped() -> None:
                await self._stop.wait()
                group.cancel_scope.cancel()

            group.start_soon(until_stopped)

            async def caller(token: str, first: int) -> Caller:
                made = Caller(self, token, first)
                stack.push_async_callback(made.close)
                return made

            admin = await caller(self.admin, 0)
            uploaded = await admin.ask("POST", "/artifacts", files={"file": ("job.py", b"print()")})
            assert uploaded is not None
            self._artifact = uploaded.json()["id"]

            def begin(*works: Callable[[], Awaitable[None]]) -> None:
                for work in works:
                    group.start_soon(work)

            for number in range(self._agents):
                name = f"host-{number}"
                body = {"name": name, "role": "agent", "agent": name}
                made = await admin.ask("POST", "/tokens", json=body)
                assert made is not None
                assert made.status_code == 201, made.text
                begin(*await self._agent(await caller(made.json()["token"], number), name))
            newest = await admin.ask("GET", "/events/history", params={"limit": 200})
            assert newest is not None
            self._first_seq = int(newest.json()["data"][-1]["seq"])
            for number in range(2):
                self.readers.append([])
                begin(partial(self._read, await caller(self.admin, number), self.readers[-1]))
            await asyncio.gather(*(self._submit(admin, name, start=True) for name in self._jobs))
            for number in range(self._people):
                begin(partial(self._person, await caller(self.admin, number), number))
            self._started.set()

    # People

    async def _submit(self, caller: Caller, name: str, *, start: bool) -> None:
        body = {"spec": spec(name), "artifact": self._artifact, "start": start}
        answer = await self._accepted(caller, "/jobs", body)
        self.asked[answer.request.headers["Idempotency-Key"]] = (name, "create", answer.json()["id"])

    async def _person(self, caller: Caller, number: int) -> None:
        self._busy.add(number)
        mine = [f"person-{number}-{one}" for one in range(4)]
        for name in mine:
            await self._submit(caller, name, start=True)
        runs = dict.fromkeys(mine, True)
        count = 0
        while True:
            await asyncio.sleep(self._random.uniform(0.5, 1.5) * PAUSE_S)
            if self.resting:
                self._busy.discard(number)
                continue
            self._busy.add(number)
            count += 1
            if count % 5 == 0:
                await self._submit(caller, f"more-{number}-{count}", start=False)
                continue
            name = self._random.choice(mine)
            kind = "stop" if runs[name] else "start"
            body = {"mode": "graceful", "timeout_s": 20} if kind == "stop" else None
            answer = await self._accepted(caller, f"/jobs/{name}/{kind}", body)
            self.asked[answer.request.headers["Idempotency-Key"]] = (name, kind, answer.json()["id"])
            runs[name] = not runs[name]

    async def _accepted(self, caller: Caller, path: str, body: Any) -> httpx.Response:
        """Ask with one key until it is accepted."""
        headers = {"Idempotency-Key": secrets.token_hex(8)}
        while True:
            answer = await caller.ask("POST", path, json=body, headers=headers)
            if answer is None:
                continue
            if answer.is_success:
                self.accepted.append(time.monotonic())
                return answer
            # Under way: that was we ourselves, and the answer was lost.
            under_way = answer.status_code == 409 and "request-under-way" in answer.text
            assert answer.status_code == 503 or under_way, f"{path}: {answer.status_code} {answer.text}"
            await asyncio.sleep(float(answer.headers.get("Retry-After", 0.5)))

    # Agents

    async def _agent(self, caller: Caller, name: str) -> list[Callable[[], Awaitable[None]]]:
        instance = secrets.token_hex(8)
        body = {"name": name, "instance": instance, "slots": 40, "versions": {"clonos": "0"}}
        registered = await caller.ask("POST", "/agents", json=body)
        assert registered is not None
        assert registered.status_code == 201, registered.text
        id = registered.json()["id"]
        drivers: dict[str, Driver] = {}
        self._drivers.append(drivers)
        return [
            partial(self._beat, caller, f"/agents/{id}", instance, drivers),
            partial(self._work, caller, f"/agents/{id}", drivers),
            partial(self._tell, caller, f"/agents/{id}", instance, drivers),
        ]

    async def _beat(self, caller: Caller, path: str, instance: str, drivers: dict[str, Driver]) -> None:
        said: list[dict[str, Any]] = []
        at = 0.0
        while True:
            runs = [{"run": run, **one.report} for run, one in drivers.items() if one.report]
            # Each second, and at once when a run has changed.
            if runs != said or time.monotonic() - at >= 1.0:
                body = {"instance": instance, "runs": runs}
                answer = await caller.ask("POST", f"{path}/heartbeat", json=body, timeout=1.0)
                if answer is not None and answer.is_success:
                    said, at = [dict(one) for one in runs], time.monotonic()
                else:
                    assert answer is None or answer.status_code == 503, f"{path}: {answer.status_code} {answer.text}"
                    await asyncio.sleep(self._random.uniform(0.5, 1.0))
            await asyncio.sleep(0.05)

    async def _work(self, caller: Caller, path: str, drivers: dict[str, Driver]) -> None:
        revision = 0
        while True:
            asked = {"after": revision, "wait_s": 2.0}
            answer = await caller.ask("GET", f"{path}/work", params=asked, timeout=9.0)
            if answer is None or not answer.is_success:
                await asyncio.sleep(self._random.uniform(0.2, 0.5))
                continue
            work = answer.json()
            revision = work["revision"]
            for order in work["runs"]:
                self._follow(drivers.setdefault(order["run"], Driver(order["name"])), order)
            wanted = {order["run"] for order in work["runs"]}
            for run, one in drivers.items():
                one.unwanted = run not in wanted

    def _follow(self, one: Driver, order: dict[str, Any]) -> None:
        if one.report.get("final"):
            return
        if order["goal"] != "RUN":
            one.report = {**one.report, "state": "STOPPING"}
            if order["goal"] == "GONE":
                self.wrong.append(f"{one.job} is to be killed, as if its host had been lost")
        elif not one.report:
            one.report = {"state": "STARTING", "attempts": order.get("attempt_base", 0) + 1, "pid": 42}

    async def _tell(self, caller: Caller, path: str, instance: str, drivers: dict[str, Driver]) -> None:
        """Drivers work, and what they tell is pushed: all of it before their end is reported."""
        while True:
            for run, one in list(drivers.items()):
                self._act(one)
                if one.pushed < len(one.file.lines):
                    await self._push(caller, f"{path}/runs/{run}/events", instance, one)
                elif one.report.get("state") == "STOPPING":
                    one.report = {**one.report, "state": "EXITED", "driver_state": "STOPPED", "exit_code": 0}
                    one.report["final"] = True
                elif one.unwanted and await self._push(caller, f"{path}/runs/{run}/events", instance, one, last=True):
                    del drivers[run]  # as an agent: only when all that was told is kept
            await asyncio.sleep(0.05)

    def _act(self, one: Driver) -> None:
        state, moment = one.report.get("state"), time.monotonic()
        if state == "STARTING":
            generation = self._claims[one.job] = self._claims.get(one.job, 0) + 1
            one.file.start(generation)
            one.report = {**one.report, "state": "RUNNING", "driver_state": "RUNNING", "generation": generation}
        elif state == "RUNNING" and moment > one.next_epoch_at and not self.resting:
            one.next_epoch_at = moment + EPOCH_S
            number = self._epochs[one.job] = self._epochs.get(one.job, -1) + 1
            one.file.epoch(number)
            self.told[one.job] = self.told.get(one.job, 0) + 1
        one.measure()

    async def _push(self, caller: Caller, path: str, instance: str, one: Driver, *, last: bool = False) -> bool:
        """Whether all was taken."""
        lines = one.file.lines[one.pushed : one.pushed + 50]
        body = {"instance": instance, "offset": one.offsets[one.pushed], "lines": lines, "last": last}
        answer = await caller.ask("POST", path, json=body)
        if answer is not None and answer.is_success:
            self.counted.append(time.monotonic())
            one.pushed = one.offsets.index(answer.json()["offset"])
            return one.pushed == len(one.file.lines)
        assert answer is None or answer.status_code == 503, f"{path}: {answer.status_code} {answer.text}"
        one.pushed = max(0, one.pushed - 3)  # as an agent that was started anew: what is known already comes again
        return False

    # Readers

    async def _read(self, caller: Caller, seen: list[int]) -> None:
        while True:
            last = seen[-1] if seen else self._first_seq
            try:
                async for number in _numbers(caller.clients[at := caller.at], last):
                    seen.append(number)
            except httpx.HTTPError:
                self.silent[at] = time.monotonic() + SILENT_S
            except LookupError as error:
                self.wrong.append(str(error))
            await asyncio.sleep(0.1)

    @property
    def first_seq(self) -> int:
        """Readers saw what came after."""
        return self._first_seq

    def operations_by_job(self) -> dict[str, list[str]]:
        """Ids of the operations that were accepted."""
        found: dict[str, list[str]] = defaultdict(list)
        for name, kind, id in self.asked.values():
            if kind != "create":
                found[name].append(id)
        return found

    def jobs(self) -> dict[str, str]:
        """Ids of the jobs that were accepted, by name."""
        return {name: id for name, kind, id in self.asked.values() if kind == "create"}


async def _numbers(client: httpx.AsyncClient, last: int) -> AsyncIterator[int]:
    """Numbers of the events after one, until the stream ends, or says nothing for longer than it should."""
    timeout = httpx.Timeout(10.0, read=3.0)
    async with client.stream("GET", "/events", headers={"Last-Event-ID": str(last)}, timeout=timeout) as answer:
        if not answer.is_success:
            return
        number = 0
        async for line in answer.aiter_lines():
            name, _, value = line.partition(": ")
            if (name, value) == ("event", "gap"):
                raise LookupError(f"a gap after event {last}")
            if name == "id":
                number = int(value)
            elif not line and number:
                yield number
                number = 0
