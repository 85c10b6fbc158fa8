"""Commands against a fake control plane: their requests, output and exit codes."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import Result

from clonos import errors
from clonos.cli import host as host_commands
from clonos.cli import picture, progress
from clonos.cli.app import main
from clonos.cli.options import until_interrupted
from clonos.client.contexts import resolve
from clonos.client.credentials import Credentials
from clonos.jobs.spec import JobSpec, Standbys
from clonos.resources.hosts import Standby
from clonos.resources.jobs import Executor, Executors, Failure, JobException, JobState, QueryReturn
from clonos.resources.service import Event, Operation, Role, Session
from clonos.resources.status import Dependencies, Forecast, JobStatus
from clonos.settings import Settings
from clonos.testing.harness import eventually
from component.cli.conftest import Clonos
from component.cli.service import NOW, TOKEN, FakeService, host, problem, recovery, savepoint

COUNT = 'import clonos\n\n@clonos.job(name="wordcount")\ndef count(ctx):\n    pass\n'
JOB = '@clonos.job(name="shout")\ndef shout(ctx):\n    pass\n'
BROKEN = Failure(error="topic-missing", what="The topic 'lines' does not exist.", kept="all.", hint="create it.")


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A folder with the code of the job wordcount."""
    (tmp_path / "job.py").write_text(COUNT)
    return tmp_path


@contextmanager
def beside(action: Callable[[], None]) -> Iterator[None]:
    """Runs `action` in a thread, because commands install signal handlers in the main one."""
    thread = threading.Thread(target=action)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def body(result: Result) -> dict[str, object]:
    parsed: dict[str, object] = json.loads(result.stdout)
    return parsed


def test_job_ls_prints_a_table_json_and_names(clonos: Clonos, service: FakeService) -> None:
    service.add("wordcount", failure=BROKEN, restarts=3)
    service.add("orders", JobState.STOPPED)
    table = clonos("job", "ls").stdout
    assert "wordcount" in table
    assert "topic-missing" in table
    assert "\x1b" not in table, "plain text outside a terminal"
    assert clonos("job", "ls", "-o", "name").stdout.split() == ["wordcount", "orders"]
    assert clonos("job", "ls", "--state", "stopped", "-o", "name").stdout.split() == ["orders"]
    page = body(clonos("job", "ls", "-o", "json"))
    assert page["has_more"] is False
    assert page["data"][0]["failure"]["error"] == "topic-missing"  # type: ignore[index]


def test_an_empty_list_prints_a_message_on_stderr(clonos: Clonos) -> None:
    result = clonos("savepoint", "ls")
    assert result.stdout == ""
    assert "There are no savepoints." in result.stderr
    assert clonos("savepoint", "ls", "-o", "name").output == ""


HOSTILE = "\x1b]0;PWNED\x07\x1b[2J\x9b31m[/x] [bold]b"


@pytest.mark.parametrize("command", ["job exceptions wordcount", "job inspect wordcount", "host ls", "job ls -o json"])
def test_text_of_the_server_is_neither_markup_nor_executed(clonos: Clonos, service: FakeService, command: str) -> None:
    """An error text with brackets ended the command with a traceback; a control sequence reached the terminal."""
    service.add("wordcount", generation=2, host="host-2")
    failure = BROKEN.model_copy(update={"what": f"It broke: {HOSTILE}", "hint": HOSTILE})
    service.exceptions.append(JobException(seq=1, at=NOW, generation=1, failure=failure))
    service.hosts.append(host().model_copy(update={"failure_domain": HOSTILE, "versions": {"spark": HOSTILE}}))
    result = clonos(*command.split())
    assert result.exit_code == 0
    assert not {"\x1b", "\x07", "\x9b"} & set(result.output)
    assert "[/x] [bold]b" in result.output or command in ("job ls -o json", "job inspect wordcount")


def test_a_token_that_never_expires_does_not_read_as_revoked(clonos: Clonos) -> None:
    printed = clonos("token", "show").stdout
    assert "without an expiry" in printed
    assert "revoked" not in printed


def test_an_error_of_the_server_is_printed_as_text(
    service: FakeService, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["clonos", "job", "inspect", "wordcount"])

    def refuse() -> None:
        raise errors.SpecError(f"No: {HOSTILE}")

    monkeypatch.setattr("clonos.cli.app.app", refuse)
    with pytest.raises(SystemExit):
        main()
    printed = capsys.readouterr().err
    assert "No: \ufffd]0;PWNED" in printed or "No: \ufffd31m" in printed
    assert not {"\x1b", "\x07", "\x9b"} & set(printed)


def test_inspect_shows_state_recovery_and_error(clonos: Clonos, service: FakeService) -> None:
    service.add("wordcount", generation=2, host="host-2")
    service.recoveries.append(recovery())
    service.exceptions.append(JobException(seq=1, at=NOW, generation=1, failure=BROKEN))
    output = clonos("job", "inspect", "wordcount").stdout
    for part in (
        "RUNNING",
        "host-2, process 4711",
        "crash",
        "downtime 2.3 s",
        "host-1 → host-2",
        "7 records",
        "topic-missing",
    ):
        assert part in output, part
    assert "What to do: create it." in output
    assert "words runs in epochs: it has the operator Aggregate" in output
    whole = body(clonos("job", "inspect", "wordcount", "-o", "json"))
    assert set(whole) == {"job", "metrics", "run", "generation", "recovery", "error", "cluster"}
    assert whole["recovery"]["downtime_ms"] == 2345.0  # type: ignore[index]


def test_inspect_shows_the_executors_of_a_cluster_job(clonos: Clonos, service: FakeService) -> None:
    service.add("wordcount")
    listed = [Executor(id="7", host="[fd00::1]", cores=2, stderr="http://[fd00::1]:8081/logPage/?x=1")]
    executors = Executors(wanted=3, registered=2, listed=listed)
    service.application = {"cluster": "east", "application_id": "app-1", "executors": executors}
    output = clonos("job", "inspect", "wordcount").stdout
    for part in ("app-1", "2 of 3 registered", "7 on [fd00::1], 2 cores", "http://[fd00::1]:8081/logPage/?x=1"):
        assert part in output, part
    assert "1 more are not listed" in output
    shown: Any = body(clonos("job", "inspect", "wordcount", "-o", "json"))
    assert shown["run"]["executors"]["listed"][0]["stderr"] == listed[0].stderr


def test_inspect_proposes_a_restart_only_for_a_driver_that_stays_at_its_version(
    clonos: Clonos, service: FakeService
) -> None:
    job = service.add("wordcount", version=3, observed_version=2)
    assert "update it with `clonos job restart wordcount`" in " ".join(
        clonos("job", "inspect", "wordcount").stdout.split()
    )
    service.change(job.id, state=JobState.STARTING)
    starting = " ".join(clonos("job", "inspect", "wordcount").stdout.split())
    assert "(the driver runs 2)" in starting
    assert "restart wordcount" not in starting


def test_inspect_shows_a_job_that_never_ran(clonos: Clonos, service: FakeService) -> None:
    service.add("wordcount", JobState.CREATED, generation=0, run=None, host=None)
    output = clonos("job", "inspect", "wordcount").stdout
    assert "none yet" in output
    assert "no host" in output


def test_stop_restart_cancel_and_rm_wait_for_the_operation(clonos: Clonos, service: FakeService) -> None:
    service.add("wordcount")
    assert "wordcount is STOPPED" in clonos("job", "stop", "wordcount", "--mode", "checkpoint").stdout
    ((_, _, sent),) = service.requests("POST", "/jobs/wordcount/stop")
    assert json.loads(sent) == {"mode": "checkpoint", "timeout_s": 60.0}
    assert body(clonos("job", "restart", "wordcount", "-o", "json"))["state"] == "COMPLETED"
    assert body(clonos("job", "cancel", "wordcount", "--no-wait", "-o", "json"))["state"] == "IN_PROGRESS"
    assert "deleted" in clonos("job", "rm", "wordcount").stdout
    with pytest.raises(errors.SpecError, match="--mode fast"):
        clonos("job", "stop", "wordcount", "--mode", "fast")


def test_status_shows_what_needs_attention(clonos: Clonos, service: FakeService) -> None:
    assert "healthy No running job" in clonos("status", "--check").stdout
    forecast = Forecast(warm=False, host="host-2", estimate_s=12.0, ready_in_s=35.0)
    row = JobStatus(id="1", name="fraud", state="RUNNING", health="failing", reasons=["it waits"], forecast=forecast)
    seen = Dependencies(brokers=3, silent=["fraud"], waiting=[], under_replicated=0, open_transactions=0)
    changed = {"health": "failing", "summary": "fraud: no output for 4.2 s.", "jobs": [row], "dependencies": seen}
    service.status = service.status.model_copy(update=changed)
    shown = " ".join(clonos("status").stdout.split())
    assert "failing fraud: no output for 4.2 s." in shown
    assert "cold restart about 12 s (warming up on host-2, READY in about 35 s) it waits" in shown
    assert "Kafka does not answer the drivers of fraud." in shown
    assert body(clonos("status", "-o", "json"))["health"] == "failing"
    assert clonos("status").exit_code == 0
    assert clonos("status", "--check").exit_code == 1


def test_pause_and_resume(clonos: Clonos, service: FakeService) -> None:
    service.add("wordcount")
    assert "wordcount is STOPPED" in clonos("job", "pause", "wordcount").stdout
    assert "wordcount is RUNNING" in clonos("job", "resume", "wordcount").stdout


def test_promote_moves_the_job_to_a_ready_standby(clonos: Clonos, service: FakeService) -> None:
    service.add("wordcount")
    with pytest.raises(errors.StateConflict, match="no READY standby"):
        clonos("standby", "promote", "wordcount")
    common: dict[str, Any] = {"job": "wordcount", "mode": "dedicated", "since": NOW, "placement_reason": "far"}
    service.standbys.append(Standby(id="s1", host="host-3", state="READY", **common))
    clonos("standby", "promote", "wordcount")
    ((_, _, sent),) = service.requests("POST", "/jobs/wordcount/move")
    assert json.loads(sent)["to"] == "host-3"
    with pytest.raises(errors.StateConflict, match="on host-4"):
        clonos("standby", "promote", "wordcount", "--host", "host-4")


def test_move_and_upgrade_send_their_options(clonos: Clonos, service: FakeService, code: Path) -> None:
    job = service.add("wordcount")
    assert body(clonos("job", "move", "wordcount", "--to", "host-2", "-o", "json"))["kind"] == "move"
    ((_, _, sent),) = service.requests("POST", "/jobs/wordcount/move")
    assert json.loads(sent) == {"to": "host-2", "timeout_s": 180.0}
    clonos("job", "upgrade", "wordcount", str(code), "--timeout", "9")
    ((_, _, sent),) = service.requests("POST", "/jobs/wordcount/upgrade")
    assert json.loads(sent)["timeout_s"] == 9.0
    assert service.jobs[job.id].version == 2
    methods = [(method, path.split("/")[3]) for method, path, *_ in service.received if method != "GET"]
    assert methods[-2:] == [("POST", "artifacts"), ("POST", "jobs")]
    with pytest.raises(errors.SpecError, match="PATH"):
        clonos("job", "upgrade", "wordcount", "-p", "a=b")


def test_rescale_changes_only_the_number_of_partitions(clonos: Clonos, service: FakeService) -> None:
    conf = {"spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC"}
    spec = {"metadata": {"name": "wordcount"}, "spec": {"sparkConf": conf, "params": {"a": "b"}}}
    service.add("wordcount", spec=spec)
    clonos("job", "rescale", "wordcount", "--partitions", "8", "--timeout", "9")
    ((_, _, sent),) = service.requests("POST", "/jobs/wordcount/upgrade")
    assert json.loads(sent)["timeout_s"] == 9.0
    changed = JobSpec.model_validate(json.loads(sent)["spec"])
    assert changed.spec.shuffle_partitions == 8
    assert changed.spec.spark_conf == {"spark.sql.session.timeZone": "UTC"}
    assert changed.spec.params == {"a": "b"}
    stopped = service.add("stopped", JobState.STOPPED)
    with pytest.raises(errors.StateConflict):
        clonos("job", "rescale", "stopped", "--partitions", "8")
    assert service.jobs[stopped.id].version == 1


def test_a_refused_upgrade_stores_nothing(clonos: Clonos, service: FakeService, code: Path) -> None:
    job = service.add("wordcount", JobState.FAILED)
    for arguments in ([str(code)], []):
        with pytest.raises(errors.StateConflict) as refused:
            clonos("job", "upgrade", "wordcount", *arguments)
        assert refused.value.kept == "nothing was changed."
    assert service.jobs[job.id].version == 1


@pytest.mark.parametrize(
    ("state", "calls"),
    [
        (JobState.RUNNING, ["upgrade"]),
        (JobState.FAILED, ["PATCH", "start"]),
        (JobState.STOPPED, ["PATCH", "start"]),
        (JobState.CREATED, ["PATCH", "start"]),
        (JobState.STARTING, ["PATCH", "restart"]),
        (JobState.RECOVERING, ["PATCH", "restart"]),
    ],
)
def test_apply_does_what_the_state_needs(
    clonos: Clonos, service: FakeService, code: Path, state: JobState, calls: list[str]
) -> None:
    job = service.add("wordcount", state)
    assert "wordcount is RUNNING" in clonos("apply", str(code)).stdout
    changes = [path.rpartition("/")[2] if method == "POST" else method for method, path, *_ in service.received]
    assert [call for call in changes if call in ("PATCH", "upgrade", "start", "restart")] == calls
    assert service.jobs[job.id].version == 2
    assert service.jobs[job.id].state == "RUNNING"
    service.received.clear()
    service.change(job.id, observed_version=2)
    assert "unchanged" in clonos("apply", str(code)).stdout
    assert service.jobs[job.id].version == 2


def test_apply_creates_a_job_and_refuses_one_that_cannot_run(clonos: Clonos, service: FakeService, code: Path) -> None:
    service.started = JobState.RUNNING
    assert "wordcount is created" in clonos("apply", str(code)).stdout
    (job,) = service.jobs.values()
    for state in (JobState.CANCELED, JobState.CANCELLING, JobState.STOPPING):
        service.change(job.id, state=state)
        with pytest.raises(errors.StateConflict) as refused:
            clonos("apply", str(code))
        assert ("job rm" in refused.value.hint) is (state != JobState.STOPPING)
    assert service.jobs[job.id].version == 1
    service.change(job.id, state=JobState.STOPPED)
    assert "clonos job start wordcount" in clonos("apply", str(code), "--no-start").stdout


def test_code_that_is_too_large_names_its_largest_files(clonos: Clonos, service: FakeService, code: Path) -> None:
    (code / "model.bin").write_bytes(b"x" * 5000)
    service.faults.append(problem(413, "request-too-large", "The body exceeds the limit of 100 bytes."))
    with pytest.raises(errors.RequestTooLarge, match="exceeds the limit of 100 bytes") as refused:
        clonos("submit", str(code))
    assert "The largest files: model.bin (4.9 KiB), job.py" in refused.value.what
    assert ".clonosignore" in refused.value.hint


@pytest.mark.parametrize("command", [["submit"], ["apply"], ["job", "upgrade", "wordcount"]])
def test_code_that_a_replay_contradicts_is_refused(
    clonos: Clonos, service: FakeService, tmp_path: Path, command: list[str]
) -> None:
    if command[0] != "submit":
        service.add("wordcount")
    raw = "import time\nfrom pyspark.sql import functions as F\n" + COUNT.replace(
        "    pass", '    ctx.sink(ctx.source("in").select(F.udf(lambda _: time.time())("value")), topic="out")'
    )
    (tmp_path / "job.py").write_text(raw)
    with pytest.raises(errors.CodeNotRepeatable, match="1 error"):
        clonos(*command, str(tmp_path))
    assert not service.requests("POST", "/artifacts")
    clonos(*command, str(tmp_path), "--allow-lint")
    assert service.requests("POST", "/artifacts")


def test_upgrade_preserves_the_standbys_unless_the_specification_sets_them(
    clonos: Clonos, service: FakeService, code: Path
) -> None:
    """``clonos submit --standbys`` leaves no trace in a file."""
    spec = {"metadata": {"name": "wordcount"}, "spec": {"standby": {"replicas": 2, "selfPromoteAfter": "9s"}}}
    job = service.add("wordcount", spec=spec)

    def upgraded() -> Standbys:
        clonos("job", "upgrade", "wordcount", str(code))
        *_, (_, _, sent) = service.requests("POST", "/jobs/wordcount/upgrade")
        return JobSpec.model_validate(json.loads(sent)["spec"]).spec.standby

    assert upgraded() == Standbys(replicas=2, selfPromoteAfter="9s")
    yaml = (
        "apiVersion: clonos/v1\nkind: Job\nmetadata: {name: wordcount}\nspec: {main: job.py, standby: {replicas: 0}}\n"
    )
    (code / "job.yaml").write_text(yaml)
    assert upgraded() == Standbys()
    service.change(job.id, spec=JobSpec.model_validate(spec))
    (code / "job.yaml").write_text(yaml.replace("{replicas: 0}", "{selfPromoteAfter: 15s}"))
    assert upgraded() == Standbys(replicas=2, selfPromoteAfter="15s")


def test_a_failed_operation_raises_its_error(clonos: Clonos, service: FakeService) -> None:
    service.add("wordcount")
    service.failing = BROKEN
    with pytest.raises(errors.TopicMissing, match="does not exist"):
        clonos("job", "start", "wordcount")


def test_start_from_a_savepoint_or_an_epoch(clonos: Clonos, service: FakeService) -> None:
    service.add("wordcount", JobState.STOPPED)
    service.savepoints += [savepoint("before"), savepoint("twin"), savepoint("twin", id="sp-other")]
    for text, sent in {
        "41": {"epoch": 41, "publish_again": False},
        "before": {"savepoint": "sp-before", "publish_again": False},
        "sp-other": {"savepoint": "sp-other", "publish_again": False},
    }.items():
        clonos("job", "start", "wordcount", "--from", text)
        assert json.loads(service.requests("POST", "/jobs/wordcount/start")[-1][2]) == sent
    for text, message in {"nope": "no savepoint", "twin": "2 savepoints"}.items():
        with pytest.raises(errors.NotFound, match=message):
            clonos("job", "start", "wordcount", "--from", text)
    with pytest.raises(errors.SpecError, match="needs --from"):
        clonos("job", "start", "wordcount", "--publish-again")


@pytest.mark.parametrize(
    ("options", "decision"),
    [
        (["--keep"], {"decision": "keep", "topic": None}),
        (["--republish"], {"decision": "republish", "topic": None}),
        (["--dead-letter", "suspect"], {"decision": "dead-letter", "topic": "suspect"}),
        (["--new-code"], {"decision": "new-code", "topic": None}),
    ],
)
def test_a_decision_about_an_epoch_in_doubt(
    clonos: Clonos, service: FakeService, options: list[str], decision: dict[str, object]
) -> None:
    service.add("wordcount", JobState.FAILED)
    answer = clonos("job", "resolve", "wordcount", "--query", "counts", "--epoch", "12", *options, "--yes")
    assert (
        json.loads(service.requests("POST", "/jobs/wordcount/resolve")[-1][2])
        == {
            "query": "counts",
            "epoch": 12,
        }
        | decision
    )
    assert "wordcount is RUNNING" in answer.stdout


def test_new_code_is_accepted_for_all_epochs_in_doubt(clonos: Clonos, service: FakeService) -> None:
    service.add("wordcount", JobState.FAILED)
    assert "wordcount is RUNNING" in clonos("job", "resolve", "wordcount", "--new-code", "--yes").stdout
    sent = json.loads(service.requests("POST", "/jobs/wordcount/resolve")[-1][2])
    assert sent == {"query": None, "epoch": None, "decision": "new-code", "topic": None}
    for options in (["--keep"], ["--new-code", "--query", "out"]):
        with pytest.raises(errors.SpecError, match="names no epoch"):
            clonos("job", "resolve", "wordcount", *options, "--yes")


def test_apply_with_new_code_accepts_it_for_the_epochs_in_doubt(
    clonos: Clonos, service: FakeService, code: Path
) -> None:
    service.add("wordcount", JobState.FAILED)
    later = clonos("apply", str(code), "--no-start").stdout
    assert "clonos job start wordcount" in later
    assert "--new-code" not in later, "the version that planned an epoch in doubt finishes it"
    assert "wordcount is RUNNING" in clonos("apply", str(code), "--new-code").stdout
    sent = json.loads(service.requests("POST", "/jobs/wordcount/resolve")[-1][2])
    assert sent == {"decision": "new-code"}


@pytest.mark.parametrize(
    "command", [["job", "start", "wordcount"], ["job", "resolve", "wordcount", "--new-code", "--yes"], ["apply"]]
)
def test_a_start_fails_if_the_job_fails_before_its_first_epoch(
    clonos: Clonos, service: FakeService, code: Path, command: list[str]
) -> None:
    service.add("wordcount", JobState.FAILED)
    hint = "accept it: `clonos job resolve wordcount --new-code`."
    service.first_epoch = Failure(error="checkpoint-mismatch", what="The job's code changed.", hint=hint)
    with pytest.raises(errors.CheckpointMismatch, match="code changed"):
        clonos(*command, *([str(code)] if command == ["apply"] else []))


@pytest.mark.parametrize("command", [["submit"], ["submit", "--wait"], ["apply"]])
def test_without_a_host_the_cause_follows_at_once(
    clonos: Clonos, service: FakeService, code: Path, command: list[str]
) -> None:
    service.hosts = []
    service.unplaced = Failure(error="no-host", what="No host is registered.", hint="start an agent.", retry=True)
    with pytest.raises(errors.NoHost, match="No host is registered") as refused:
        clonos(command[0], str(code), *command[1:])
    assert "starts as soon as a host accepts it" in refused.value.kept
    assert service.requests("POST", "/jobs"), "the job is stored"


def test_a_start_without_an_epoch_is_not_a_success(
    clonos: Clonos, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_WORKS_S", 0.2)
    monkeypatch.setattr(progress, "_FIRST_S", 0.1)
    service.add("wordcount", JobState.FAILED)
    service.awaited = ["words"]
    with pytest.raises(errors.WaitTimeout, match="has not finished an epoch of words"):
        clonos("job", "start", "wordcount")
    service.awaited = ["never-published"]
    service.change("wordcount", state=JobState.FAILED)
    assert "had no input yet, or computes its first epoch" in clonos("job", "start", "wordcount").stderr


@pytest.mark.parametrize("options", [[], ["--keep", "--republish"]])
def test_a_resolution_needs_one_decision(clonos: Clonos, service: FakeService, options: list[str]) -> None:
    service.add("wordcount", JobState.FAILED)
    with pytest.raises(errors.SpecError, match="exactly one decision"):
        clonos("job", "resolve", "wordcount", "--epoch", "12", *options, "--yes")
    assert not service.requests("POST", "/jobs/wordcount/resolve")


def test_submit_uploads_and_creates(clonos: Clonos, service: FakeService, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    options = ("-p", "a=b", "--name", "loud", "--standbys", "2")
    created = body(clonos("submit", str(tmp_path / "job.py"), *options, "-o", "json"))
    (content,) = service.uploads.values()
    assert content == JOB.encode()
    assert created["artifact"] in service.uploads
    assert created["name"] == "loud"
    assert created["spec"]["spec"]["params"] == {"a": "b"}  # type: ignore[index]
    assert created["spec"]["spec"]["standby"]["replicas"] == 2  # type: ignore[index]
    with pytest.raises(errors.NameTaken):
        clonos("submit", str(tmp_path / "job.py"), "--name", "loud")


def test_submit_and_apply_wait_until_the_job_runs(clonos: Clonos, service: FakeService, code: Path) -> None:
    service.started = JobState.RUNNING
    assert "wordcount is RUNNING on host-1." in clonos("submit", str(code), "--wait").stdout
    waited = body(clonos("submit", str(code), "--wait", "--name", "second", "-o", "json"))
    assert waited["state"] == "RUNNING"
    assert "Watch it" in clonos("apply", str(code), "--name", "third", "--no-wait").stdout
    service.started, service.failing = JobState.FAILED, BROKEN
    for number, command in enumerate((["submit", "--wait"], ["apply"])):
        with pytest.raises(errors.TopicMissing):
            clonos(command[0], str(code), *command[1:], "--name", f"wrong-{number}")


def test_a_long_operation_shows_its_progress_on_stderr(
    clonos: Clonos, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_AFTER_S", 0.0)
    job = service.add("wordcount")
    for number in range(3):
        ended = Operation(
            id=f"o{number}",
            kind="stop",
            job=job.id,
            state="COMPLETED",
            created_at=NOW,
            deadline=NOW,
            ended_at=NOW + timedelta(seconds=40),
        )
        service.operations[ended.id] = ended
    service.slow = 3
    result = clonos("job", "stop", "wordcount")
    assert re.fullmatch(r"stop of wordcount: STOPPED on host-1, \d+ s, about \d+ s left\n", result.stderr)
    for quiet in (["--quiet"], ["-o", "json"]):
        service.slow = 3
        assert clonos("job", "stop", "wordcount", *quiet).stderr == ""


def test_the_start_of_a_job_has_an_estimate_from_earlier_starts(
    clonos: Clonos, service: FakeService, monkeypatch: pytest.MonkeyPatch, code: Path
) -> None:
    monkeypatch.setattr(progress, "_AFTER_S", 0.0)
    for to, second in (("STARTING", 0), ("RUNNING", 30), ("STARTING", 100), ("RUNNING", 120)):
        event = service.add_event("job.state", "other", to=to)
        service.events[-1] = event.model_copy(update={"at": NOW + timedelta(seconds=second)})
    service.started = JobState.RUNNING
    result = clonos("submit", str(code), "--wait")
    assert re.fullmatch(r"start of wordcount: RUNNING on host-1, \d+ s, about \d+ s left\n", result.stderr)


def test_standby_wait(clonos: Clonos, service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_AFTER_S", 0.0)
    monkeypatch.setattr(host_commands, "_POLL_S", 0.01)
    job = service.add("none")
    with pytest.raises(errors.StateConflict, match="none asks for no standby"):
        clonos("standby", "wait", "none")
    for mode in ("none", "pool"):
        declined = {"metadata": {"name": mode}, "spec": {"standby": {"replicas": 1, "mode": mode}}}
        service.add(f"job-{mode}", spec=JobSpec.model_validate(declined))
        with pytest.raises(errors.StateConflict, match=rf"asks for no standby \(standby.mode is {mode}\)"):
            clonos("standby", "wait", f"job-{mode}")
    spec = {"metadata": {"name": "wordcount"}, "spec": {"standby": {"replicas": 1}}}
    job = service.add("wordcount", spec=JobSpec.model_validate(spec))
    with pytest.raises(errors.WaitTimeout):
        clonos("standby", "wait", "wordcount", "--timeout", "0.1")
    common: dict[str, Any] = {"job": "wordcount", "mode": "dedicated", "since": NOW, "placement_reason": "far"}
    service.standbys.append(Standby(id="s1", host="host-3", state="WARMING", **common))
    forecast = Forecast(warm=False, host="host-3", ready_in_s=35.0)
    row = JobStatus(id=job.id, name="wordcount", state="RUNNING", health="degraded", reasons=[], forecast=forecast)
    service.status = service.status.model_copy(update={"jobs": [row]})

    def ready() -> None:
        eventually(lambda: service.requests("GET", "/status"), "the estimate is requested")
        service.standbys[0] = Standby(id="s1", host="host-3", state="READY", **common)

    with beside(ready):
        result = clonos("standby", "wait", "wordcount")
    assert result.stdout == "A standby of wordcount is READY on host-3.\n"
    assert re.search(r"standby of wordcount: WARMING on host-3, \d+ s, about 35 s left\n", result.stderr)


def test_submit_watch_follows_events_until_the_job_fails(clonos: Clonos, service: FakeService, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    # The stream starts only after the earlier events are read.
    service.streams.append(b"")
    before = service.add_event("job.created", "other")
    service.add_event("job.state", "shout", to="RUNNING")
    failed = service.add_event("job.state", "shout", to="FAILED")
    service.streams.append(f"id: {failed.seq}\nevent: job.state\ndata: {failed.model_dump_json()}\n\n".encode())

    def change() -> None:
        eventually(lambda: service.jobs, "the job exists")
        eventually(lambda: service.requests("GET", "/events"), "the job is watched")
        service.change("shout", state=JobState.FAILED, failure=BROKEN)

    with beside(change), pytest.raises(errors.TopicMissing):
        clonos("submit", str(tmp_path / "job.py"), "--watch")
    assert before.seq == 1


def test_an_interrupted_watch_prints_the_current_state(clonos: Clonos, service: FakeService) -> None:
    service.add("wordcount", JobState.CREATED)

    def interrupt() -> None:
        eventually(lambda: service.requests("GET", "/events"), "the job is watched")
        service.change("wordcount", state=JobState.RUNNING)
        os.kill(os.getpid(), signal.SIGTERM)

    with beside(interrupt):
        result = clonos("job", "watch", "wordcount")
    assert result.stdout.splitlines()[-1] == "wordcount is RUNNING."


def test_checkpoint_ls_and_inspect(clonos: Clonos) -> None:
    output = clonos("checkpoint", "ls", "wordcount").stdout
    assert "42 completed, 1 failed" in output
    assert "2.0 KiB" in output
    assert "live, 7 steps" in output
    assert clonos("checkpoint", "ls", "wordcount", "-o", "name").stdout.split() == ["41", "40"]
    shown = clonos("checkpoint", "inspect", "wordcount", "41").stdout
    assert "0: 10, 1: 12" in shown
    assert "commit" in shown
    with pytest.raises(errors.NotFound):
        clonos("checkpoint", "inspect", "wordcount", "99")


def test_recovery_explain_and_ls(clonos: Clonos, service: FakeService) -> None:
    running = recovery(id="rec-0", generation=None, downtime_ms=None, ended_at=None, outcome=None)
    returned = {"totals": QueryReturn(at=NOW, downtime_ms=2300.0), "words": QueryReturn(at=NOW)}
    service.recoveries += [recovery(returned=returned), running]
    output = clonos("recovery", "explain", "wordcount").stdout
    for part in (
        "Downtime by query: totals 2.3 s, words no input",
        "wordcount: the driver on host-1 crashed; a new driver on host-2 took over; no output for 2.3 s; ",
        "nothing was lost.",
        "generation 1 → 2",
        "detect",
        "Lost: nothing was lost.",
        "The epoch in doubt (120 records) was replayed with 17 recorded determinants.",
        "3 lanes of it were already published",
        "Compared: The job's only earlier cold restart took 1.0 s. This one took 2.3 s: the longest of 2.",
    ):
        assert part in output, part
    assert "In progress" in clonos("recovery", "explain", "wordcount", "rec-0").stdout
    markdown = clonos("recovery", "explain", "wordcount", "--markdown").stdout
    assert markdown.startswith("# wordcount: recovery at ")
    assert "## Timeline (UTC)" in markdown
    assert json.loads(clonos("recovery", "explain", "wordcount", "-o", "json").stdout)["loss"]["records"] == 0
    assert "1 → 2" in clonos("recovery", "ls", "wordcount").stdout
    everywhere = clonos("recovery", "ls").stdout
    assert "1 → 2" in everywhere
    assert "words" in everywhere
    service.recoveries.clear()
    with pytest.raises(errors.NotFound, match="no recoveries"):
        clonos("recovery", "explain", "wordcount")


def test_host_ls_and_drain(clonos: Clonos, service: FakeService) -> None:
    service.hosts.append(host())
    assert "spark 4.2.1" in clonos("host", "ls").stdout
    assert "host-1 is DRAINING" in clonos("host", "drain", "host-1").stdout


def test_token_commands_print_the_secret_once(clonos: Clonos, service: FakeService) -> None:
    created = clonos("token", "create", "ci", "--role", "operator", "--expires", "12h")
    assert created.stdout.strip() == "clonos_t1_new", "only the secret is on stdout"
    assert json.loads(service.requests("POST", "/tokens")[0][2])["expires_in_s"] == 43_200
    clonos("token", "create", "ci", "--role", "agent", "--host", "host-1", "--expires", "never")
    assert json.loads(service.requests("POST", "/tokens")[1][2])["expires_in_s"] is None
    listed = clonos("token", "ls").output + clonos("token", "show").output
    assert "ada" in listed
    assert "secret" not in listed
    for wrong in (["--role", "king"], ["--role", "viewer", "--expires", "soon"]):
        with pytest.raises(errors.SpecError):
            clonos("token", "create", "ci", *wrong)


def test_session_commands(clonos: Clonos, service: FakeService) -> None:
    for id, subject in (("s1", "ada"), ("s2", "bob")):
        row = Session(
            id=id,
            subject=subject,
            role=Role.VIEWER,
            session_of="oidc",
            created_at=NOW,
            expires_at=NOW,
            last_used_at=NOW,
        )
        service.sessions.append(row)
    assert clonos("session", "ls", "--subject", "bob", "-o", "name").stdout == "s2\n"
    assert "oidc" in clonos("session", "ls").stdout
    listed = json.loads(clonos("session", "ls", "-o", "json").stdout)
    assert [row["subject"] for row in listed["data"]] == ["ada", "bob"]
    assert clonos("session", "revoke", "s1", "s2").stdout == "s1 is ended.\ns2 is ended.\n"
    assert len(service.requests("DELETE", "/sessions/s1")) == 1
    assert "Ended sessions of ada: 1" in clonos("session", "revoke", "--subject", "ada").stdout
    for wrong in ([], ["s1", "--subject", "ada"]):
        with pytest.raises(errors.SpecError, match="either sessions or a subject"):
            clonos("session", "revoke", *wrong)


def test_events_selects_the_newest_events(clonos: Clonos, service: FakeService) -> None:
    for _ in range(5):
        service.add_event("job.state", "wordcount", **{"from": "STARTING", "to": "RUNNING"})
    lines = clonos("events", "--tail", "2", "-o", "json").stdout.splitlines()
    assert [json.loads(line)["seq"] for line in lines] == [4, 5]
    shown = clonos("events").stdout
    assert shown.count("job.state") == shown.count("wordcount changed from STARTING to RUNNING") == 5
    history = service.requests("GET", "/events/history")
    assert len(history) == 2  # only the newest page
    assert clonos("events", "--all").stdout.count("job.state") == 5
    assert clonos("events", "--tail", "0").stdout == ""
    service.events[-1] = service.events[-1].model_copy(update={"at": datetime.now(UTC)})
    assert clonos("events", "--since", "10m").stdout.count("job.state") == 1
    with pytest.raises(errors.SpecError):
        clonos("events", "--since", "yesterday")


def test_events_follow_starts_at_the_newest_event(clonos: Clonos, service: FakeService) -> None:
    """Only the shown events of a long history are read."""
    for number in range(300):
        service.add_event("job.state", "wordcount", number=number)
    new = Event(seq=301, at=datetime.now(UTC), type="job.deleted", job="wordcount", data={})
    service.streams.append(f"id: 301\nevent: job.deleted\ndata: {new.model_dump_json()}\n\n".encode())

    def interrupt() -> None:
        eventually(lambda: len(service.requests("GET", "/events")) > 1, "the stream ended and is requested again")
        os.kill(os.getpid(), signal.SIGTERM)  # a background process of a shell ignores SIGINT

    with beside(interrupt):
        lines = clonos("events", "-f", "--tail", "2", "-o", "json").stdout.splitlines()
    assert [json.loads(line)["seq"] for line in lines] == [299, 300, 301]
    assert len(service.requests("GET", "/events/history")) == 1
    assert service.requests("GET", "/events")[0][1]["last-event-id"] == "300"


def test_an_interrupt_is_not_lost_in_a_destructor() -> None:
    class Interrupted:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            os.getpid()  # the handler runs before this call, and Python drops what it raises here

    waited = threading.Event()
    with until_interrupted():
        Interrupted()
        waited.wait(30)
        waited.set()
    assert not waited.is_set(), "the interrupt ended the wait"


def test_an_empty_standby_ls_says_why(clonos: Clonos, service: FakeService) -> None:
    assert clonos("standby", "ls").stderr == "There are no standbys.\n"
    spec = {"metadata": {"name": "wordcount"}, "spec": {"standby": {"replicas": 1}}}
    service.add("wordcount", JobState.STARTING, spec=JobSpec.model_validate(spec))
    service.add("orders")
    lines = clonos("standby", "ls").stderr.splitlines()
    assert lines == [
        "There are no standbys.",
        "wordcount asks for 1 standby, placed once its driver runs: it is STARTING.",
    ]
    assert clonos("standby", "ls", "--job", "orders").stderr == "orders asks for no standby.\n"
    service.change("wordcount", state=JobState.RUNNING)
    assert "clonos host ls" in clonos("standby", "ls", "--job", "wordcount").stderr
    assert clonos("standby", "ls", "-o", "name").output == ""


def test_standby_ls_hides_ended_standbys_without_all(clonos: Clonos, service: FakeService) -> None:
    job = service.add("wordcount")
    common: dict[str, Any] = {"job": job.id, "mode": "dedicated", "since": NOW, "placement_reason": "least loaded"}
    service.standbys += [
        Standby(id="s1", host="host-1", state="WARMING", **common),
        Standby(id="s2", host="host-2", state="PROMOTED", **common),
        Standby(id="s3", host="host-2", state="FAILED", **common),
    ]
    output = clonos("standby", "ls").stdout
    assert re.search("s1 +wordcount +host-1 .* WARMING .* least loaded", output)
    assert "s2" not in output
    assert clonos("standby", "ls", "-o", "name").stdout.split() == ["s1"]
    assert clonos("standby", "ls", "--all", "-o", "name").stdout.split() == ["s1", "s2", "s3"]


def test_connector_validate_exits_with_1_for_invalid_options(clonos: Clonos) -> None:
    assert clonos("connector", "validate", "sink", "kafka", "topic=t").exit_code == 0
    wrong = clonos("connector", "validate", "sink", "kafka", "topik=t", ok=False)
    assert wrong.exit_code == 1
    assert "topik: unknown (omit it)" in wrong.stdout


def test_an_invalid_token_raises_an_error_with_a_hint(clonos: Clonos) -> None:
    with pytest.raises(errors.Unauthenticated, match="CLONOS_TOKEN"):
        clonos("job", "ls", "--token", "wrong")


def test_an_invalid_command_line_exits_with_2(clonos: Clonos) -> None:
    for wrong in (["job", "nope"], ["job", "ls", "-o", "xml"], ["job", "inspect"]):
        assert clonos(*wrong, ok=False).exit_code == 2


class TestCredentials:
    """The address of the control plane and the API token, as `clonos up` stores them."""

    def test_commands_use_the_credentials_file(
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

    def test_a_stored_token_is_used_for_its_own_address_only(self, home: Path) -> None:
        Credentials("http://a:1", "secret").write(home)
        settings = Settings()
        assert resolve(settings) == Credentials("http://a:1", "secret")
        assert resolve(settings, api="http://a:1/") == Credentials("http://a:1", "secret")
        assert resolve(settings, api="http://evil:1") == Credentials("http://evil:1", None)
        assert resolve(settings, token="explicit") == Credentials("http://a:1", "explicit")

    def test_defaults_without_a_file(self, home: Path) -> None:
        assert resolve(Settings()) == Credentials("http://127.0.0.1:8484", None)

    @pytest.mark.parametrize("text", ["", "{}", "[]", "null"])
    def test_an_unreadable_file_raises_spec_error(self, home: Path, text: str) -> None:
        Credentials("http://a:1").write(home).write_text(text)
        with pytest.raises(errors.SpecError, match="not readable"):
            resolve(Settings())


def test_watch_draws_on_a_terminal_until_the_job_ends(
    clonos: Clonos, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = io.StringIO()
    terminal = Console(file=drawn, force_terminal=True, width=120)
    monkeypatch.setattr(picture, "console", lambda: terminal)
    monkeypatch.setattr(picture, "_POLL_S", 0.01)
    service.add("wordcount")

    def finish() -> None:
        eventually(lambda: len(service.requests("GET", "/jobs/wordcount")) > 0, "the job is watched")
        # The view survives a short outage of the control plane.
        service.faults.extend(problem(503, "database-unavailable", "No database.") for _ in range(3))
        service.change("wordcount", state=JobState.FINISHED)

    with beside(finish):
        result = clonos("job", "watch", "wordcount")
    assert result.exit_code == 0
    assert "\x1b[" in drawn.getvalue()
    assert "FINISHED" in drawn.getvalue().splitlines()[-1]
