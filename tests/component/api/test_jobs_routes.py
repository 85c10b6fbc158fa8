"""Jobs through the routes: made from JSON and YAML, listed, changed, acted on, deleted."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import yaml

from support.scripted import CODE, create, spec, upload
from support.serving import Served


def test_an_artifact_is_identified_by_its_content(admin: httpx.Client) -> None:
    first = admin.post("/artifacts", files={"file": ("job.py", CODE + b"# one\n")})
    again = admin.post("/artifacts", files={"file": ("other.py", CODE + b"# one\n")})
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    assert first.json()["main"] == "job.py"
    assert first.headers["Location"].endswith(first.json()["id"])
    content = admin.get(f"/artifacts/{first.json()['id']}/content")
    assert content.content == CODE + b"# one\n"
    assert content.headers["Content-Disposition"].startswith("attachment")
    assert admin.delete(f"/artifacts/{first.json()['id']}").status_code == 204
    assert admin.get(f"/artifacts/{first.json()['id']}").status_code == 404


def test_an_artifact_in_use_cannot_be_deleted(admin: httpx.Client, name: str) -> None:
    job = create(admin, name)
    refused = admin.delete(f"/artifacts/{job['artifact']}")
    assert refused.status_code == 409
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["type"].endswith("/state-conflict")


def test_a_job_is_created_from_json(admin: httpx.Client, name: str) -> None:
    answer = admin.post("/jobs", json={"spec": spec(name, labels={"team": "a"}), "artifact": upload(admin)})
    assert answer.status_code == 201
    job = answer.json()
    assert answer.headers["ETag"].startswith('"1-')
    assert answer.headers["Location"] == f"/api/v1/jobs/{job['id']}"
    assert job["desired_state"] == "RUNNING"
    assert job["state"] == "CREATED"
    assert job["created_by"] == "admin"
    for key in (job["id"], name):
        shown = admin.get(f"/jobs/{key}")
        assert shown.json()["id"] == job["id"]
        assert shown.headers["ETag"] == answer.headers["ETag"]


@pytest.mark.parametrize("media_type", ["application/yaml", "text/yaml; charset=utf-8", "application/x-yaml"])
def test_a_job_is_created_from_yaml(admin: httpx.Client, name: str, media_type: str) -> None:
    text = yaml.safe_dump({"apiVersion": "clonos/v1", "kind": "Job", **spec(name)})
    answer = admin.post(
        "/jobs",
        params={"artifact": upload(admin), "start": "false"},
        content=text,
        headers={"Content-Type": media_type},
    )
    assert answer.status_code == 201, answer.text
    assert answer.json()["desired_state"] == "STOPPED"


@pytest.mark.parametrize(
    ("text", "field", "what"),
    [
        ("spec: [", "", "YAML"),
        ("a: &x [1]\nb: *x\n", "", "alias"),
        ("[" * 60, "", "deep"),
        ("spec:\n  metadata: {name: UPPER}\nartifact: " + "0" * 64, "spec.metadata.name", "a-z"),
        ("spec:\n  metadata: {name: ok}\n  nonsense: 1\nartifact: x\n", "spec.nonsense", "unknown field"),
        ("spec:\n  metadata: {name: ok}\n", "artifact", "required"),
    ],
)
def test_invalid_yaml_names_the_field(admin: httpx.Client, text: str, field: str, what: str) -> None:
    answer = admin.post("/jobs", content=text, headers={"Content-Type": "application/yaml"})
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert any(problem["field"] == field and what in problem["what"] for problem in answer.json()["errors"]), (
        answer.json()
    )
    assert answer.json()["detail"].startswith(f"{field or 'The request'} is invalid: ")


def test_other_bodies_are_refused(admin: httpx.Client) -> None:
    answer = admin.post("/jobs", content="<job/>", headers={"Content-Type": "application/xml"})
    assert answer.status_code == 415


def test_a_name_is_unique_until_its_job_is_deleted(admin: httpx.Client, name: str) -> None:
    first = create(admin, name)
    taken = admin.post("/jobs", json={"spec": spec(name), "artifact": first["artifact"]})
    assert taken.status_code == 409
    assert taken.json()["type"].endswith("/name-taken")
    deleted = admin.delete(f"/jobs/{name}")
    assert deleted.status_code == 202
    assert deleted.json()["state"] == "COMPLETED"
    assert admin.get(f"/jobs/{name}").status_code == 404
    assert admin.get(f"/jobs/{first['id']}").json()["name"] == name  # its history stays until retention removes it
    assert create(admin, name)["id"] != first["id"]


def test_pages_contain_each_job_once(admin: httpx.Client, name: str) -> None:
    made = [create(admin, f"{name}-{number}")["id"] for number in range(7)]
    seen: list[str] = []
    after: str | None = None
    while True:
        query: dict[str, Any] = {"limit": 3, "name": name, **({"starting_after": after} if after else {})}
        page = admin.get("/jobs", params=query).json()
        seen += [job["id"] for job in page["data"]]
        # Jobs that are created during the listing do not appear in later pages.
        create(admin, f"{name}-more-{len(seen)}")
        after = page["next"]
        assert page["has_more"] == (after is not None)
        if after is None:
            break
    assert seen == made[::-1]
    for wrong in ("nonsense", "1", "99999999999999999.x", "1.x y"):
        assert admin.get("/jobs", params={"starting_after": wrong}).status_code == 422
    assert admin.get("/jobs", params={"limit": 201}).status_code == 422


def test_lists_are_filtered(admin: httpx.Client, name: str) -> None:
    artifact = upload(admin)
    for number in range(2):
        labels = {"suite": name, "number": str(number)}
        admin.post("/jobs", json={"spec": spec(f"{name}-{number}", labels=labels), "artifact": artifact})

    def names(**given: Any) -> list[str]:
        answer = admin.get("/jobs", params=given)
        assert answer.status_code == 200, answer.text
        return sorted(job["name"] for job in answer.json()["data"])

    both = [f"{name}-0", f"{name}-1"]
    assert names(label=f"suite={name}") == both
    assert names(label=[f"suite={name}", "number=1"]) == [f"{name}-1"]
    assert names(label=f"suite={name}", state=["CREATED", "FAILED"]) == both
    assert names(label=f"suite={name}", state="RUNNING") == []
    assert admin.get("/jobs", params={"label": "nonsense"}).status_code == 422
    assert admin.get("/jobs", params={"state": "NONSENSE"}).status_code == 422


def test_actions_and_the_deletion_check_a_version_that_they_get(admin: httpx.Client, name: str) -> None:
    create(admin, name)
    before = admin.get(f"/jobs/{name}").headers["ETag"]
    admin.patch(f"/jobs/{name}", json={"spec": spec(name, labels={"a": "b"})}, headers={"If-Match": before})
    current = admin.get(f"/jobs/{name}").headers["ETag"]
    for tag, expected in ((before, 412), ('"1"', 412), ("2", 412), (current, 202), ('"2"', 202), ("*", 202)):
        answer = admin.post(f"/jobs/{name}/stop", headers={"If-Match": tag})
        assert answer.status_code == expected, (tag, answer.text)
    assert admin.delete(f"/jobs/{name}", headers={"If-Match": before}).status_code == 412
    assert admin.delete(f"/jobs/{name}", headers={"If-Match": current}).status_code == 202


def test_a_deletion_is_done_once_for_each_idempotency_key(admin: httpx.Client, name: str) -> None:
    """A repeated request does not delete the next job of that name."""
    create(admin, name)
    first = admin.delete(f"/jobs/{name}", headers={"Idempotency-Key": name})
    assert admin.get(f"/jobs/{name}").status_code == 404
    again = admin.delete(f"/jobs/{name}", headers={"Idempotency-Key": name})
    assert (again.status_code, again.json()) == (202, first.json()), "a response that was lost"
    create(admin, name)
    repeated = admin.delete(f"/jobs/{name}", headers={"Idempotency-Key": name})
    assert (first.status_code, repeated.status_code) == (202, 202)
    assert repeated.json() == first.json()
    assert admin.get(f"/jobs/{name}").status_code == 200


def test_a_list_has_no_specifications(admin: httpx.Client, name: str) -> None:
    """200 jobs with specifications of 64 kB would be 13 MB."""
    created = create(admin, name)
    (listed,) = admin.get("/jobs", params={"name": name}).json()["data"]
    assert "spec" not in listed
    assert {**listed, "spec": created["spec"]} == admin.get(f"/jobs/{name}").json()


def test_an_unchanged_response_is_sent_once(admin: httpx.Client, name: str) -> None:
    job = create(admin, name)
    for path in (f"/jobs/{name}", f"/jobs?name={name}", "/hosts", f"/artifacts/{job['artifact']}/content"):
        first = admin.get(path)
        tag = first.headers["ETag"]
        for known in (tag, f'"x", {tag}', f"W/{tag}", "*"):
            same = admin.get(path, headers={"If-None-Match": known})
            assert (same.status_code, same.content, same.headers["ETag"]) == (304, b"", tag)
        lines = [("If-None-Match", '"x"'), ("If-None-Match", tag), ("If-None-Match", '"y"')]
        assert admin.get(path, headers=lines).status_code == 304, "several lines are one list"
        assert admin.get(path, headers={"If-None-Match": '"x"'}).content == first.content
    tag = admin.get(f"/jobs/{name}").headers["ETag"]
    assert admin.post(f"/jobs/{name}/stop").status_code == 202
    changed = admin.get(f"/jobs/{name}", headers={"If-None-Match": tag})
    assert changed.status_code == 200, "the version is the same, and the desired state is not"
    assert "ETag" not in admin.get("/jobs/no-such-job", headers={"If-None-Match": "*"}).headers


def test_an_update_needs_the_current_version(admin: httpx.Client, name: str) -> None:
    create(admin, name)
    changed = spec(name, labels={"a": "b"})
    missing = admin.patch(f"/jobs/{name}", json={"spec": changed})
    assert missing.status_code == 428
    for empty in ("", ",", '""'):
        refused = admin.patch(f"/jobs/{name}", json={"spec": changed}, headers={"If-Match": empty})
        assert refused.status_code == 412, "it names no version"
        assert admin.delete(f"/jobs/{name}", headers={"If-Match": empty}).status_code == 412
    stale = admin.patch(f"/jobs/{name}", json={"spec": changed}, headers={"If-Match": '"7"'})
    assert stale.status_code == 412
    done = admin.patch(f"/jobs/{name}", json={"spec": changed}, headers={"If-Match": '"1"'})
    assert done.status_code == 200
    assert (done.json()["version"], done.json()["labels"]) == (2, {"a": "b"})
    assert done.headers["ETag"].startswith('"2-')
    lost = admin.patch(f"/jobs/{name}", json={"spec": spec(name)}, headers={"If-Match": '"1"'})
    assert lost.status_code == 412
    renamed = admin.patch(f"/jobs/{name}", json={"spec": spec(f"{name}-b")}, headers={"If-Match": done.headers["ETag"]})
    assert renamed.status_code == 422
    versions = admin.get(f"/jobs/{name}/versions").json()["data"]
    assert [version["version"] for version in versions] == [2, 1]
    assert versions[1]["spec"]["metadata"]["labels"] == {}


def test_actions_create_operations(admin: httpx.Client, name: str) -> None:
    job = create(admin, name)
    wanted = {"start": "RUNNING", "stop": "STOPPED", "restart": "RUNNING", "cancel": "CANCELED"}
    for action, desired in wanted.items():
        answer = admin.post(f"/jobs/{name}/{action}")
        assert answer.status_code == 202, answer.text
        operation = answer.json()
        assert (operation["kind"], operation["state"], operation["job"]) == (action, "IN_PROGRESS", job["id"])
        where = answer.headers["Location"].removeprefix("/api/v1")
        assert admin.get(where).json()["id"] == operation["id"]
        assert admin.get(f"/jobs/{name}").json()["desired_state"] == desired
    refused = admin.post(f"/jobs/{name}/start")
    assert refused.status_code == 409
    listed = admin.get("/operations", params={"job": name}).json()["data"]
    assert [operation["kind"] for operation in listed] == ["cancel", "restart", "stop", "start"]


def test_a_stop_request_is_stored(admin: httpx.Client, name: str) -> None:
    create(admin, name)
    assert admin.post(f"/jobs/{name}/stop", json={"mode": "checkpoint", "timeout_s": 5}).status_code == 202
    wrong = admin.post(f"/jobs/{name}/stop", json={"mode": "nonsense"})
    assert wrong.status_code == 422
    assert wrong.json()["errors"][0]["field"] == "mode"


def test_a_decision_about_an_epoch_starts_the_job_and_is_audited(admin: httpx.Client, name: str) -> None:
    job = create(admin, name, start=False)
    decision = {"query": "out", "epoch": 12, "decision": "dead-letter"}
    refused = admin.post(f"/jobs/{name}/resolve", json=decision)
    assert refused.status_code == 422
    assert "a topic belongs to the decision dead-letter" in refused.text
    decision["topic"] = "suspect"
    answer = admin.post(f"/jobs/{name}/resolve", json=decision)
    assert answer.status_code == 202
    assert answer.json()["kind"] == "resolve"
    assert admin.get(f"/jobs/{name}").json()["desired_state"] == "RUNNING"
    entries = [entry for entry in admin.get("/audit").json()["data"] if entry["target"] == job["id"]]
    assert {"job.resolve", "job.start"} <= {entry["action"] for entry in entries}
    assert [entry["detail"] for entry in entries if entry["action"] == "job.resolve"] == [decision]


def test_a_job_is_validated_without_creating_it(admin: httpx.Client, name: str) -> None:
    code = CODE.replace(b"import clonos\n", b"import time\n\nimport clonos\n").replace(
        b'    lines = ctx.source("lines")\n',
        b'    stamp = clonos.udf(lambda value: f"{value} {time.time()}", "string")\n    lines = ctx.source("lines")\n',
    )
    answer = admin.post("/jobs/validate", json={"spec": spec(name), "artifact": upload(admin, code)})
    assert answer.status_code == 200, answer.text
    said = answer.json()
    assert said["valid"]
    assert [(finding["file"], finding["call"], finding["line"]) for finding in said["findings"]] == [
        ("job.py", "time.time()", 8)
    ]
    broken = admin.post("/jobs/validate", json={"spec": spec(name), "artifact": upload(admin, b"def ( :\n")}).json()
    assert not broken["valid"]
    assert "line 1" in broken["problems"][0]["what"]
    assert "/tmp" not in str(broken)
    assert admin.get(f"/jobs/{name}").status_code == 404


def test_unknown_resources_are_problems(admin: httpx.Client, api: Served) -> None:
    for path in ("/jobs/nothing", "/operations/" + "0" * 36, "/savepoints/" + "0" * 36, "/hosts/nothing", "/nothing"):
        answer = admin.get(path)
        assert answer.status_code == 404
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["status"] == 404
    with httpx.Client(base_url=api.url, timeout=60, trust_env=False, verify=False) as anonymous:
        assert anonymous.get("/api/v1/jobs").status_code == 401
        assert anonymous.get("/health/live").json() == {"status": "ok"}
        assert anonymous.get("/health/ready").status_code == 200
    health = admin.get("/health").json()
    assert (health["status"], health["database"], health["leader"]) == ("ok", "ok", False)


def test_a_mistyped_name_gets_the_most_similar_one(admin: httpx.Client, name: str) -> None:
    create(admin, name)
    unknown = admin.get(f"/jobs/{name}x")
    assert unknown.status_code == 404
    assert unknown.json()["detail"] == f"There is no job '{name}x'. Did you mean '{name}'?"
    assert "clonos ps" in unknown.json()["hint"]
    other = admin.get("/jobs/quite-another-0123456789-0123456789-0123456789")
    assert "Did you mean" not in other.json()["detail"]


def test_a_move_to_an_unknown_host_names_the_host_first(admin: httpx.Client, name: str) -> None:
    """Also of a job that cannot move at all, because its checkpoint is local."""
    create(admin, name)
    moved = admin.post(f"/jobs/{name}/move", json={"to": "nowhere"})
    assert moved.status_code == 404
    assert "nowhere" in moved.json()["detail"]


def test_a_token_that_is_not_valid_is_not_asked_for_a_header(api: Served) -> None:
    """The sign-in page shows this text to a person."""
    wrong = httpx.get(
        f"{api.url}/api/v1/jobs",
        headers={"Authorization": "Bearer clonos_a_00"},
        timeout=60,
        trust_env=False,
        verify=False,
    )
    assert "the whole token" in wrong.json()["hint"]
    assert "header" not in wrong.json()["hint"]
    assert "header" in httpx.get(f"{api.url}/api/v1/jobs", timeout=60, trust_env=False, verify=False).json()["hint"]
