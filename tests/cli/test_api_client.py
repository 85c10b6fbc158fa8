"""The client against real HTTP: errors, repeats, pages, streams."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from fastapi import Response

from cli.service import TOKEN, FakeService, problem, savepoint
from clonos import errors
from clonos.client import Client
from clonos.client.problems import of_failure, typed
from clonos.client.sse import Parser
from clonos.resources.jobs import Failure, JobCreate, JobPatch, JobState, StopMode, StopRequest
from clonos.resources.service import Role, TokenCreate
from clonos.spec import JobSpec, Metadata


def wish(name: str) -> JobCreate:
    return JobCreate(spec=JobSpec(metadata=Metadata(name=name)), artifact="b" * 64)


def test_errors_are_those_of_the_same_slug_with_all_three_parts(client: Client) -> None:
    with pytest.raises(errors.NotFound) as caught:
        client.jobs.get("nope")
    assert "nope" in caught.value.what
    assert caught.value.kept == "nothing was changed."
    assert caught.value.hint == "look at the list."


@pytest.mark.parametrize(
    "slug", ["fenced", "spec-invalid", "store-away", "checkpoint-mismatch", "superseded", "too-many"]
)
def test_each_slug_finds_its_class(slug: str) -> None:
    found = typed(slug, "what", kept="kept", hint="hint")
    assert (found.slug, found.what, found.kept, found.hint) == (slug, "what", "kept", "hint")


def test_an_unknown_slug_is_named(client: Client, service: FakeService) -> None:
    service.faults.append(problem(409, "of-a-newer-version", "It is so."))
    with pytest.raises(errors.ApiError, match="of-a-newer-version: It is so"):
        client.jobs.get("x")


def test_wrong_fields_are_named(client: Client, service: FakeService) -> None:
    wrong = [{"field": "spec.trigger", "what": "must be a number", "hint": ""}]
    service.faults.append(problem(422, "spec-invalid", "Not usable.", errors=wrong))
    with pytest.raises(errors.SpecError, match=r"spec\.trigger: must be a number"):
        client.jobs.create(wish("x"))


@pytest.mark.parametrize("body", ["<html>502</html>", "", "[]"])
def test_a_body_that_is_no_problem_is_told_by_its_status(client: Client, service: FakeService, body: str) -> None:
    service.faults.append(Response(body, 418))
    with pytest.raises(errors.ApiError, match="GET /api/v1/jobs/x was answered with 418"):
        client.jobs.get("x")


def test_an_answer_that_is_none_of_the_api(client: Client) -> None:
    with pytest.raises(errors.ApiError, match="not what the API promises"):
        client.artifacts.list()


def test_fields_of_a_newer_control_plane_are_left_out(client: Client) -> None:
    assert client.connectors.validate("sink", "kafka", {"topic": "t"}).valid


def test_a_service_that_is_away_for_a_moment_is_asked_again(client: Client, service: FakeService) -> None:
    service.add("wordcount")
    service.faults.extend([problem(503, "store-away", "No database."), Response("", 502), problem(429, "too-many", "")])
    assert client.jobs.get("wordcount").name == "wordcount"
    assert len(service.asked) == 4


def test_retry_after_is_heard(client: Client, service: FakeService) -> None:
    service.add("wordcount")
    away = problem(503, "store-away", "No database.")
    away.headers["Retry-After"] = "1"
    service.faults.append(away)
    begun = time.monotonic()
    client.jobs.get("wordcount")
    assert time.monotonic() - begun >= 1.0


def test_patience_ends_with_the_error_itself(service: FakeService) -> None:
    service.faults.extend(problem(503, "store-away", "No database.") for _ in range(50))
    with Client(service.url, TOKEN, patience_s=0.3) as client, pytest.raises(errors.StoreAway, match="No database"):
        client.jobs.get("wordcount")


def test_nobody_there_is_told_soon() -> None:
    begun = time.monotonic()
    with Client("http://127.0.0.1:9", TOKEN, patience_s=30) as client, pytest.raises(errors.ControlPlaneAway):
        client.jobs.get("wordcount")
    assert time.monotonic() - begun < 8


def test_a_name_that_nobody_has_is_told_at_once() -> None:
    begun = time.monotonic()
    with Client("http://nobody.invalid:8484", TOKEN, patience_s=30) as client, pytest.raises(errors.ControlPlaneAway):
        client.jobs.get("wordcount")
    assert time.monotonic() - begun < 2


def test_the_first_request_waits_for_a_control_plane_that_starts_again(service: FakeService) -> None:
    """Also one that is not to be sent twice: nobody has got it."""
    service.stop()
    back: list[FakeService] = []

    def start() -> None:
        back.append(FakeService(int(service.url.rsplit(":", 1)[1])))
        back[0].start()

    starting = threading.Timer(2.0, start)
    with Client(service.url, TOKEN, patience_s=10) as client:
        starting.start()
        client.tokens.create(TokenCreate(name="ci", role=Role.OPERATOR))
    starting.join()
    assert len(back[0].requests("POST", "/tokens")) == 1
    back[0].stop()


def test_a_post_whose_answer_was_lost_is_done_once(client: Client, service: FakeService) -> None:
    """The second request has the same key, so it gets the answer of the first."""
    service.add("wordcount")
    service.faults.append(None)
    client.jobs.stop("wordcount", StopRequest(mode=StopMode.FORCE))
    ((_, headers, body),) = service.requests("POST", "/jobs/wordcount/stop")
    assert headers["idempotency-key"]
    assert b"force" in body
    service.faults.append(problem(409, "request-under-way", "It is being worked on."))
    with pytest.raises(errors.RequestUnderWay):
        client.jobs.stop("wordcount")
    service.faults.extend([Response("", 504), problem(409, "request-under-way", "It is being worked on.")])
    client.jobs.restart("wordcount")
    keys = {headers["idempotency-key"] for _, headers, _ in service.requests("POST", "/jobs/wordcount/restart")}
    assert len(service.requests("POST", "/jobs/wordcount/restart")) == 3
    assert len(keys) == 1
    assert len([one for one in service.operations.values() if one.kind == "restart"]) == 1


def test_a_patch_is_sent_once_and_names_its_version(client: Client, service: FakeService) -> None:
    service.add("wordcount")
    service.faults.append(problem(503, "store-away", "No database."))
    with pytest.raises(errors.StoreAway):
        client.jobs.patch("wordcount", JobPatch(spec=wish("wordcount").spec), version=1)
    assert len(service.asked) == 1
    assert client.jobs.patch("wordcount", JobPatch(spec=wish("wordcount").spec), version=1).version == 2
    with pytest.raises(errors.VersionStale):
        client.jobs.patch("wordcount", JobPatch(spec=wish("wordcount").spec), version=1)


def test_a_token_is_asked_for_once_and_without_a_key(client: Client, service: FakeService) -> None:
    made = client.tokens.create(TokenCreate(name="ci", role=Role.OPERATOR))
    assert made.token == "clonos_t1_new"
    service.faults.append(problem(503, "store-away", ""))
    with pytest.raises(errors.StoreAway):
        client.tokens.create(TokenCreate(name="ci", role=Role.OPERATOR))
    assert len(service.requests("POST", "/tokens")) == 2


def test_lists_are_read_to_their_end_or_limit(client: Client, service: FakeService) -> None:
    for number in range(230):
        service.add(f"job-{number}", JobState.RUNNING if number % 2 else JobState.STOPPED)
    assert len(client.jobs.list().data) == 230
    assert len(service.requests("GET", "/jobs")) == 2
    some = client.jobs.list(limit=210)
    assert (len(some.data), some.has_more) == (210, True)
    assert len(client.jobs.list(states=[JobState.STOPPED]).data) == 115
    for number in range(60):
        service.tell("job.state", number=number)
    assert [event.seq for event in client.events.history(after=3, limit=40).data] == list(range(4, 44))


def test_waiting_for_an_operation(client: Client, service: FakeService) -> None:
    service.add("wordcount")
    service.slow = 3
    looks: list[str] = []
    done = client.operations.wait(client.jobs.stop("wordcount"), on_look=lambda one: looks.append(one.state))
    assert done.state == "COMPLETED"
    assert looks == ["IN_PROGRESS", "IN_PROGRESS", "COMPLETED"]
    service.slow = 1_000
    with pytest.raises(errors.StillUnderWay):
        client.operations.wait(client.jobs.stop("wordcount"), timeout_s=0.2)
    service.slow, service.failing = 1, Failure(error="broker-unavailable", what="No broker.", hint="start one.")
    with pytest.raises(errors.BrokerUnavailable, match="start one"):
        client.operations.wait(client.jobs.start("wordcount"))


def test_a_failure_without_a_known_error() -> None:
    assert str(of_failure(Failure(error="lost-in-space", what="Gone."))).startswith("lost-in-space: Gone.")


def test_no_redirect_takes_the_token_elsewhere(client: Client, service: FakeService) -> None:
    service.faults.append(Response(status_code=307, headers={"Location": "http://127.0.0.1:9/"}))
    with pytest.raises(errors.ApiError, match="307"):
        client.jobs.get("x")


def events_of(service: FakeService, *streams: str) -> None:
    service.streams.extend(one.encode() for one in streams)


def sse(service: FakeService, count: int) -> str:
    told = [service.tell("job.state", number=number) for number in range(count)]
    return "".join(f"id: {one.seq}\nevent: {one.type}\ndata: {one.model_dump_json()}\n\n" for one in told)


def test_a_stream_goes_on_where_it_broke_off(client: Client, service: FakeService) -> None:
    whole = sse(service, 6)
    middle = whole.index("id: 4")
    # The first connection ends within the fourth event, the second says nothing.
    events_of(service, ": alive\n\n" + whole[: middle + 30], ": alive\n\n", whole[middle:])
    stop = threading.Event()
    seen = []
    for event in client.events.follow(after=0, stop=stop):
        seen.append(event.seq)
        if event.seq == 6:
            stop.set()
    assert seen == [1, 2, 3, 4, 5, 6]
    assert [headers["last-event-id"] for _, headers, _ in service.requests("GET", "/events")] == ["0", "3", "3"]


def test_a_gap_is_no_event(client: Client, service: FakeService) -> None:
    events_of(service, 'event: gap\ndata: {"oldest": 5, "newest": 9}\n\n' + sse(service, 1))
    assert next(client.events.follow(after=0)).seq == 1


def test_a_stream_that_is_refused_raises(client: Client, service: FakeService) -> None:
    service.faults.append(problem(403, "forbidden", "Not you."))
    with pytest.raises(errors.ClonosError, match="Not you"):
        next(client.events.follow())


def test_log_lines_that_a_break_tore_apart_come_once(client: Client, service: FakeService) -> None:
    """Of lines that come together only the last says where it stands."""
    service.add("wordcount")
    events_of(service, "id: 2\ndata: two\n\ndata: three\n\n", "data: three\n\nid: 4\ndata: four\n\n")

    def lines() -> Iterator[str]:
        for piece in client.jobs.follow_logs("wordcount", tail=10):
            yield from piece.lines
            if piece.next == "4":
                service.change("wordcount", state=JobState.FINISHED)

    assert list(lines()) == ["two", "three", "four"]


def test_sse_as_the_standard_has_it() -> None:
    parser = Parser()
    text = ["retry: 1500", ":comment", "id: 7", "event: a", "data: x", "data:y", "data", "", "data: z", "", ""]
    found = [event for line in text if (event := parser.take(line))]
    assert [(one.id, one.event, one.data, one.placed) for one in found] == [
        ("7", "a", "x\ny\n", True),
        ("7", "message", "z", False),
    ]
    assert parser.retry_s == 1.5


def test_savepoints_of_one_job(client: Client, service: FakeService) -> None:
    service.savepoints.append(savepoint("before"))
    assert [one.name for one in client.savepoints.list(job="wordcount").data] == ["before"]
    assert service.asked[-1][1] == "/api/v1/jobs/wordcount/savepoints"
