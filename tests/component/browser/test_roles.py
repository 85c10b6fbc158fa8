"""Buttons by role: a role sees only the buttons that it may use, and every button asks for confirmation."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import expect

from clonos.resources.service import Role
from component.browser.browser_session import BrowserSession
from component.browser.sample_platform import sample_platform
from support.serving import Served

OWN = ["Stop", "Restart", "Savepoint", "Verify", "Move", "Cancel"]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Jobs are ada's."""
    with sample_platform(tmp_path_factory.mktemp("roles"), jobs=8, hosts=2) as served:
        yield served


@pytest.mark.parametrize(
    ("role", "subject", "actions", "promotes", "drains", "submits"),
    [
        (Role.VIEWER, "vic", [], 0, 0, 0),
        (Role.OPERATOR, "bob", [], 0, 0, 1),
        (Role.OPERATOR, "ada", OWN, 1, 0, 1),
        (Role.ADMIN, "root", OWN, 1, 2, 1),
    ],
)
def test_a_role_sees_only_its_buttons(
    api: Served,
    look: Callable[..., BrowserSession],
    role: Role,
    subject: str,
    actions: list[str],
    promotes: int,
    drains: int,
    submits: int,
) -> None:
    with api.client() as admin:
        body = {"name": f"{role.value}-{subject}", "role": role, "subject": subject}
        token = admin.post("/tokens", json=body).raise_for_status().json()["token"]
        jobs = admin.get("/jobs", params={"limit": 100}).raise_for_status().json()["data"]
        waiting = admin.get("/standbys").raise_for_status().json()["data"]
    ready = {standby["job"] for standby in waiting if standby["state"] == "READY"}
    job = next(row for row in jobs if row["state"] == "RUNNING" and row["id"] in ready)
    assert job["created_by"] == "ada"
    session = look(api.url, token)
    page = session.go("/")
    expect(page.locator("#rows").get_by_role("link", name=job["name"], exact=True)).to_be_visible()
    assert page.get_by_role("link", name="Submit").count() == submits
    page = session.go(f"/jobs/{job['id']}?tab=recoveries")
    assert page.get_by_role("group", name="Actions").get_by_role("button").all_inner_texts() == actions
    assert page.get_by_role("button", name="Promote").count() == promotes
    assert page.locator("[data-call]").count() == len(actions) + promotes
    doubtful = next(row for row in jobs if row["state"] == "FAILED")
    page = session.go(f"/jobs/{doubtful['id']}")
    decisions = page.get_by_role("group", name="Decide about epoch 109 of out").get_by_role("button").all_inner_texts()
    assert decisions == (["Keep", "Republish", "Dead letter"] if actions else [])
    page = session.go("/hosts")
    assert page.get_by_role("button", name="Drain").count() == drains
    assert page.locator("[data-call]").count() == drains


def test_a_button_asks_for_confirmation(api: Served, look: Callable[..., BrowserSession]) -> None:
    """By the keyboard alone."""
    with api.client() as admin:
        job = next(row for row in admin.get("/jobs").json()["data"] if row["state"] == "RUNNING")

        def wanted() -> str:
            return str(admin.get(f"/jobs/{job['id']}").json()["desired_state"])

        page = look(api.url, api.admin).go(f"/jobs/{job['id']}")
        page.get_by_role("button", name="Stop").focus()
        page.keyboard.press("Enter")
        asked = page.locator("#ask")
        expect(asked).to_be_visible()
        expect(asked).to_contain_text(f"Stop {job['name']}?")
        page.keyboard.press("Escape")
        expect(asked).to_be_hidden()
        assert wanted() == "RUNNING"
        expect(page.get_by_role("button", name="Stop")).to_be_focused()
        page.keyboard.press("Enter")
        asked.get_by_role("button", name="Stop").press("Enter")
        expect(asked).to_be_hidden()
        expect(page.locator("#notes")).not_to_be_empty()
        assert wanted() == "STOPPED"
