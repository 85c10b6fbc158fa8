"""The metrics endpoint of an agent, with real driver processes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import httpx
from prometheus_client.parser import text_string_to_metric_families

from clonos.agent.exposition import AgentSnapshot, serve_metrics
from clonos.embedded.layout import free_ports
from clonos.testing.harness import eventually
from component.agent.api import FakeApi
from component.agent.hosts import ThreadAgent, run_spec
from component.agent.test_supervising import reported

Host = Callable[..., ThreadAgent]
Samples = dict[str, list[tuple[dict[str, str], float]]]


def scraped(address: str) -> Samples:
    response = httpx.get(f"http://{address}/metrics", timeout=60, trust_env=False, verify=False)
    assert response.status_code == 200
    samples: Samples = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    return samples


def test_metrics_contain_each_driver(api: FakeApi, host: Host, run: str) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    api.assign(run_spec(run, api.upload(b"until_stopped()")))
    host(metrics=address)
    reported(api, run, "RUNNING")
    samples = scraped(address)
    labels = {"job_name": "fake", "run": run, "role": "driver"}
    assert ({**labels, "state": "RUNNING"}, 1.0) in samples["clonos_driver_state"]
    assert (labels, 1.0) in samples["clonos_driver_starts_total"]
    for name in ("clonos_driver_cpu_seconds_total", "clonos_driver_memory_bytes"):
        (value,) = [value for sample_labels, value in samples[name] if sample_labels == labels]
        assert value > 0, name
    assert samples["clonos_agent_slots"] == [({}, 2.0)]
    assert samples["clonos_agent_unanswered_seconds"][0][1] < 60
    assert samples["clonos_agent_process_resident_memory_bytes"][0][1] > 0
    api.assign()
    eventually(lambda: not scraped(address).get("clonos_driver_state"), "the metrics no longer contain the removed run")


def test_endpoint_stops_with_the_agent(api: FakeApi, host: Host, run: str) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    agent = host(metrics=address)
    eventually(lambda: _answers(address), "the endpoint responds")
    agent.stop()
    eventually(lambda: not _answers(address), "the endpoint stops")


def _answers(address: str) -> bool:
    try:
        return httpx.get(f"http://{address}/metrics", timeout=60, trust_env=False, verify=False).status_code == 200
    except httpx.TransportError:
        return False


def test_agent_runs_without_metrics_if_the_address_is_in_use(api: FakeApi, host: Host, run: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        api.assign(run_spec(run, api.upload(b"until_stopped()")))
        host(metrics=f"127.0.0.1:{listening.getsockname()[1]}")
        reported(api, run, "RUNNING")


def test_metrics_of_the_agent_process_need_no_snapshot() -> None:
    async def served() -> Samples:
        def snapshot() -> AgentSnapshot:
            raise RuntimeError("the event loop is closed")

        with serve_metrics("127.0.0.1:0", snapshot) as address:
            return await asyncio.to_thread(scraped, address)

    samples = asyncio.run(served())
    assert "clonos_agent_slots" not in samples
    assert "clonos_agent_process_cpu_seconds_total" in samples
