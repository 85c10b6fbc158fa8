"""What an agent tells Prometheus: of real processes, and only if it was asked to."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import httpx
from prometheus_client.parser import text_string_to_metric_families

from agent.api import FakeApi
from agent.hosts import ThreadAgent, order
from agent.test_supervising import reported
from clonos.agent.exposition import Seen, exposed
from observe import eventually

Host = Callable[..., ThreadAgent]
Figures = dict[str, list[tuple[dict[str, str], float]]]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def scraped(address: str) -> Figures:
    answer = httpx.get(f"http://{address}/metrics", trust_env=False)
    assert answer.status_code == 200
    found: Figures = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_a_driver_is_told_of(api: FakeApi, host: Host, run: str) -> None:
    address = f"127.0.0.1:{free_port()}"
    api.order(order(run, api.upload(b"until_stopped()")))
    host(metrics=address)
    reported(api, run, "RUNNING")
    found = scraped(address)
    about = {"job_name": "fake", "run": run, "role": "driver"}
    assert ({**about, "state": "RUNNING"}, 1.0) in found["eos_driver_state"]
    assert (about, 1.0) in found["eos_driver_starts_total"]
    for name in ("eos_driver_cpu_seconds_total", "eos_driver_memory_bytes"):
        (value,) = [value for labels, value in found[name] if labels == about]
        assert value > 0, name
    assert found["eos_agent_slots"] == [({}, 2.0)]
    assert found["eos_agent_silent_seconds"][0][1] < 5
    assert found["eos_agent_process_resident_memory_bytes"][0][1] > 0
    api.order()
    eventually(lambda: not scraped(address).get("eos_driver_state"), "a run that is in no order is not told of")


def test_it_ends_with_the_agent(api: FakeApi, host: Host, run: str) -> None:
    address = f"127.0.0.1:{free_port()}"
    agent = host(metrics=address)
    eventually(lambda: _answers(address), "it answers")
    agent.stop()
    eventually(lambda: not _answers(address), "it is gone")


def _answers(address: str) -> bool:
    try:
        return httpx.get(f"http://{address}/metrics", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def test_an_address_that_is_taken_costs_the_figures_and_no_host(api: FakeApi, host: Host, run: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        api.order(order(run, api.upload(b"until_stopped()")))
        host(metrics=f"127.0.0.1:{listening.getsockname()[1]}")
        reported(api, run, "RUNNING")


def test_an_agent_that_is_busy_tells_of_its_process_all_the_same() -> None:
    async def served() -> Figures:
        def look() -> Seen:
            raise RuntimeError("the loop is over")

        with exposed("127.0.0.1:0", look) as address:
            return await asyncio.to_thread(scraped, address)

    found = asyncio.run(served())
    assert "eos_agent_slots" not in found
    assert "eos_agent_process_cpu_seconds_total" in found
