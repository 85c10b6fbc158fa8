"""A job continues on a host with another number of cores, time zone or locale: same tasks, same rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from drivers import JOBS, Feeder, JobRun, caught_up

from clonos.settings import KafkaSettings
from clonos.testing.harness import eventually, has_open_transaction, read_committed

LANES = 4  # Spark's default here: twice the cores of the first start


@pytest.fixture
def run(kafka: KafkaSettings, name: str, make_topic: Callable[..., str], tmp_path: Path) -> Iterator[JobRun]:
    params = {"input": make_topic(3, "in"), "output": make_topic(1, "out")}
    run = JobRun(kafka, name, tmp_path / "home", JOBS / "cores.py", params)
    yield run
    run.end()


@pytest.mark.full
@pytest.mark.chaos(
    fault="SIGKILL at a protocol point", target="driver", topology="clonos run, other core count after the restart"
)
def test_a_restart_with_other_cores(kafka: KafkaSettings, run: JobRun) -> None:
    feeder = Feeder(kafka, run.params["input"], 3)
    feeder.burst(300)
    # Both slots finish a lane before the third is begun.
    first = run.start("lane-begun,lane=2,replay=False:kill")
    first.await_kill()
    before = [json.loads(message.value() or b"{}") for message in read_committed(kafka, run.params["output"])]
    assert before, "some lanes are published"

    run.spec["master"] = "local[4]"
    second = run.start()
    eventually(lambda: caught_up(run, run.params["output"], feeder.sent), "the epoch is repeated", timeout_s=90)
    feeder.burst(30)
    eventually(lambda: caught_up(run, run.params["output"], feeder.sent), "the job continues", timeout_s=90)
    second.stop_gracefully()

    records = [json.loads(message.value() or b"{}") for message in read_committed(kafka, run.params["output"])]
    assert Counter(record["word"] for record in records) == Counter(word for _, word in feeder.sent)
    assert {record["lane"] for record in records} == set(range(LANES)), "the width that the first checkpoint records"
    replay = next(event for event in run.events_of("epoch") if event["replay"])
    assert replay["skipped_lanes"] >= 1
    assert replay["diverged_lanes"] == 0
    assert replay["replayed_determinants"] >= len(before)
    assert len({record["draw"] for record in records}) == len({record["lot"] for record in records}) == len(records)
    eventually(lambda: not has_open_transaction(kafka, run.params["output"]), "no transaction is open")


_LOCAL_TIMES = """
import locale, time
import clonos
from pyspark.sql import functions as F

locale.setlocale(locale.LC_ALL, "")
DEFINED = time.tzname[0]  # the driver's zone, in the closure of the function


def local(at):
    moment = time.localtime(0)
    return f"{DEFINED} {moment.tm_hour} {moment.tm_zone} {locale.getlocale()[0]} {at:%H:%M}"


@clonos.job(name="zones")
def zones(ctx):
    printed = F.udf(local, "string")
    at = F.timestamp_seconds(F.lit(0))
    # Of the JVM: its default locale decides about the dotless i, its zone about java.util.
    zone = F.expr("java_method('java.util.TimeZone', 'getDefault')")
    language = F.expr("java_method('java.util.Locale', 'getDefault')")
    value = F.concat_ws(" ", printed(at), zone.substr(1, 40), language, F.upper(F.lit("i")))
    ctx.sink(ctx.source(ctx.params["input"]).select(value.alias("value")), topic=ctx.params["output"])
"""


@pytest.mark.turn
@pytest.mark.chaos(
    fault="SIGKILL at a protocol point", target="driver", topology="clonos run, other zone and locale after the restart"
)
def test_a_restart_in_another_time_zone(kafka: KafkaSettings, run: JobRun, tmp_path: Path) -> None:
    run.job = tmp_path / "zones.py"
    run.job.write_text(_LOCAL_TIMES)
    output = run.params["output"]
    feeder = Feeder(kafka, run.params["input"], 3)
    feeder.burst(10)
    berlin = {"TZ": "Europe/Berlin", "LC_ALL": "C", "LANG": "C", "JAVA_TOOL_OPTIONS": "-Duser.language=tr"}
    run.start("lane-committed,replay=False:kill", environment=berlin).await_kill()
    new_york = {"TZ": "America/New_York", "LC_ALL": "POSIX", "JAVA_TOOL_OPTIONS": "-Duser.timezone=Asia/Tokyo"}
    second = run.start(environment=new_york)
    feeder.burst(10)
    eventually(lambda: caught_up(run, output, feeder.sent), "the job continues", timeout_s=90)
    second.stop_gracefully()
    (text,) = {(message.value() or b"").decode() for message in read_committed(kafka, output)}
    assert text.startswith("UTC 0 UTC "), text
    assert " 00:00 " in text
    assert text.endswith(" en_US I"), text
    assert [event["diverged_lanes"] for event in run.events_of("epoch") if event["replay"]] == [0]
