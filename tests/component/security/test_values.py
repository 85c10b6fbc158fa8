"""Values that JSON can carry and that the database, other clients or Spark cannot: 422, never 500."""

from __future__ import annotations

import asyncio
import io
import json
import secrets
import stat
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import create_engine, text

from clonos.driver.driver import default_checkpoint
from clonos.errors import DatabaseNewer
from clonos.private_folders import create_private
from clonos.testing.harness import eventually
from clonos_api.http.checked_json import parse
from clonos_api.reconcile.checkpoints import CheckpointLocations
from clonos_api.replica import Replica
from clonos_api.settings import ApiSettings
from clonos_api.store import lookups
from clonos_api.store.db import schema
from clonos_api.store.db.database import Database
from support.scripted import CODE, ScriptedAgent, create, spec, upload
from support.serving import Served, served

Callers = Callable[..., httpx.Client]


def posted(client: httpx.Client, path: str, text: str) -> httpx.Response:
    return client.post(path, content=text, headers={"Content-Type": "application/json"})


@pytest.mark.parametrize("value", [r'"\ud800"', r'"a\u0000b"', "NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("place", ["param", "label", "checkpoint", "param-name"])
def test_a_value_that_is_not_a_text_or_a_number_is_refused(
    ada: httpx.Client, name: str, place: str, value: str
) -> None:
    body = {"spec": spec(name), "artifact": upload(ada), "start": False}
    body["spec"]["spec"]["params"] = {"a": "VALUE"} if place == "param" else {}
    if place == "label":
        body["spec"]["metadata"]["labels"] = {"a": "VALUE"}
    if place == "checkpoint":
        body["spec"]["spec"]["checkpoint"] = "VALUE"
    if place == "param-name":
        body["spec"]["spec"]["params"] = {"VALUE": "a"}
    sent = json.dumps(body).replace('"VALUE"', value if place != "param-name" or value.startswith('"') else f'"{value}')
    for path in ("/jobs", "/jobs/validate"):
        answer = posted(ada, path, sent)
        assert answer.status_code == 422, (path, answer.text)
    assert ada.get(f"/jobs/{name}").status_code == 404


@pytest.mark.parametrize("text", ["\x1b[2J", "a\nb", "\x7f", "\x9b31m"])
def test_control_characters_are_refused_where_names_and_labels_are_shown(
    service: Served, ada: httpx.Client, name: str, text: str
) -> None:
    body = {"spec": spec(name, labels={"team": text}), "artifact": upload(ada), "start": False}
    assert ada.post("/jobs", json=body).status_code == 422
    create(ada, name)
    patched = ada.patch(f"/jobs/{name}", json={"spec": body["spec"]}, headers={"If-Match": "*"})
    assert patched.status_code == 422
    with ScriptedAgent(service, f"h{secrets.token_hex(4)}") as agent:
        for field, value in (
            ("failure_domain", text),
            ("labels", {"rack": text}),
            ("versions", {"java": text}),
            ("limits", [text]),
        ):
            host = {"name": agent.name, "instance": agent.instance, field: value}
            assert agent.client.post("/hosts", json=host).status_code == 422, field


_YAML = """
apiVersion: clonos/v1
kind: Job
metadata: {{name: {name}, labels: {{a: {label}}}}}
spec: {{params: {{{param}: {value}}}}}
"""


@pytest.mark.parametrize(
    "changed",
    [
        {"label": r'"\uD800"'},
        {"label": r'"\0"'},
        {"label": r'"\e[2J"'},
        {"label": r'"\x9b2J"'},
        {"label": "x, a: y"},
        {"param": r'"\uD800"'},
        {"param": r'"\0"'},
        {"param": r'"\e"'},
        {"value": r'"\uDFFF"'},
        {"value": r'"\0"'},
        {"value": ".inf"},
        {"value": ".nan"},
        {"value": "1, p: 2"},
    ],
    ids=str,
)
def test_yaml_has_the_checks_of_json(ada: httpx.Client, name: str, changed: dict[str, str]) -> None:
    body = _YAML.format(**{"name": name, "label": "x", "param": "p", "value": "v"} | changed)
    for path in (f"/jobs?artifact={upload(ada)}&start=false", "/jobs/validate"):
        answer = ada.post(path, content=body, headers={"Content-Type": "application/yaml"})
        assert answer.status_code == 422, (path, answer.text)
    assert ada.get(f"/jobs/{name}").status_code == 404


@pytest.mark.parametrize("value", [r"\u001b[2J", r"\u009b2J", r"\u0007"])
def test_labels_have_no_control_characters(ada: httpx.Client, name: str, value: str) -> None:
    body = {"spec": spec(name), "artifact": upload(ada), "start": False}
    body["spec"]["metadata"]["labels"] = {"a": "VALUE"}
    assert posted(ada, "/jobs", json.dumps(body).replace("VALUE", value)).status_code == 422


def test_a_key_of_an_object_is_there_once(ada: httpx.Client, name: str) -> None:
    body = json.dumps({"spec": spec(name), "artifact": upload(ada), "start": False})
    answer = posted(ada, "/jobs", body.replace('"start"', '"start": true, "start"'))
    assert answer.status_code == 422
    assert "'start' is repeated" in answer.text


def test_numbers_of_a_specification_have_limits(ada: httpx.Client, name: str) -> None:
    body: dict[str, Any] = {"spec": spec(name), "artifact": upload(ada), "start": False}
    body["spec"]["spec"]["trigger"] = {"interval": f"{10**30}ms"}
    assert ada.post("/jobs", json=body).status_code == 422
    body["spec"]["spec"]["trigger"] = {"interval": "10s"}
    assert ada.post("/jobs", json=body).status_code == 201


@pytest.mark.parametrize("path", ["/tokens", "/jobs/nothing/savepoints", "/jobs/nothing/stop"])
def test_every_route_with_a_json_body_refuses_such_texts(service: Served, path: str) -> None:
    with service.client() as admin:
        assert posted(admin, path, r'{"name": "\ud800"}').status_code in (404, 422)


def test_load_balancers_may_ask_for_the_head_only(nobody: httpx.Client) -> None:
    for path in ("/health/live", "/health/ready"):
        assert nobody.head(path).status_code == 200
        assert nobody.get(path).status_code == 200


def test_a_service_whose_disk_is_full_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path) as api, api.client(retry=False) as admin:
        monkeypatch.setattr(Database, "free_bytes", lambda self: 1_000)
        health = admin.get("/health").raise_for_status().json()
        assert (health["status"], health["checks"]["disk"]) == ("degraded", "The database's disk has 1000 free bytes.")
        ready = admin.get(api.url + "/health/ready")
        assert (ready.status_code, "1000 free bytes" in ready.text) == (503, True)
        assert admin.get(api.url + "/health/live").status_code == 200


def test_a_service_without_a_leader_is_degraded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never_lead(_: Replica) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Replica, "reconcile", never_lead)
    monkeypatch.setattr(lookups, "LEADERLESS_S", 0.2)
    with served(tmp_path, reconcile=True) as service, service.client() as admin:
        eventually(lambda: admin.get("/health").json()["status"] == "degraded", "no replica leads")
        health = admin.get("/health").json()
        assert (health["leader"], health["database"]) == (False, "ok")
        assert health["checks"] == {"leader": "No replica leads: jobs are neither started nor recovered."}


def test_clonos_run_and_the_platform_have_the_same_checkpoint(tmp_path: Path) -> None:
    locations = CheckpointLocations.of(ApiSettings(home=tmp_path))
    assert locations.of_job("orders") == default_checkpoint(tmp_path, "orders")


def test_a_specification_has_a_size_limit(ada: httpx.Client, name: str) -> None:
    """Lists show it: sixty jobs of a megabyte would be a list of 54 MB."""
    body: dict[str, Any] = {"spec": spec(name), "artifact": upload(ada), "start": False}
    body["spec"]["spec"]["params"] = {f"p{number}": "x" * 10_000 for number in range(7)}
    refused = ada.post("/jobs", json=body)
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["field"] == "spec"
    body["spec"]["spec"]["params"] = {f"p{number}": "x" * 10_000 for number in range(6)}
    assert ada.post("/jobs", json=body).status_code == 201


def test_a_deleted_job_says_so(ada: httpx.Client, name: str) -> None:
    job = create(ada, name)
    assert job["deleted_at"] is None
    assert ada.delete(f"/jobs/{name}").status_code == 202
    assert ada.get(f"/jobs/{job['id']}").json()["deleted_at"]


def test_a_host_has_a_few_short_labels(service: Served) -> None:
    with service.client() as admin:
        made = admin.post("/tokens", json={"name": "a", "role": "agent", "host": "big"}).json()
    with service.client(made["token"]) as agent:
        body = {"name": "big", "instance": "i", "labels": {f"label-{number}": "x" for number in range(7000)}}
        assert agent.post("/hosts", json=body).status_code == 422
        assert agent.post("/hosts", json={**body, "labels": {"zone": "x" * 5000}}).status_code == 422
        assert agent.post("/hosts", json={**body, "labels": {"zone": "a"}}).status_code == 201


def test_a_huge_job_file_is_refused_in_words_at_once(ada: httpx.Client, name: str) -> None:
    code = b"x = 1\n" * 1_700_000
    artifact = upload(ada, code)
    body = {"spec": spec(name), "artifact": artifact, "start": False}
    ada.post("/jobs/validate", json={**body, "artifact": upload(ada)})  # imports
    before = time.monotonic()
    answer = ada.post("/jobs/validate", json=body).raise_for_status().json()
    assert time.monotonic() - before < 60
    assert not answer["valid"]
    assert "at most 300000 are analysed" in answer["problems"][0]["what"]


def test_the_analysis_imports_no_uploaded_module(ada: httpx.Client, name: str, tmp_path: Path) -> None:
    """Python would look for the analysis' own imports in the current folder first."""
    trap = f"open({str(tmp_path / 'ran')!r}, 'w').close()\n"
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("job.py", CODE)
        for module in ("pydantic", "clonos", "clonos_api", "resource", "dataclasses"):
            archive.writestr(f"{module}.py", trap)
    body = {"spec": spec(name), "artifact": upload(ada, packed.getvalue(), "job.zip"), "start": False}
    answer = ada.post("/jobs/validate", json=body).raise_for_status().json()
    assert not (tmp_path / "ran").exists()
    assert answer["valid"], answer


def test_code_that_is_too_deep_is_refused_in_words(ada: httpx.Client, name: str) -> None:
    body = {"spec": spec(name), "artifact": upload(ada, b"x = " + b"-" * 400_000 + b"1\n"), "start": False}
    answer = ada.post("/jobs/validate", json=body).raise_for_status().json()
    assert not answer["valid"]
    assert answer["problems"][0]["field"] == "artifact"


def test_values_are_parsed_as_json_has_them() -> None:
    assert parse(b'{"a": [1, 2.5, "\\ud83d\\ude00", null, true]}') == {"a": [1, 2.5, "\N{GRINNING FACE}", None, True]}
    for refused in (b'"\\udc00"', b"[NaN]", b'{"a": 1e400}', b"[" * 100_000, b"nonsense"):
        with pytest.raises(json.JSONDecodeError):
            parse(refused)


def test_a_newer_database_is_named(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'new.db'}"
    schema.upgrade(url)
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999_future'"))
    engine.dispose()
    with pytest.raises(DatabaseNewer, match="9999_future"):
        schema.upgrade(url)


def test_home_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    home = tmp_path / "a" / "home"
    with served(home):
        assert stat.S_IMODE(home.stat().st_mode) == 0o700
        assert stat.S_IMODE(home.parent.stat().st_mode) == 0o700
    tmp_path.chmod(0o755)
    create_private(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


@pytest.mark.parametrize(
    ("path", "body", "what"),
    [
        ("/jobs", {"spec": {"metadata": {"name": "x"}, "spec": {"standbys": 1}}}, "standby.replicas"),
        ("/jobs", {"spec": {"metadata": {"name": "x"}, "spec": {"shuflePartitions": 1}}}, "shufflePartitions"),
        ("/jobs/x/stop", {"mod": "force"}, "mode"),
        ("/jobs/x/savepoints", {"nam": "a"}, "name"),
    ],
)
def test_an_unknown_field_names_the_one_that_was_meant(
    ada: httpx.Client, name: str, path: str, body: dict[str, Any], what: str
) -> None:
    create(ada, name)
    answer = ada.post(path.replace("/x/", f"/{name}/"), json=body)
    assert answer.status_code == 422
    assert f"unknown field; did you mean {what}?" in {problem["what"] for problem in answer.json()["errors"]}
