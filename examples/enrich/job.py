"""A stateless job that enriches events with a service that is slow, fails at times and changes its answers.

Each event has one record: in ``enriched``, with the server's answer about its device, or unchanged in ``dead``, with
the cause in headers. Dead letters are events that cannot be decoded, and events whose device the server refuses or does
not answer for. With ``on_outage="record"``, the failure of a call is recorded too. So a replay fails the same calls,
and publishes the event to the same topic.

Run it with ``clonos run examples/enrich/job.yaml -p server=http://127.0.0.1:8099``; the parameters name the topics.
"""

from __future__ import annotations

import json
from http.client import HTTPConnection
from typing import Any
from urllib.parse import quote, urlsplit

from pyspark.sql import Column
from pyspark.sql import functions as F

import clonos
from clonos.errors import ServiceError
from clonos.formats import Json

EVENT = "event string not null, device string not null, reading double not null"


@clonos.service(timeout=0.5, retries=3, concurrency=8, on_outage="record", outages=(OSError,))
def describe(device: str) -> dict[str, Any]:
    """The server's answer; each attempt has half a second, and eight calls run in parallel."""
    connection = HTTPConnection(urlsplit(clonos.param("server")).netloc, timeout=2.0)
    try:
        connection.request("GET", f"/device?id={quote(device)}")
        response = connection.getresponse()
        answer: dict[str, Any] = json.loads(response.read())
        if response.status != 200:
            raise OSError(f"{response.status} from {answer['answer']}")
        return answer
    finally:
        connection.close()


@clonos.udf("answer string, site string, cause string, epoch long")
def about(device: str | None) -> dict[str, Any] | None:
    """The server's answer about a device, or the cause of the failure."""
    if device is None:
        return None  # a poison record, which becomes a dead letter
    try:
        answer = describe(device)
    except ServiceError as failure:
        return {"cause": failure.what, "epoch": clonos.epoch()}
    return {"answer": answer["answer"], "site": answer["site"], "epoch": clonos.epoch()}


def header(name: str, value: Column) -> Column:
    """A header of a dead letter, in the platform's format."""
    return F.struct(F.lit(f"clonos.error.{name}").alias("key"), value.cast("string").cast("binary").alias("value"))


@clonos.job(name="enrich", params={"events": "events", "enriched": "enriched", "dead": "dead"})
def enrich(ctx: clonos.JobContext) -> None:
    """Build the query."""
    enriched, dead = ctx.params["enriched"], ctx.params["dead"]
    events = ctx.decode(
        ctx.source(ctx.params["events"]), Json(), schema=EVENT, on_poison="dead-letter", dead_letters=dead
    ).withColumn("about", about(F.col("record.device")))
    failed = F.col("about.cause").isNotNull()
    causes = F.array(
        *(header(name, F.col(name)) for name in ("topic", "partition", "offset")),
        header("class", F.lit("ServiceError")),
        header("message", F.col("about.cause")),
        header("epoch", F.col("about.epoch")),
    )
    source = F.struct("topic", "partition", "offset").alias("source")
    value = F.to_json(F.struct(source, "record.*", "about.answer", "about.site", "about.epoch"))
    outputs = {
        enriched: clonos.Output(value, key="key", where=~failed),
        dead: clonos.Output(
            "value", key="key", where=failed, headers=F.concat(F.coalesce("headers", F.array()), causes)
        ),
    }
    ctx.sink(clonos.fan_out(events, outputs), topic=enriched, name="enriched")
