"""A load on replicas: agents whose drivers report epochs, people who submit, start and stop, readers of the events.

Like real clients, they repeat a failed request, also on another replica, with the same `Idempotency-Key`, offset or
`Last-Event-ID`. The load records the accepted requests, so that a test can compare them with the stored rows.
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
from functools import partial
from typing import Any

import anyio
import httpx

from clonos.testing.harness import eventually
from support.agents import FakeAgent, FakeDriver
from support.scripted import spec
from support.serving import API

EPOCH_S = 1.0
PAUSE_S = 0.2
SILENT_S = 3.0


class Caller:
    """A client with a token; it uses another replica when a request gets no response."""

    def __init__(self, load: Load, token: str, first: int) -> None:
        self._load = load
        self._first = first
        headers = {"Authorization": f"Bearer {token}"}
        self.clients = [
            httpx.AsyncClient(base_url=url + API, headers=headers, trust_env=False, verify=False, timeout=8.0)
            for url in load.urls
        ]

    @property
    def at(self) -> int:
        """The replica for the next request: the caller's first replica, unless it failed within `SILENT_S`."""
        turns = [(self._first + turn) % len(self.clients) for turn in range(len(self.clients))]
        return min(turns, key=lambda turn: self._load.silent[turn] > time.monotonic())

    async def close(self) -> None:
        for client in self.clients:
            await client.aclose()

    async def ask(self, method: str, path: str, **how: Any) -> httpx.Response | None:
        """Returns the response, or None. Without a response, requests go to other replicas for `SILENT_S`."""
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
    """The load; it runs in its own thread, so that tests can wait.

    Args:
        urls: URLs of the replicas.
        admin: An admin's token.
        agents: Number of hosts.
        jobs: Number of jobs that run for the whole test.
        people: Number of people. Each starts and stops four jobs, and submits more.

    Attributes:
        wrong: Descriptions of wrong responses.
        away: Times of 503.
        accepted: Times of accepted requests of people.
        counted: Times of accepted pushes.
        claims: Generations of causal logs.
        asked: Accepted requests: idempotency key → job name, kind, id in the response.
        reported: Job → number of epochs that its drivers reported.
    """

    def __init__(self, urls: Sequence[str], admin: str, *, agents: int = 4, jobs: int = 30, people: int = 3) -> None:
        self.urls, self.admin = list(urls), admin
        self.wrong: list[str] = []
        self.away: list[float] = []
        self.accepted: list[float] = []
        self.counted: list[float] = []
        self.asked: dict[str, tuple[str, str, str]] = {}
        self.reported: dict[str, int] = {}
        self.silent = [0.0] * len(self.urls)
        self.resting = False
        self._hosts, self._jobs, self._people = agents, [f"steady-{number}" for number in range(jobs)], people
        self._busy: set[int] = set()
        self.claims: dict[str, int] = {}
        self._agents: list[_Agent] = []
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
        self._thread.join(60)
        assert not self._thread.is_alive()

    def note(self, answer: httpx.Response) -> None:
        """Records a 503 response, and any other server error as wrong."""
        if answer.status_code == 503:
            self.away.append(time.monotonic())
            if not answer.headers.get("Retry-After", "").isdigit() or answer.json()["status"] != 503:
                self.wrong.append(f"{answer.request.method} {answer.request.url}: 503 without Retry-After")
        elif answer.status_code >= 500:
            self.wrong.append(f"{answer.request.method} {answer.request.url}: {answer.status_code} {answer.text}")

    def check(self) -> None:
        """Raises the failure of the load, or of its first wrong responses."""
        if self._failure is not None:
            raise self._failure
        assert not self.wrong, self.wrong[:5]

    def rest(self) -> None:
        """Waits until no person has a request and every driver has pushed its events; see `resume`."""
        self.resting = True
        eventually(
            lambda: self._failure or (not self._busy and self._all_pushed()), "all events are pushed", timeout_s=60
        )
        self.check()

    def resume(self) -> None:
        """Ends a `rest`."""
        self.resting = False

    def _all_pushed(self) -> bool:
        living = [driver for agent in self._agents for driver in agent.drivers.values()]
        return all(driver.pushed_lines == len(driver.file.lines) and not driver.unwanted for driver in living)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._live())
        except BaseException as error:
            self._failure = error
        finally:
            self._loop.close()

    async def _live(self) -> None:
        # anyio must cancel the tasks: only then does httpcore close connections that it dropped from its pool.
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

            for number in range(self._hosts):
                name = f"host-{number}"
                body = {"name": name, "role": "agent", "host": name}
                made = await admin.ask("POST", "/tokens", json=body)
                assert made is not None
                assert made.status_code == 201, made.text
                agent = _Agent(self, await caller(made.json()["token"], number), name)
                await agent.register()
                self._agents.append(agent)
                begin(agent.live)
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
        names = [f"person-{number}-{index}" for index in range(4)]
        for name in names:
            await self._submit(caller, name, start=True)
        runs = dict.fromkeys(names, True)
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
            name = self._random.choice(names)
            kind = "stop" if runs[name] else "start"
            body = {"mode": "graceful", "timeout_s": 20} if kind == "stop" else None
            answer = await self._accepted(caller, f"/jobs/{name}/{kind}", body)
            self.asked[answer.request.headers["Idempotency-Key"]] = (name, kind, answer.json()["id"])
            runs[name] = not runs[name]

    async def _accepted(self, caller: Caller, path: str, body: Any) -> httpx.Response:
        """Repeats a request with one key until it is accepted."""
        headers = {"Idempotency-Key": secrets.token_hex(8)}
        while True:
            answer = await caller.ask("POST", path, json=body, headers=headers)
            if answer is None:
                continue
            if answer.is_success:
                self.accepted.append(time.monotonic())
                return answer
            # In progress: this caller's previous attempt, whose response was lost.
            in_progress = answer.status_code == 409 and "request-in-progress" in answer.text
            assert answer.status_code == 503 or in_progress, f"{path}: {answer.status_code} {answer.text}"
            await asyncio.sleep(float(answer.headers.get("Retry-After", 0.5)))

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
        """Readers receive the events after this `seq`."""
        return self._first_seq

    def operations_by_job(self) -> dict[str, list[str]]:
        """Ids of the operations that were accepted."""
        ids: dict[str, list[str]] = defaultdict(list)
        for name, kind, id in self.asked.values():
            if kind != "create":
                ids[name].append(id)
        return ids

    def jobs(self) -> dict[str, str]:
        """Ids of the jobs that were accepted, by name."""
        return {name: id for name, kind, id in self.asked.values() if kind == "create"}


class _Agent(FakeAgent):
    """An agent whose drivers report an epoch each second."""

    def __init__(self, load: Load, caller: Caller, name: str) -> None:
        super().__init__(caller.ask, name, load.claims, slots=40, heartbeat_s=1.0)
        self._load, self.counted = load, load.counted
        self._next_epoch_at: dict[str, float] = {}

    def claim(self, driver: FakeDriver, generation: int) -> None:
        driver.file.start(generation)

    def act(self, driver: FakeDriver) -> None:
        super().act(driver)
        job, moment = driver.spec.name, time.monotonic()
        if driver.spec.desired == "ABSENT":
            self._load.wrong.append(f"{job} is to be killed, as if its host had been lost")
        due = moment > self._next_epoch_at.get(driver.spec.run, 0.0) and not self._load.resting
        if driver.report.get("state") == "RUNNING" and due:
            self._next_epoch_at[driver.spec.run] = moment + EPOCH_S
            number = self._load.reported.get(job, 0)
            driver.file.epoch(number)
            self._load.reported[job] = number + 1


async def _numbers(client: httpx.AsyncClient, last: int) -> AsyncIterator[int]:
    """Yields the numbers of the events after `last`, until the stream ends or is silent for too long."""
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
