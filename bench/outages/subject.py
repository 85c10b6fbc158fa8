"""The platform that ``clonos up`` starts, with the job under test on it."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from clonos.testing.harness import PlatformJob, ProcessGroup, Stack, has_rehearsed

# Each poll is several requests, which take CPU time from the standby that warms up.
RARE_POLL_S: Final = 0.5
_JOBS: Final = Path(__file__).parent.parent / "jobs"


class Platform(Stack):
    """A platform and the job under test.

    Args:
        home: ``CLONOS_HOME``.
        pool_size: Pool drivers of each host; one is what `clonos up` chooses where memory allows.
        slots: Slots of each host.
        spark_workers: Workers of the Spark cluster ``local``; 0: no cluster.

    Attributes:
        job: The job that was submitted last.
    """

    job: PlatformJob

    def __init__(self, home: Path, *, pool_size: int = 1, slots: int = 2, spark_workers: int = 0) -> None:
        self._pool_size = pool_size
        workers = ("--spark-workers", str(spark_workers)) if spark_workers else ()
        super().__init__(home, "--pool-size", str(pool_size), "--slots", str(slots), *workers)

    def submit(
        self,
        main: str,
        params: dict[str, str],
        *,
        standbys: int,
        interval_ms: int = 0,
        mode: str = "dedicated",
        executors: int = 0,
        trigger: str = "epochs",
    ) -> PlatformJob:
        """Start a job of `bench.jobs`; it becomes the job under test. Its epochs start at least `interval_ms` apart.

        With `executors`, it runs on the Spark cluster, and its standby holds as many executors as its driver.
        """
        name = f"bench-{secrets.token_hex(3)}"
        folder = self.home / name
        folder.mkdir()
        (folder / "job.py").write_text((_JOBS / main).read_text())
        standby: dict[str, object] = {"replicas": standbys, "mode": mode}
        body: dict[str, object] = {"main": "job.py", "params": params, "standby": standby}
        body["trigger"] = {"interval": f"{interval_ms}ms"} | ({} if trigger == "epochs" else {"mode": trigger})
        if executors:
            standby["executors"] = executors
            body |= {"cluster": "local", "executor": {"instances": executors, "memory": "512m"}}
        spec = {"apiVersion": "clonos/v1", "kind": "Job", "metadata": {"name": name}, "spec": body}
        (folder / "job.yaml").write_text(json.dumps(spec))  # JSON is YAML
        self.cli("submit", str(folder), "--allow-lint")  # the kind "raw" of subject.py is not replayable
        self.job = PlatformJob(self.client, name)
        return self.job

    def standby(self) -> ProcessGroup | None:
        """The live process of a standby in any state."""
        processes = (self.job.process(standby.id) for standby in self.job.standbys())
        return next((process for process in processes if process is not None), None)

    def await_rehearsed_standby(self, *, with_state: bool) -> None:
        """Wait until a standby is READY and has rehearsed, with the job's state if `with_state`."""

        def rehearsed() -> bool:
            standby = self.job.ready_standby()
            return standby is not None and has_rehearsed(self.home, standby, with_state=with_state)

        self.job.until(rehearsed, "a standby has rehearsed", poll_s=RARE_POLL_S)

    def await_pool_drivers(self) -> None:
        """Wait until all pool drivers of each host are ready."""

        def ready() -> bool:
            return all(host.pool_available == self._pool_size for host in self.client.hosts.list().data)

        self.job.until(ready, "the pool drivers are ready", poll_s=RARE_POLL_S)

    def agent(self) -> tuple[str, ProcessGroup] | None:
        """Name of the job's host and process of its agent; None if the job has no host or the agent exited."""
        host = self.job.get().host
        agent = ProcessGroup(self.state()["agents"][host]["pid"]) if host is not None else None
        return (host, agent) if host is not None and agent is not None and agent.running else None

    def stop_job(self, *, gracefully: bool = False) -> None:
        """Stop or cancel the job, and wait until it ended."""
        stop = self.client.jobs.stop if gracefully else self.client.jobs.cancel
        stop(self.job.name)
        self.job.until(lambda: self.job.get().state in ("STOPPED", "CANCELED"), "the job ended")


@contextlib.contextmanager
def platform(home: Path, *, pool_size: int = 1, slots: int = 2, spark_workers: int = 0) -> Iterator[Platform]:
    """Start the platform, and stop it at the end of the context."""
    with Platform(home, pool_size=pool_size, slots=slots, spark_workers=spark_workers) as started:
        yield started
