"""One hostile token beside ten others: none of the others is refused, and the memory of the service is bounded."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import psutil
import pytest

from support.callers import HostileCaller, OrdinaryCaller
from support.connection import Connection
from support.serving import ApiProcess

MB = 1 << 20
SLOW = ("uploads: 201", "downloads: 200", "validate: 200")
LIMITS = ("streams: 429", "heads: closed")  # one token has some streams; a head has an end


async def attack_until(
    hostile: HostileCaller, answers: tuple[str, ...], *, beside: list[OrdinaryCaller], only: bool = True
) -> None:
    """Attack while others use the service, and until there is each of these responses several times.

    Args:
        only: With the requests that have these responses alone.
    """
    kinds = [answer.partition(":")[0] for answer in answers] if only else []
    attack = asyncio.create_task(hostile.attack(60.0, only=kinds))
    await asyncio.gather(*(caller.use(5.0) for caller in beside))
    while not attack.done() and any(hostile.answers[answer] < 3 for answer in answers):
        await asyncio.sleep(0.1)
    attack.cancel()
    await asyncio.wait([attack])


def peak_of(pid: int) -> int:
    """The most resident memory that a process has had: what it has at the end may be much less."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


@pytest.mark.ci
def test_a_hostile_token_harms_no_other(tmp_path: Path) -> None:
    with ApiProcess(tmp_path) as process, process.served.client() as admin:
        url = httpx.URL(process.served.url)
        assert url.port is not None
        address = (url.host, url.port)

        def token(subject: str) -> str:
            body = {"name": subject, "role": "operator", "subject": subject}
            return str(admin.post("/tokens", json=body).raise_for_status().json()["token"])

        tokens = {f"job-{number}": token(f"user-{number}") for number in range(10)}
        ordinary = [OrdinaryCaller(Connection(*address, text), job) for job, text in tokens.items()]
        hostile_token = token("hostile")
        sizes = {"upload_bytes": 8 * MB, "code_bytes": 100_000}
        hostile = HostileCaller(lambda: Connection(*address, hostile_token), address, "job-0", **sizes)
        service = psutil.Process(process.process.pid)

        async def beside_each_other() -> None:
            for caller in ordinary:
                await caller.create()
            # Beside everything else, most slow requests would still wait for their turns at the end.
            await attack_until(hostile, SLOW, beside=ordinary)
            await attack_until(hostile, LIMITS, beside=ordinary, only=False)
            # On a busy machine, few of its other requests get a turn in that time.
            await attack_until(hostile, ("requests: 200",), beside=[])
            for caller in ordinary:
                caller.close()
            assert (await asyncio.to_thread(httpx.get, f"{url}/health/live", trust_env=False)).status_code == 200

        before = service.memory_info().rss
        asyncio.run(beside_each_other())
        peak = peak_of(service.pid)
    assert [refused for caller in ordinary for refused in caller.refused] == []
    assert all(caller.durations_ms["get"] for caller in ordinary)
    answered = (*SLOW, *LIMITS, "requests: 200")
    assert [answer for answer in answered if not hostile.answers[answer]] == [], hostile.answers
    assert peak - before < 300 * MB, f"{before / MB:.0f} MB grew to {peak / MB:.0f} MB"
