"""The client over real HTTP: errors, retries, pages, streams."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from fastapi import Response

from clonos import errors
from clonos.client import Client
from clonos.client.responses import error_of_failure, error_of_slug
from clonos.jobs.spec import JobSpec, Metadata
from clonos.resources.jobs import Failure, JobCreate, JobPatch, JobState, StopMode, StopRequest
from clonos.resources.service import Role, TokenCreate
from component.cli.service import TOKEN, FakeService, problem, savepoint
from support.busy import within


def request(name: str) -> JobCreate:
    return JobCreate(spec=JobSpec(metadata=Metadata(name=name)), artifact="b" * 64)


def test_a_problem_raises_the_error_of_its_slug_with_all_parts(client: Client) -> None:
    with pytest.raises(errors.NotFound) as caught:
        client.jobs.get("nope")
    assert "nope" in caught.value.what
    assert caught.value.kept == "nothing was changed."
    assert caught.value.hint == "look at the list."


@pytest.mark.parametrize(
    "slug",
    [
        "concurrent-update",
        "spec-invalid",
        "database-unavailable",
        "checkpoint-mismatch",
        "superseded",
        "too-many-requests",
    ],
)
def test_each_slug_finds_its_class(slug: str) -> None:
    error = error_of_slug(slug, "what", kept="kept", hint="hint")
    assert (error.slug, error.what, error.kept, error.hint) == (slug, "what", "kept", "hint")


def test_an_unknown_slug_raises_api_error(client: Client, service: FakeService) -> None:
    service.faults.append(problem(409, "of-a-newer-version", "Details."))
    with pytest.raises(errors.ApiError, match="of-a-newer-version: Details"):
        client.jobs.get("x")


def test_the_error_names_invalid_fields(client: Client, service: FakeService) -> None:
    problems = [{"field": "spec.trigger", "what": "must be a number", "hint": ""}]
    service.faults.append(problem(422, "spec-invalid", "Not usable.", errors=problems))
    with pytest.raises(errors.SpecError, match=r"spec\.trigger: must be a number"):
        client.jobs.create(request("x"))


@pytest.mark.parametrize("body", ["<html>502</html>", "", "[]"])
def test_a_response_without_a_problem_raises_api_error_with_its_status(
    client: Client, service: FakeService, body: str
) -> None:
    service.faults.append(Response(body, 418))
    with pytest.raises(errors.ApiError, match="GET /api/v1/jobs/x returned 418"):
        client.jobs.get("x")


def test_an_answer_that_is_none_of_the_api(client: Client) -> None:
    with pytest.raises(errors.ApiError, match="format of the API"):
        client.artifacts.list()


def test_unknown_fields_are_ignored(client: Client) -> None:
    assert client.connectors.validate("sink", "kafka", {"topic": "t"}).valid


def test_a_get_is_retried_while_the_service_is_unavailable(client: Client, service: FakeService) -> None:
    service.add("wordcount")
    service.faults.extend(
        [problem(503, "database-unavailable", "No database."), Response("", 502), problem(429, "too-many-requests", "")]
    )
    assert client.jobs.get("wordcount").name == "wordcount"
    assert len(service.received) == 4


def test_a_retry_waits_for_retry_after(client: Client, service: FakeService) -> None:
    service.add("wordcount")
    unavailable = problem(503, "database-unavailable", "No database.")
    unavailable.headers["Retry-After"] = "1"
    service.faults.append(unavailable)
    begun = time.monotonic()
    client.jobs.get("wordcount")
    assert time.monotonic() - begun >= 1.0


def test_retries_end_with_the_last_error(service: FakeService) -> None:
    service.faults.extend(problem(503, "database-unavailable", "No database.") for _ in range(50))
    with (
        Client(service.url, TOKEN, patience_s=0.3) as client,
        pytest.raises(errors.DatabaseUnavailable, match="No database"),
    ):
        client.jobs.get("wordcount")


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "https://nobody.invalid:8484"])
def test_a_closed_port_and_an_unknown_host_name_raise_soon(url: str) -> None:
    with within(15.0), Client(url, TOKEN, patience_s=60) as client, pytest.raises(errors.ControlPlaneUnavailable):
        client.jobs.get("wordcount")


def test_a_post_waits_for_a_control_plane_that_restarts() -> None:
    """Even a request that must not be sent twice, because no server has received it."""
    service = FakeService()
    service.start()
    service.stop()
    restarted: list[FakeService] = []

    def start() -> None:
        restarted.append(FakeService(int(service.url.rsplit(":", 1)[1])))
        restarted[0].start()

    starting = threading.Timer(2.0, start)
    with Client(service.url, TOKEN, patience_s=60) as client:
        starting.start()
        client.tokens.create(TokenCreate(name="ci", role=Role.OPERATOR))
    starting.join()
    assert len(restarted[0].requests("POST", "/tokens")) == 1
    restarted[0].stop()


def test_a_post_with_a_lost_response_is_executed_once(client: Client, service: FakeService) -> None:
    """The retry has the same idempotency key, so it receives the response of the first request."""
    service.add("wordcount")
    service.faults.append(None)
    client.jobs.stop("wordcount", StopRequest(mode=StopMode.FORCE))
    ((_, headers, body),) = service.requests("POST", "/jobs/wordcount/stop")
    assert headers["idempotency-key"]
    assert b"force" in body
    service.faults.append(problem(409, "request-in-progress", "It is in progress."))
    with pytest.raises(errors.RequestInProgress):
        client.jobs.stop("wordcount")
    service.faults.extend([Response("", 504), problem(409, "request-in-progress", "It is in progress.")])
    client.jobs.restart("wordcount")
    keys = {headers["idempotency-key"] for _, headers, _ in service.requests("POST", "/jobs/wordcount/restart")}
    assert len(service.requests("POST", "/jobs/wordcount/restart")) == 3
    assert len(keys) == 1
    assert len([operation for operation in service.operations.values() if operation.kind == "restart"]) == 1


def test_a_patch_is_sent_once_with_its_version(client: Client, service: FakeService) -> None:
    service.add("wordcount")
    service.faults.append(problem(503, "database-unavailable", "No database."))
    with pytest.raises(errors.DatabaseUnavailable):
        client.jobs.patch("wordcount", JobPatch(spec=request("wordcount").spec), version=1)
    assert len(service.received) == 1
    assert client.jobs.patch("wordcount", JobPatch(spec=request("wordcount").spec), version=1).version == 2
    with pytest.raises(errors.VersionStale):
        client.jobs.patch("wordcount", JobPatch(spec=request("wordcount").spec), version=1)


def test_a_token_request_is_sent_once_without_a_key(client: Client, service: FakeService) -> None:
    created = client.tokens.create(TokenCreate(name="ci", role=Role.OPERATOR))
    assert created.token == "clonos_t1_new"
    service.faults.append(problem(503, "database-unavailable", ""))
    with pytest.raises(errors.DatabaseUnavailable):
        client.tokens.create(TokenCreate(name="ci", role=Role.OPERATOR))
    assert len(service.requests("POST", "/tokens")) == 2


def test_lists_read_all_pages_up_to_the_limit(client: Client, service: FakeService) -> None:
    for number in range(230):
        service.add(f"job-{number}", JobState.RUNNING if number % 2 else JobState.STOPPED)
    assert len(client.jobs.list().data) == 230
    assert len(service.requests("GET", "/jobs")) == 2
    some = client.jobs.list(limit=210)
    assert (len(some.data), some.has_more) == (210, True)
    assert len(client.jobs.list(states=[JobState.STOPPED]).data) == 115
    for number in range(60):
        service.add_event("job.state", number=number)
    assert [event.seq for event in client.events.history(after=3, limit=40).data] == list(range(4, 44))


def test_wait_polls_an_operation(client: Client, service: FakeService) -> None:
    service.add("wordcount")
    service.slow = 3
    looks: list[str] = []
    done = client.operations.wait(client.jobs.stop("wordcount"), on_poll=lambda one: looks.append(one.state))
    assert done.state == "COMPLETED"
    assert looks == ["IN_PROGRESS", "IN_PROGRESS", "COMPLETED"]
    service.slow = 1_000
    with pytest.raises(errors.WaitTimeout):
        client.operations.wait(client.jobs.stop("wordcount"), timeout_s=0.2)
    service.slow, service.failing = 1, Failure(error="broker-unavailable", what="No broker.", hint="start one.")
    with pytest.raises(errors.BrokerUnavailable, match="start one"):
        client.operations.wait(client.jobs.start("wordcount"))


def test_a_failure_without_a_known_error() -> None:
    assert str(error_of_failure(Failure(error="lost-in-space", what="Gone."))).startswith("lost-in-space: Gone.")


def test_redirects_are_not_followed(client: Client, service: FakeService) -> None:
    service.faults.append(Response(status_code=307, headers={"Location": "http://127.0.0.1:9/"}))
    with pytest.raises(errors.ApiError, match="307"):
        client.jobs.get("x")


def events_of(service: FakeService, *streams: str) -> None:
    service.streams.extend(stream.encode() for stream in streams)


def sse(service: FakeService, count: int) -> str:
    events = [service.add_event("job.state", number=number) for number in range(count)]
    return "".join(f"id: {event.seq}\nevent: {event.type}\ndata: {event.model_dump_json()}\n\n" for event in events)


def test_a_stream_resumes_after_the_last_event(client: Client, service: FakeService) -> None:
    whole = sse(service, 6)
    middle = whole.index("id: 4")
    # The first connection breaks within the fourth event, the second sends a heartbeat only.
    events_of(service, "event: heartbeat\n\n" + whole[: middle + 30], "event: heartbeat\n\n", whole[middle:])
    stop = threading.Event()
    seen = []
    for event in client.events.follow(after=0, stop=stop):
        seen.append(event.seq)
        if event.seq == 6:
            stop.set()
    assert seen == [1, 2, 3, 4, 5, 6]
    assert [headers["last-event-id"] for _, headers, _ in service.requests("GET", "/events")] == ["0", "3", "3"]


def test_a_gap_is_skipped(client: Client, service: FakeService) -> None:
    events_of(service, 'event: gap\ndata: {"oldest": 5, "newest": 9}\n\n' + sse(service, 1))
    assert next(client.events.follow(after=0)).seq == 1


def test_a_rejected_stream_raises(client: Client, service: FakeService) -> None:
    service.faults.append(problem(403, "forbidden", "Not you."))
    with pytest.raises(errors.ClonosError, match="Not you"):
        next(client.events.follow())


def test_log_lines_come_once_after_a_broken_connection(client: Client, service: FakeService) -> None:
    """Of several lines in one chunk, only the last has a position."""
    service.add("wordcount")
    events_of(service, "id: 2\ndata: two\n\ndata: three\n\n", "data: three\n\nid: 4\ndata: four\n\n")

    def lines() -> Iterator[str]:
        for chunk in client.jobs.follow_logs("wordcount", tail=10):
            yield from chunk.lines
            if chunk.next == "4":
                service.change("wordcount", state=JobState.FINISHED)

    assert list(lines()) == ["two", "three", "four"]


# Characters at which str.splitlines (and httpx's iter_lines) breaks a line, but server-sent events do not.
UNICODE_LINE_BREAKS = "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e"


def test_follow_logs_keeps_unicode_line_breaks_in_a_line(client: Client, service: FakeService) -> None:
    service.add("wordcount", state=JobState.FINISHED)
    line = f"before{UNICODE_LINE_BREAKS}after"
    events_of(service, f"id: 2\ndata: {line}\n\n")
    assert [chunk.lines for chunk in client.jobs.follow_logs("wordcount", tail=10)] == [[line]]


def test_follow_events_keeps_unicode_line_breaks_in_an_event(client: Client, service: FakeService) -> None:
    event = service.add_event("job.exception", message=f"before{UNICODE_LINE_BREAKS}after")
    events_of(service, f"id: {event.seq}\nevent: {event.type}\ndata: {event.model_dump_json()}\n\n")
    assert next(client.events.follow(after=0)).data == event.data


def test_follow_rejects_a_response_that_is_not_an_event_stream(client: Client, service: FakeService) -> None:
    service.faults.append(Response("<html>a proxy's page</html>", 200))
    with pytest.raises(errors.ApiError, match="event stream"):
        next(client.events.follow())


def test_savepoints_of_a_job_use_its_route(client: Client, service: FakeService) -> None:
    service.savepoints.append(savepoint("before"))
    assert [row.name for row in client.savepoints.list(job="wordcount").data] == ["before"]
    assert service.received[-1][1] == "/api/v1/jobs/wordcount/savepoints"
