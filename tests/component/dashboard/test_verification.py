"""The pages say what a verification proved, and since when; without one they claim nothing."""

from __future__ import annotations

import re
from typing import Any

import httpx
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.figures import number
from clonos.testing.harness import eventually
from clonos_api.store import operations
from component.dashboard.rows import Browser
from support.serving import Served, write
from support.stored import job_row

AT = "2026-01-01T12:00:00+00:00"


def job(api: Served, name: str, **result: Any) -> str:
    """A job, with the result of a verification if one is given."""

    async def make(session: AsyncSession) -> str:
        return (await job_row(session, name)).id

    made: str = write(api, make)
    if result:
        verify(api, made, **result)
    return made


def verify(api: Served, job: str, **result: Any) -> None:
    """End a verification of a job with this result."""

    async def make(session: AsyncSession) -> None:
        operation = await operations.begin(session, "verify", job=job, timeout_s=60, by="ada")
        await operations.complete(session, operation, {"at": AT, **result})

    write(api, make)


def words(page: httpx.Client, path: str) -> str:
    """The text of a page, without tags."""
    return " ".join(re.sub(r"<[^>]*>", " ", page.get(path).text).split())


def test_the_pages_say_what_was_verified(api: Served, browser: Browser, name: str) -> None:
    proved = job(api, name, clean=True, verified={"out": [0, 1284]}, records=37_490)
    other = job(api, f"{name}-other")
    with browser() as page:
        assert "○ not verified" in words(page, f"/jobs/{other}")
        expected = f"● verified out through epoch {number(1284)}: {number(37_490)} records, 0 repeated, 0 missing"
        assert " ".join(expected.split()) in words(page, f"/jobs/{proved}")
        eventually(lambda: re.search(r"● Output of 1 of \d+ jobs verified, oldest", words(page, "/")), "the tile")
    (line,) = [line for line in status(api)["jobs"] if line["name"] == name]
    assert line["reasons"] == []

    bad = job(
        api,
        f"{name}-bad",
        clean=False,
        contradicted=True,
        repeated=["out epoch 7 lane 0"],
        reason="The output differs.",
    )
    with browser() as page:
        text = words(page, f"/jobs/{bad}")
        assert "✕ not verified" in text
        assert "published twice: out epoch 7 lane 0 The output differs." in text
        eventually(lambda: f"✕ Output of {name}-bad contradicts the causal log" in words(page, "/"), "the tile")
    (line,) = [line for line in status(api)["jobs"] if line["name"] == f"{name}-bad"]
    assert line["reasons"] == ["its output contradicts its causal log, as a verification found"]


def test_a_result_that_proves_nothing_does_not_end_a_contradiction(api: Served, browser: Browser, name: str) -> None:
    made = job(api, name, clean=False, reason="Nothing was published.")
    with browser() as page:
        assert "▲ not verified" in words(page, f"/jobs/{made}")
        verify(api, made, clean=False, contradicted=True, distance=1, reason="The output has 1 record more.")
        verify(api, made, clean=False, reason="Nothing was published.")
        assert "✕ not verified" in words(page, f"/jobs/{made}")
        assert "The output has 1 record more." in words(page, f"/jobs/{made}")
        verify(api, made, clean=True, verified={"out": [0, 7]}, records=9)
        assert "● verified out through epoch 7" in words(page, f"/jobs/{made}")


def status(api: Served) -> dict[str, Any]:
    with api.client() as client:
        answer: dict[str, Any] = client.get("/status").json()
        return answer
