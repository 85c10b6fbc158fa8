"""A control plane with sample jobs, hosts and recoveries, for tests and measurements of pages."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from clonos.extend.lanes import divergence
from clonos.jobs.cluster import ClusterReport, ClusterSpec
from clonos.log.records import EpochIdentity, Owner
from clonos.resources.clusters import ClusterState
from clonos.resources.jobs import Failure
from clonos.telemetry.driver_events import error_fields
from clonos_api.store import clusters, counters, series
from clonos_api.store.columns import plain
from clonos_api.store.db.database import Database
from clonos_api.store.db.rows import new_id
from clonos_api.store.lease import NAME as LEADER
from clonos_api.store.tables import (
    EpochRow,
    ExceptionRow,
    HostRow,
    JobGraphRow,
    JobRow,
    LeaseRow,
    LogChunkRow,
    RecoveryRow,
    SeriesRow,
    StandbyRow,
)
from support.serving import Change, Served, served, write
from support.stored import host_row, job_row, respec, run_row, run_spec

NAMES = ("orders", "clicks", "payments", "enrich", "fraud", "sessions")
WARM = (("detect", 8), ("decide", 21), ("wake", 40), ("claim", 70), ("restore", 30), ("replay", 240), ("commit", 30))
COLD = (("detect", 8), ("decide", 21), ("start", 5600), ("claim", 70), ("restore", 620), ("epoch", 540), ("commit", 80))
DAY_S = 86_400
EPOCH = {"query": "out", "records_in": 100, "records_out": 100, "duration_ms": 120}
EAST = {"master": "spark://spark-master.east.example:7077", "ui": "http://spark-master.east.example:8080"}
ON_CLUSTER = 3  # the first jobs run on a cluster
IN_DOUBT = 4  # this job has FAILED with an epoch in doubt


@contextmanager
def sample_platform(home: Path, *, jobs: int, hosts: int, seed: int = 1, **settings: Any) -> Iterator[Served]:
    """A replica with sample rows; no job runs."""
    with served(home, **settings) as api:
        with ThreadPoolExecutor(1) as apart:  # Playwright has a loop of its own in this thread
            apart.submit(asyncio.run, fill(api.settings.database, jobs, hosts, random.Random(seed))).result()
        yield api


def change_rows(api: Served, change: Change) -> Any:
    """Change the store as another replica does, in a thread: Playwright has a loop of its own in this one."""
    with ThreadPoolExecutor(1) as apart:
        return apart.submit(write, api, change).result()


async def fill(url: str, jobs: int, hosts: int, chance: random.Random) -> None:
    """Write the sample rows."""
    database = Database(url)
    now = datetime.now(UTC)
    try:
        async with database.transaction() as session:
            later = now + timedelta(days=1)
            session.add(LeaseRow(name=LEADER, holder="another", fencing_token=1, expires_at=later))
            agents = [await host_row(session, f"host-{number + 1}", lease_s=DAY_S) for number in range(hosts)]
            for agent in agents:
                agent.slots = 2 + 3 * jobs // max(1, hosts)
            if jobs:
                await _clusters(session)
            for number in range(jobs):
                await _job(session, number, agents, chance, now)
    finally:
        await database.close()


async def _clusters(session: AsyncSession) -> None:
    """A cluster in each state."""
    versions = {"spark": "4.2.1", "java": "25.0.1", "python": "3.11.2", "executors": 2}
    report = ClusterReport(**versions, hosts=("spark-worker-1", "spark-worker-2"))
    problems = tuple(f"Executor {each} on 10.0.7.{each} has Python 3.12, the driver has 3.11." for each in range(2))
    wrong = report.model_copy(update={"python": "3.12.4", "hosts": ("10.0.7.0", "10.0.7.1"), "problems": problems})
    hint = "check that the master runs, and its address and port."
    what = "No master of the cluster west answers: west.example:7077: Connection refused."
    unhosted = Failure(
        error="host-unavailable", what="No host of the cluster new is READY.", hint="start an agent there."
    )
    pods = {"image": "registry.example/executor:1"}
    for name, settings in (
        ("east", EAST),
        ("new", {"master": "spark://[fd00::1]:7077", "hosts": ["absent-1"]}),
        ("pods", {"master": "k8s://https://kubernetes.default.svc", "kubernetes": pods}),
        ("west", {"master": "spark://west.example:7077", "hosts": ["host-1", "host-2"]}),
        ("yarn", {"master": "yarn"}),
    ):
        described = ClusterSpec.model_validate({"metadata": {"name": name}, "spec": settings})
        row = await clusters.create(session, described, by="ada")
        if name == "new":
            await clusters.explain(session, row, unhosted)
            continue
        row = await clusters.begin_check(session, row)
        if name in ("east", "pods"):
            await clusters.succeed(session, row, report if name == "east" else wrong)
        elif name == "west":
            await clusters.fail(session, row, Failure(error="cluster-unavailable", what=what, hint=hint))
    assert {row.state for row in (await clusters.every(session)).values()} == set(ClusterState)


def _executors(number: int) -> dict[str, Any]:
    """A driver's reports about its application; one executor of the second job is lost."""
    ids = range(2 - number % 2)
    application = f"app-2026010112000{number}-000{number}"
    listed = [{"id": f"{each}", "host": f"spark-worker-{each + 1}", "cores": 2} for each in ids]
    for executor in listed:
        log = f"http://{executor['host']}:8081/logPage/?appId={application}&executorId={executor['id']}&logType="
        executor |= {"stdout": f"{log}stdout", "stderr": f"{log}stderr"}
    executors = {"wanted": 2, "registered": len(listed), "listed": listed}
    return {"application_id": application, "spark_ui": "http://gateway.example:4040", "executors": executors}


async def _job(session: AsyncSession, number: int, agents: list[HostRow], chance: random.Random, now: datetime) -> None:
    job = await job_row(session, f"{chance.choice(NAMES)}-{number + 1}")
    replicas = chance.choice((1, 1, 1, 0))
    respec(job, standby={"replicas": replicas})
    if number < ON_CLUSTER:
        respec(job, cluster="east")
    job.state = chance.choices(("RUNNING", "RECOVERING", "FAILED", "STOPPED"), (92, 2, 2, 4))[0]
    if number == IN_DOUBT:
        job.state = "FAILED"
    since_s = chance.randint(5, DAY_S)
    job.state_since = now - timedelta(seconds=0 if job.state == "RECOVERING" else since_s)
    job.generation, job.observed_version = 3, 1
    lag = {"in": chance.choice((0, 0, 0, 12, 4000))}
    counted = {"records_in": chance.randint(0, 10**6), "records_out": chance.randint(0, 10**6)}
    counted |= {"epoch": 109, "epochs": 110, "recorded_determinants": 500, "replayed_determinants": 10, "lag": lag}
    counted |= {"recorded_bytes": 61_000, "published_lanes": 430, "skipped_lanes": 6}
    operators = {"fraud_score": {"recorded": 420, "replayed": 10, "bytes": 55_000}}
    counted["operators"] = operators | {"exchange_rate": {"recorded": 80, "replayed": 0, "bytes": 6_000}}
    modes = ({"mode": "live"}, {"mode": "epochs", "because": "it has the operator Aggregate"}, {"mode": "epochs"})
    counted |= modes[number % 3]
    counted["partition_lag"] = {"in": {"0": lag["in"], "1": 0}}
    hangs = {"words": (now - timedelta(minutes=7)).isoformat()} if number == 2 else {}
    # In the future: no epoch finishes here, and a test views pages for minutes.
    reported_at = (now + timedelta(days=1)).isoformat()
    job.desired_state = "STOPPED" if job.state == "STOPPED" else "RUNNING"
    job.metrics = {"open_transactions": hangs, "at": reported_at, "restarts": 1, "queries": {"out": counted}}
    job.metrics |= {"delivery": {"out": "exactly-once"}, "sharing_depth": "full"}
    job.metrics["kafka"] = {"brokers": 3, "under_replicated": 2 if number == 4 else 0, "silent_since": None}
    if job.state == "FAILED":
        identity = EpochIdentity(job.name, f"clonos.{job.name}.log", "out", 109, Owner(1, 3, "a"), replay=True)
        kept = "the lanes not yet published were not published."
        error = divergence(identity, [0, 2], kept=kept, decisions=("keep", "republish", "dead-letter"))
        job.failure = error_fields(error) | {"domain": "consistency"}
    sums = {"epochs": 110, "recorded_determinants": 500, "recorded_bytes": 61_000, "replayed_determinants": 10}
    await counters.add(session, {job.id: sums})
    job.restarts = 2
    here, there = chance.sample(agents, 2) if len(agents) > 1 else (agents[0], agents[0])
    if job.state in ("RUNNING", "RECOVERING"):
        run = await run_row(session, job, here)
        if number < ON_CLUSTER:
            described = clusters.description(await clusters.get(session, "east")).model_dump(mode="json")
            run.spec = run_spec(job, run=run.id, cluster=described)
            run.ingest_state = {**plain(run.ingest_state), **_executors(number)}
        run.state, job.run = "RUNNING", run.id
        if replicas and chance.random() < 0.95:
            why = {"placement_reason": "another failure domain than the driver's, least loaded (1 of 4 slots taken)"}
            state = chance.choices(("READY", "WARMING"), (9, 1))[0]
            row = {"mode": "dedicated", "state": state, "since": now, "body": why}
            session.add(StandbyRow(id=new_id(), job=job.id, host=there.id, **row))
    for _ in range(chance.randint(0, 2)):
        at = now - timedelta(minutes=chance.randint(1, 500))
        session.add(_recovery(job, at, here.name, there.name, chance))
    if job.state == "RECOVERING":
        body = {"cause": "crash", "failed_generation": 3, "from_host": here.name, "to_host": there.name, "phases": []}
        body |= {"standby": new_id(), "generation": 4}
        session.add(RecoveryRow(id=new_id(), job=job.id, started_at=now - timedelta(seconds=4), body=body))
    if number < 3:
        _epochs(session, job, chance, now)
        _graph(session, job, now, queries=number)
        _figures(session, job, chance, now)
        _log(session, job, now)


def _recovery(job: JobRow, at: datetime, here: str, there: str, chance: random.Random) -> RecoveryRow:
    warm = chance.random() < 0.7
    phases, moment = [], at
    for name, ms in WARM if warm else COLD:
        took = ms * chance.uniform(0.6, 1.5)
        phases.append({"name": name, "started_at": moment.isoformat(), "duration_ms": took})
        moment += timedelta(milliseconds=took)
    body: dict[str, Any] = {"cause": chance.choice(("crash", "host-lost")), "outcome": "COMPLETED", "phases": phases}
    body |= {"failed_generation": 2, "generation": 3, "from_host": here, "to_host": there if warm else here}
    body |= {"standby": new_id() if warm else None, "downtime_ms": (moment - at).total_seconds() * 1000}
    body |= {"replayed_records": 800, "skipped_lanes": 1, "replayed_determinants": 20}
    return RecoveryRow(id=new_id(), job=job.id, started_at=at, ended_at=moment, body=body)


def _graph(session: AsyncSession, job: JobRow, now: datetime, *, queries: int) -> None:
    """No graph, one with one query, or one with three."""
    score = {"name": "fraud_score", "takes": "columns"}
    out = {"sink": "KafkaSink", "topics": ["in"], "operators": [score], "outputs": ["scored"]}
    if queries == 1:
        body: dict[str, Any] = {"out": out}
    elif queries == 2:
        rate, sessions = {"name": "exchange_rate", "takes": "batches"}, {"name": "sessions", "takes": "state"}
        topics = {"topics": ["customers", "in"], "dead_letters": ["payments-that-cannot-be-decoded"]}
        alerts = {"topics": ["in"], "patterns": ["refunds-[a-z]+"], "state": ["aggregate"], "outputs": ["alerts"]}
        body = {
            "out": {**out, **topics, "operators": [{"name": "clonos.decode"}, rate, score]},
            "alerts": {"sink": "KafkaSink", "operators": [{**sessions, "timers": True}], **alerts, "open": True},
            "archive": {"sink": "FilesSink", "topics": ["customers"]},
        }
    else:
        return
    session.add(JobGraphRow(job=job.id, generation=3, reported_at=now, body=body))


def _figures(session: AsyncSession, job: JobRow, chance: random.Random, now: datetime) -> None:
    """An hour in short intervals and a week in long ones, with a pause of a few minutes."""
    for width_s, length_s in ((series.SHORT_S, 3600), (series.LONG_S, 7 * DAY_S)):
        for back_s in range(0, length_s, width_s):
            if 1500 < back_s < 1800:
                continue
            daily = 1 + 0.5 * math.sin(2 * math.pi * back_s / min(DAY_S, length_s))
            records = round(width_s * 400 * daily * chance.uniform(0.9, 1.1))
            durations = [chance.lognormvariate(4.8, 0.3) for _ in range(20)]
            tally = series.Tally(20, 0, records, records, Counter(map(series.duration_class, durations)))
            ages = [chance.lognormvariate(5.5, 0.5) for _ in range(50)]
            tally.latencies = Counter(map(series.duration_class, ages))
            tally.lag = {"in": round(120 * daily * chance.uniform(0.5, 2))}
            start = datetime.fromtimestamp((now.timestamp() - back_s) // width_s * width_s, UTC)
            session.add(SeriesRow(job=job.id, query="out", width_s=width_s, start=start, body=tally))


def _epochs(session: AsyncSession, job: JobRow, chance: random.Random, now: datetime) -> None:
    for epoch in range(110):
        at = now - timedelta(seconds=(110 - epoch) * 0.5)
        epoch_json: dict[str, Any] = {"epoch": epoch, "query": "out", "status": "COMPLETED", "generation": 3}
        epoch_json |= {"trigger": "REPLAY" if epoch == 60 else "PERIODIC", "completed_at": at.isoformat()}
        epoch_json |= {
            "duration_ms": chance.uniform(70, 220),
            "records_in": 100,
            "records_out": chance.randint(80, 120),
        }
        epoch_json |= {
            "published_lanes": chance.randint(1, 4),
            "size_bytes": 123_456,
            "offsets": {"in": {"0": epoch * 50, "1": epoch * 51}},
            "topics_in": {"in": 90, "customers": 10},
            "dead_letters": int(epoch % 7 == 0),
            "recorded": {"fraud_score": 40, "exchange_rate": 3},
            "spans": [],
        }
        if epoch == 109 and job.metrics["queries"]["out"]["mode"] == "live":
            epoch_json |= {"live": True, "steps": 23_456, "records_in": 1_234_567, "records_out": 1_234_567}
        row = {"job": job.id, "lineage": 1, "query": "out", "epoch": epoch, "completed_at": at}
        session.add(EpochRow(**row, body=epoch_json))
        if epoch % 50 == 0:
            failure = {"error": "epoch-failed", "what": "A worker was lost.", "domain": "run", "retry": True}
            failure |= {"kept": "what was published.", "hint": "it is tried again by itself."}
            failure |= {
                "stack": 'Traceback (most recent call last):\n  File "job.py", line 12, in score\nOSError: away\n'
            }
            session.add(ExceptionRow(job=job.id, at=at, generation=2, failure=failure))


def _log(session: AsyncSession, job: JobRow, now: datetime) -> None:
    """Lines of each kind, as drivers write them: two generations, and the job's own lines."""
    at = now.timestamp() - 120
    events: list[dict[str, Any]] = [
        {"event": "session", "master": "local[4]", "application_id": "local-1795728159328"},
        {"event": "claimed", "lineage": 1, "lanes": 1},
        {"event": "state", "state": "RUNNING"},
        *({"event": "epoch", **EPOCH, "epoch": epoch, "replay": False} for epoch in range(40)),
        {"event": "lag", "query": "out", "topics": {"in": 12}},
        *({"event": "epoch", **EPOCH, "epoch": epoch, "replay": False} for epoch in range(40, 60)),
        {"event": "epoch", **EPOCH, "epoch": 60, "replay": True, "skipped_lanes": 2},
        *({"event": "lag", "query": "out", "topics": {"in": lag}} for lag in (500, 600, 700)),
        {"event": "waiting", "error": "kafka-unavailable", "what": "Kafka does not answer.", "hint": "start it."},
    ]
    lines = [
        json.dumps({**event, "job": job.name, "generation": 3, "at": at + number})
        for number, event in enumerate(events)
    ]
    moment = now.isoformat()
    jvm = {"job": job.name, "level": "WARN", "logger": "org.apache.kafka.clients.NetworkClient", "timestamp": moment}
    lines.insert(3, json.dumps({**jvm, "event": "Connection to node 0 could not be established."}))
    worker = {"job": job.name, "generation": 3, "query": "out", "epoch": 61, "task": 2, "level": "error"}
    stack = 'Traceback (most recent call last):\n  File "job.py", line 12, in score\nOSError: away\n'
    lines.append(json.dumps({**worker, "event": "score failed", "exception": stack, "timestamp": moment}))
    lines.append("the job's own line")
    text = "".join(f"{line}\n" for line in lines)
    session.add(LogChunkRow(job=job.id, run=job.run or new_id(), offset=0, size=len(text), text=text))
