"""Rows of a running job, and the board that the pages show."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
from sqlalchemy.ext.asyncio import AsyncSession

from clonos_api.fleet import Board, Boards, Line
from clonos_api.store.db.database import Database
from clonos_api.store.tables import JobRow, RunRow
from support.serving import Served
from support.stored import host_row, job_row, run_row, set_figures

Browser = Callable[..., httpx.Client]
DAY = timedelta(days=1)


def board(api: Served) -> Board:
    """The board, read now."""

    async def read() -> Board:
        database = Database(api.settings.database)
        try:
            return await Boards(database).newest()
        finally:
            await database.close()

    return asyncio.run(read())


def line_of(api: Served, job: str) -> Line:
    """The line of a job on the board."""
    return next(line for line in board(api).lines if line.id == job)


async def running_rows(session: AsyncSession, name: str, **figures: Any) -> tuple[JobRow, RunRow]:
    """A RUNNING job and its run; the control plane receives its epochs for another day: no machine is too slow."""
    job, host = await job_row(session, name), await host_row(session)
    run = await run_row(session, job, host)
    job.state, job.run, run.state = "RUNNING", run.id, "RUNNING"
    if figures:
        set_figures(job, {"received_at": (datetime.now(UTC) + DAY).isoformat(), **figures})
    await session.flush()
    return job, run
