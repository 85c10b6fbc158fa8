"""Each subject has one request in the queue of analyses: others wait for one analysis of it, not for all of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from clonos_api.admission import inspection
from clonos_api.store.tables import ArtifactRow


def artifact(name: str) -> ArtifactRow:
    return ArtifactRow(id=name, kind="py", name="job.py")


async def no_copy(path: Path) -> None:
    raise AssertionError(f"nothing is copied to {path}")


async def analysed(monkeypatch: pytest.MonkeyPatch, requests: list[tuple[str, str]]) -> list[str]:
    """The order in which the artifacts of the requests (subject, artifact) are analysed."""
    order: list[str] = []
    at_once = 0

    async def inspect(row: ArtifactRow, *_: Any) -> inspection.Inspected:
        nonlocal at_once
        at_once += 1
        assert at_once == 1, "one analysis at a time"
        order.append(row.id)
        await asyncio.sleep(0.01)
        at_once -= 1
        return [], []

    monkeypatch.setattr(inspection, "_inspect", inspect)
    inspector = inspection.Inspector()
    async with asyncio.TaskGroup() as group:
        for subject, name in requests:
            group.create_task(inspector.findings(artifact(name), no_copy, "", by=subject))
    return order


def test_a_subject_has_one_request_in_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [*(("mallory", f"m{number}") for number in range(5)), ("ada", "a1"), ("bob", "b1")]
    order = asyncio.run(analysed(monkeypatch, requests))
    assert order[:3] == ["m0", "a1", "b1"]
    assert order[3:] == ["m1", "m2", "m3", "m4"]


def test_equal_code_is_analysed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [("ada", "same"), ("ada", "same"), ("bob", "same")]
    assert asyncio.run(analysed(monkeypatch, requests)) == ["same"]
