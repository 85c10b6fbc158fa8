"""Commands against a fake control plane: what they send, print, and how they end."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import Result

from cli.conftest import Clonos
from cli.service import NOW, TOKEN, FakeService, host, problem, recovery, savepoint
from clonos import errors
from clonos.cli import watching
from clonos.client.credentials import Credentials, resolve
from clonos.resources.hosts import Standby
from clonos.resources.jobs import Failure, JobException, JobState
from clonos.resources.service import Event
from clonos.spec import JobSpec, Standbys
from observe import eventually

JOB = '@clonos.job(name="shout")\ndef shout(ctx):\n    pass\n'
BROKEN = Failure(error="topic-missing", what="The topic 'lines' does not exist.", kept="all.", hint="create it.")


def body(result: Result) -> dict[str, object]:
    found: dict[str, object] = json.loads(result.stdout)
    return found


def test_lists_as_table_json_and_names(clonos: Clonos, service: FakeService) -> None:
    service.add("wordcount", failure=BROKEN, restarts=3)
    service.add("orders", JobState.STOPPED)
    table = clonos("job", "ls").stdout
    assert "wordcount" in table
    assert "topic-missing" in table
    assert "\x1b" not in table, "plain where no one watches"
    assert clonos("job", "ls", "-o", "name").stdout.split() == ["wordcount", "orders"]
    assert clonos("job", "ls", "--state", "stopped", "-o", "name").stdout.split() == ["orders"]
    page = body(clonos("job", "ls", "-o", "json"))
    assert page["has_more"] is False
    assert page["data"][0]["spec"]["spec"]["driverMemoryMb"] == 1024  # type: ignore[index]


def test_an_empty_list_says_so_on_stderr(clonos: Clonos) -> None:
    result = clonos("savepoint", "ls")
    assert result.stdout == ""
    assert "There are no savepoints." in result.stderr
    assert clonos("savepoint", "ls", "-o", "name").output == ""


def test_inspect_tells_what_matters(clonos: Clonos, service: FakeService) -> None:
    service.add("wordcount", generation=2, agent="host-2")
    service.recoveries.append(recovery())
    service.exceptions.append(JobException(seq=1, at=NOW, generation=1, failure=BROKEN))
    told = clonos("job", "inspect", "wordcount").stdout
    for part in (
        "RUNNING",
        "host-2, process 4711",
        "crash",
        "gap 2.3 s",
        "host-1 → host-2",
        "7 records",
        "topic-missing",
    ):
        assert part in told, part
    assert "What to do: create it." in told
    whole = body(clonos("job", "inspect", "wordcount", "-o", "json"))
    assert set(whole) == {"job", "metrics", "run", "generation", "recovery", "error"}
    assert whole["recovery"]["gap_ms"] == 2345.0  # type: ignore[index]


def test_inspect_of_a_job_that_never_ran(clonos: Clonos, service: FakeService) -> None:
    service.add("wordcount", JobState.CREATED, generation=0, run=None, agent=None)
    told = clonos("job", "inspect", "wordcount").stdout
    assert "none yet" in told
    assert "no host" in told


def test_steering_waits_and_tells_the_state(clonos: Clonos, service: FakeService) -> None:
    service.add("wordcount")
    assert "wordcount is STOPPED" in clonos("job", "stop", "wordcount", "--mode", "checkpoint").stdout
    ((_, _, sent),) = service.requests("POST", "/jobs/wordcount/stop")
    assert json.loads(sent) == {"mode": "checkpoint", "timeout_s": 60.0}
    assert body(clonos("job", "restart", "wordcount", "-o", "json"))["state"] == "COMPLETED"
    assert body(clonos("job", "cancel", "wordcount", "--no-wait", "-o", "json"))["state"] == "IN_PROGRESS"
    assert "deleted" in clonos("job", "rm", "wordcount").stdout
    with pytest.raises(errors.SpecError, match="--mode fast"):
        clonos("job", "stop", "wordcount", "--mode", "fast")


def test_a_move_and_an_upgrade(clonos: Clonos, service: FakeService, tmp_path: Path) -> None:
    service.add("wordcount")
    assert body(clonos("job", "move", "wordcount", "--to", "host-2", "-o", "json"))["kind"] == "move"
    ((_, _, sent),) = service.requests("POST", "/jobs/wordcount/move")
    assert json.loads(sent) == {"to": "host-2", "timeout_s": 180.0}
    (tmp_path / "job.py").write_text('import clonos\n\n@clonos.job(name="wordcount")\ndef count(ctx):\n    pass\n')
    clonos("job", "upgrade", "wordcount", str(tmp_path), "--timeout", "9")
    ((_, _, sent),) = service.requests("POST", "/jobs/wordcount/upgrade")
    assert json.loads(sent) == {"timeout_s": 9.0}
    methods = [(method, path.split("/")[3]) for method, path, *_ in service.asked if method != "GET"]
    assert methods[-3:] == [("POST", "artifacts"), ("PATCH", "jobs"), ("POST", "jobs")]
    with pytest.raises(errors.SpecError, match="PATH"):
        clonos("job", "upgrade", "wordcount", "-p", "a=b")


def test_an_upgrade_keeps_the_standbys_unless_its_path_says_otherwise(
    clonos: Clonos, service: FakeService, tmp_path: Path
) -> None:
    """Those that ``clonos submit --standbys`` asked for are in no file."""
    spec = {"metadata": {"name": "wordcount"}, "spec": {"standby": {"replicas": 2, "aloneAfterS": 9}}}
    job = service.add("wordcount", spec=spec)
    (tmp_path / "job.py").write_text('import clonos\n\n@clonos.job(name="wordcount")\ndef count(ctx):\n    pass\n')

    def upgraded() -> Standbys:
        clonos("job", "upgrade", "wordcount", str(tmp_path))
        *_, (_, _, sent) = service.requests("PATCH", f"/jobs/{job.id}")
        return JobSpec.model_validate(json.loads(sent)["spec"]).spec.standby

    assert upgraded() == Standbys(replicas=2, aloneAfterS=9)
    yaml = (
        "apiVersion: clonos/v1\nkind: Job\nmetadata: {name: wordcount}\nspec: {main: job.py, standby: {replicas: 0}}\n"
    )
    (tmp_path / "job.yaml").write_text(yaml)
    assert upgraded() == Standbys()
    service.change(job.id, spec=JobSpec.model_validate(spec))
    (tmp_path / "job.yaml").write_text(yaml.replace("{replicas: 0}", "{aloneAfterS: 15}"))
    assert upgraded() == Standbys(replicas=2, aloneAfterS=15)


def test_an_operation_that_fails_is_its_error(clonos: Clonos, service: FakeService) -> None:
    service.add("wordcount")
    service.failing = BROKEN
    with pytest.raises(errors.TopicMissing, match="does not exist"):
        clonos("job", "start", "wordcount")


def test_starting_from_a_savepoint_or_an_epoch(clonos: Clonos, service: FakeService) -> None:
    service.add("wordcount", JobState.STOPPED)
    service.savepoints += [savepoint("before"), savepoint("twin"), savepoint("twin", id="sp-other")]
    for given, sent in {
        "41": {"epoch": 41, "publish_again": False},
        "before": {"savepoint": "sp-before", "publish_again": False},
        "sp-other": {"savepoint": "sp-other", "publish_again": False},
    }.items():
        clonos("job", "start", "wordcount", "--from", given)
        assert json.loads(service.requests("POST", "/jobs/wordcount/start")[-1][2]) == sent
    for given, said in {"nope": "no savepoint", "twin": "2 savepoints"}.items():
        with pytest.raises(errors.NotFound, match=said):
            clonos("job", "start", "wordcount", "--from", given)
    with pytest.raises(errors.SpecError, match="needs --from"):
        clonos("job", "start", "wordcount", "--publish-again")


def test_submit_uploads_and_creates(clonos: Clonos, service: FakeService, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    wishes = ("-p", "a=b", "--name", "loud", "--standbys", "2")
    made = body(clonos("submit", str(tmp_path / "job.py"), *wishes, "-o", "json"))
    (content,) = service.uploads.values()
    assert content == JOB.encode()
    assert made["artifact"] in service.uploads
    assert made["name"] == "loud"
    assert made["spec"]["spec"]["params"] == {"a": "b"}  # type: ignore[index]
    assert made["spec"]["spec"]["standby"]["replicas"] == 2  # type: ignore[index]
    with pytest.raises(errors.NameTaken):
        clonos("submit", str(tmp_path / "job.py"), "--name", "loud")


def test_submit_watch_tells_until_the_job_failed(clonos: Clonos, service: FakeService, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    found: list[Result | BaseException] = []

    def run() -> None:
        try:
            found.append(clonos("submit", str(tmp_path / "job.py"), "--watch"))
        except BaseException as error:
            found.append(error)

    # The stream begins only once the events so far are known.
    service.streams.append(b"")
    before = service.tell("job.created", "other")
    service.tell("job.state", "shout", to="RUNNING")
    failed = service.tell("job.state", "shout", to="FAILED")
    service.streams.append(f"id: {failed.seq}\nevent: job.state\ndata: {failed.model_dump_json()}\n\n".encode())

    def change() -> None:
        eventually(lambda: service.jobs, "the job is there")
        eventually(lambda: service.requests("GET", "/events"), "it is watched")
        service.change("shout", state=JobState.FAILED, failure=BROKEN)

    other = threading.Thread(target=change)
    other.start()
    run()  # in this thread: commands take signals
    other.join()
    assert before.seq == 1
    assert isinstance(found[0], errors.TopicMissing)


def test_logs(clonos: Clonos, service: FakeService) -> None:
    service.add("wordcount", JobState.FINISHED)
    assert clonos("job", "logs", "wordcount", "--tail", "2").stdout.split() == ["two", "three"]
    assert clonos("job", "logs", "-f", "wordcount").stdout.split() == ["one", "two", "three"]
    assert body(clonos("job", "logs", "wordcount", "-o", "json"))["lines"] == ["one", "two", "three"]


def test_checkpoints(clonos: Clonos) -> None:
    told = clonos("checkpoint", "ls", "wordcount").stdout
    assert "42 completed, 1 failed" in told
    assert "2.0 KiB" in told
    assert clonos("checkpoint", "ls", "wordcount", "-o", "name").stdout.split() == ["41", "40"]
    one = clonos("checkpoint", "inspect", "wordcount", "41").stdout
    assert "0: 10, 1: 12" in one
    assert "commit" in one
    with pytest.raises(errors.NotFound):
        clonos("checkpoint", "inspect", "wordcount", "99")


def test_a_recovery_in_words(clonos: Clonos, service: FakeService) -> None:
    service.recoveries += [recovery(), recovery(id="rec-0", generation=None, gap_ms=None, ended_at=None)]
    told = clonos("recovery", "explain", "wordcount").stdout
    for part in (
        "Generation 2, a new driver on host-2, took over",
        "120 records",
        "17 recorded answers",
        "3 lanes",
        "2.3 s",
    ):
        assert part in told, part
    assert "still goes on" in clonos("recovery", "explain", "wordcount", "rec-0").stdout
    assert "1 → 2" in clonos("recovery", "ls", "wordcount").stdout
    service.recoveries.clear()
    with pytest.raises(errors.NotFound, match="nothing to recover"):
        clonos("recovery", "explain", "wordcount")


def test_hosts(clonos: Clonos, service: FakeService) -> None:
    service.hosts.append(host())
    assert "spark 4.2.1" in clonos("host", "ls").stdout
    assert "host-1 is DRAINING" in clonos("host", "drain", "host-1").stdout


def test_tokens(clonos: Clonos, service: FakeService) -> None:
    made = clonos("token", "create", "ci", "--role", "operator", "--expires", "12h")
    assert made.stdout.strip() == "clonos_t1_new", "only the secret is on stdout"
    assert json.loads(service.requests("POST", "/tokens")[0][2])["expires_in_s"] == 43_200
    clonos("token", "create", "ci", "--role", "agent", "--agent", "host-1", "--expires", "never")
    assert json.loads(service.requests("POST", "/tokens")[1][2])["expires_in_s"] is None
    listed = clonos("token", "ls").output + clonos("token", "show").output
    assert "ada" in listed
    assert "secret" not in listed
    for wrong in (["--role", "king"], ["--role", "viewer", "--expires", "soon"]):
        with pytest.raises(errors.SpecError):
            clonos("token", "create", "ci", *wrong)


def test_events(clonos: Clonos, service: FakeService) -> None:
    for number in range(5):
        service.tell("job.state", "wordcount", number=number)
    lines = clonos("events", "--tail", "2", "-o", "json").stdout.splitlines()
    assert [json.loads(line)["seq"] for line in lines] == [4, 5]
    assert clonos("events").stdout.count("job.state") == 5
    asked = service.requests("GET", "/events/history")
    assert len(asked) == 2  # the newest ones only, whatever there is
    assert clonos("events", "--all").stdout.count("job.state") == 5
    assert clonos("events", "--tail", "0").stdout == ""
    service.events[-1] = service.events[-1].model_copy(update={"at": datetime.now(UTC)})
    assert clonos("events", "--since", "10m").stdout.count("job.state") == 1
    with pytest.raises(errors.SpecError):
        clonos("events", "--since", "yesterday")


def test_events_are_followed_from_the_end(clonos: Clonos, service: FakeService) -> None:
    """Of a long history nothing is read but what is shown."""
    for number in range(300):
        service.tell("job.state", "wordcount", number=number)
    new = Event(seq=301, at=datetime.now(UTC), type="job.deleted", job="wordcount", data={})
    service.streams.append(f"id: 301\nevent: job.deleted\ndata: {new.model_dump_json()}\n\n".encode())

    def interrupt() -> None:
        eventually(lambda: len(service.requests("GET", "/events")) > 1, "the stream ended, and is asked for again")
        os.kill(os.getpid(), signal.SIGTERM)  # SIGINT is ignored by what a shell starts in the background

    other = threading.Thread(target=interrupt)
    other.start()
    found = clonos("events", "-f", "--tail", "2", "-o", "json").stdout.splitlines()
    other.join()
    assert [json.loads(line)["seq"] for line in found] == [299, 300, 301]
    assert len(service.requests("GET", "/events/history")) == 1
    assert service.requests("GET", "/events")[0][1]["last-event-id"] == "300"


def test_standbys_that_are_over_are_shown_on_request(clonos: Clonos, service: FakeService) -> None:
    job = service.add("wordcount")
    common: dict[str, Any] = {"job": job.id, "mode": "dedicated", "since": NOW, "why_here": "least loaded"}
    service.standbys += [
        Standby(id="s1", agent="host-1", state="WARMING", **common),
        Standby(id="s2", agent="host-2", state="PROMOTED", **common),
        Standby(id="s3", agent="host-2", state="FAILED", **common),
    ]
    told = clonos("standby", "ls").stdout
    assert re.search("s1 +wordcount +host-1 .* WARMING .* least loaded", told)
    assert "s2" not in told
    assert clonos("standby", "ls", "-o", "name").stdout.split() == ["s1"]
    assert clonos("standby", "ls", "--all", "-o", "name").stdout.split() == ["s1", "s2", "s3"]


def test_validate_ends_with_one_if_options_are_not_usable(clonos: Clonos) -> None:
    assert clonos("connector", "validate", "sink", "kafka", "topic=t").exit_code == 0
    wrong = clonos("connector", "validate", "sink", "kafka", "topik=t", ok=False)
    assert wrong.exit_code == 1
    assert "topik: not known (leave it out)" in wrong.stdout


def test_a_token_that_is_not_valid_says_where_one_comes_from(clonos: Clonos) -> None:
    with pytest.raises(errors.Unauthenticated, match="CLONOS_TOKEN"):
        clonos("job", "ls", "--token", "wrong")


def test_a_wrong_command_line_is_two(clonos: Clonos) -> None:
    for wrong in (["job", "nope"], ["job", "ls", "-o", "xml"], ["job", "inspect"]):
        assert clonos(*wrong, ok=False).exit_code == 2


class TestCredentials:
    """Where the control plane is, and who we are."""

    def test_they_are_found_below_home(
        self, clonos: Clonos, service: FakeService, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("CLONOS_API")
        monkeypatch.delenv("CLONOS_TOKEN")
        file = Credentials(service.url, TOKEN).write(home)
        assert file.stat().st_mode & 0o777 == 0o600
        assert "ada" in clonos("token", "show").stdout
        file.chmod(0o640)
        with pytest.raises(errors.SpecError, match="other users"):
            clonos("token", "show")

    def test_a_token_goes_nowhere_but_where_it_is_from(self, home: Path) -> None:
        Credentials("http://a:1", "secret").write(home)
        assert resolve(home, None, None) == Credentials("http://a:1", "secret")
        assert resolve(home, "http://a:1/", None) == Credentials("http://a:1", "secret")
        assert resolve(home, "http://evil:1", None) == Credentials("http://evil:1", None)
        assert resolve(home, None, "mine") == Credentials("http://a:1", "mine")

    def test_none_are_none(self, home: Path) -> None:
        assert resolve(home, None, None) == Credentials("http://127.0.0.1:8484", None)

    @pytest.mark.parametrize("text", ["", "{}", "[]", "null"])
    def test_a_file_that_holds_something_else(self, home: Path, text: str) -> None:
        Credentials("http://a:1").write(home).write_text(text)
        with pytest.raises(errors.SpecError, match="not readable"):
            resolve(home, None, None)


def test_watching_on_a_terminal_draws_until_it_is_over(
    clonos: Clonos, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = io.StringIO()
    terminal = Console(file=drawn, force_terminal=True, width=120)
    monkeypatch.setattr(watching, "console", lambda: terminal)
    monkeypatch.setattr(watching, "_LOOK_S", 0.01)
    service.add("wordcount")

    def finish() -> None:
        eventually(lambda: len(service.requests("GET", "/jobs/wordcount")) > 0, "it is watched")
        # The control plane is away for a moment: the picture stays.
        service.faults.extend(problem(503, "store-away", "No database.") for _ in range(3))
        service.change("wordcount", state=JobState.FINISHED)

    other = threading.Thread(target=finish)
    other.start()
    result = clonos("job", "watch", "wordcount")
    other.join()
    assert result.exit_code == 0
    assert "\x1b[" in drawn.getvalue()
    assert "FINISHED" in drawn.getvalue().splitlines()[-1]
