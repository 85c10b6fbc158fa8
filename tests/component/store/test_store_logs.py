"""Log text of drivers: stored once by its byte offset, bounded, and read by lines."""

from __future__ import annotations

import pytest

from clonos.errors import SpecError
from clonos_api.store import (
    logs,
)
from clonos_api.store.db.database import Database
from clonos_api.store.tables import (
    LogChunkRow,
)
from component.store.pushes import a_started_run
from support.stored import push_log

pytestmark = pytest.mark.anyio


async def test_logs_by_byte_offset(database: Database) -> None:
    run = await a_started_run(database)
    text = "".join(f"line {number} é\n" for number in range(50)) + "half a l"
    data = text.encode()

    async def send(offset: int, piece: bytes, **more: bool) -> int:
        async with database.transaction() as session:
            return await push_log(session, run.id, offset, piece.decode(), **more)

    cut = text.index("line 20")
    first = text[:cut].encode()
    assert await send(0, first) == len(first)
    assert await send(0, first) == len(first), "repeated"
    assert await send(len(first) + 5, b"later") == len(first), "from beyond"
    assert await send(10, data[10:]) == len(data), "overlapping"
    async with database.reading() as session:
        assert (await logs.tail(session, run.job, 3)).lines == ["line 47 é", "line 48 é", "line 49 é"]
        some = await logs.read(session, run.job, "0:0", 30)
        assert some.lines[0] == "line 0 é"
        assert len(some.lines) == 30
        rest = await logs.read(session, run.job, some.next, 1000)
        assert rest.lines[-1] == "line 49 é"
        assert len(rest.lines) == 20
        assert (await logs.read(session, run.job, rest.next)).lines == []
    await send(len(data), b"ine\nnext\n")
    async with database.reading() as session:
        more = await logs.read(session, run.job, rest.next)
        assert more.lines == ["half a line", "next"]
        assert (await logs.read(session, run.job, more.next)).lines == []
        tail = await logs.tail(session, run.job, 1)
        assert (tail.lines, tail.next) == (["next"], more.next)
        for wrong in ("x", "1", "1:-1", "1:x", ":"):
            with pytest.raises(SpecError):
                await logs.read(session, run.job, wrong)
    assert await send(len(data) + 50, b"after a gap\n", gap=True) == len(data) + 62
    async with database.reading() as session:
        assert (await logs.read(session, run.job, more.next)).lines == ["after a gap"]
        assert (await logs.tail(session, "nobody", 5)).lines == []


async def test_a_log_is_bounded_while_it_is_pushed(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "KEPT_BYTES", 8000)
    monkeypatch.setattr(logs, "_TRIM_BYTES", 1000)
    run = await a_started_run(database)
    offset = 0
    async with database.transaction() as session:
        for number in range(400):
            offset = await push_log(session, run.id, offset, f"{number:>99}\n")
    async with database.reading() as session:
        remaining = (await logs.read(session, run.job, "0:0", 1000)).lines
        assert 80 <= len(remaining) <= 100
        assert remaining[-1].strip() == "399"
        assert (await logs.tail(session, run.job, 1000)).lines == remaining


async def test_only_the_requested_lines_of_a_log_are_built(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    run = await a_started_run(database)
    async with database.transaction() as session:
        await push_log(session, run.id, 0, "\n" * 262_144)
    built: list[logs.Line] = []

    class Counted(logs.Line):
        def __init__(self, *_: object) -> None:
            built.append(self)

    monkeypatch.setattr(logs, "Line", Counted)
    async with database.reading() as session:
        newest = await logs.newest(session, run.job, 2)
    assert ([line.text for line in newest.lines], newest.more) == (["", ""], True)
    assert len(built) == 2


async def test_the_newest_lines_are_the_last_of_all(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Backward pages have the same lines as forward pages, also of lines that are split over chunks, and long lines."""
    monkeypatch.setattr(logs, "_LINE", 20)
    run = await a_started_run(database)
    pieces = ["a\nb", "c", "\n", "\n\nd\ne", "f\n", "x" * 25, "yz\ng\n", "\n" * 7, "h", "i\nj", "k" * 30, "l", "m"]
    offset = 0
    for number, piece in enumerate(pieces):
        async with database.transaction() as session:
            offset = await push_log(session, run.id, offset, piece)
            if number % 3 == 2:  # of another run
                row = {"job": run.job, "run": "other", "offset": 9 * number, "size": 9, "text": f"{number}\nof other"}
                session.add(LogChunkRow(**row))
    async with database.reading() as session:
        everything = await logs.following(session, run.job, "0:0", 1000)
        assert not everything.more
        for count in range(len(everything.lines) + 2):
            newest = await logs.newest(session, run.job, count)
            assert newest.lines == everything.lines[len(everything.lines) - min(count, len(everything.lines)) :]
            assert (newest.next, newest.more) == (everything.next, count < len(everything.lines))
        for number, line in enumerate(everything.lines):
            older = await logs.newest(session, run.job, 3, before=line.next)
            assert older.lines == everything.lines[max(0, number - 2) : number + 1]
        loaded: list[logs.Chunk] = []
        after, forward = "0:0", []
        while (page := await logs.following(session, run.job, after, 2, loaded=loaded)).lines:
            forward += page.lines
            after = page.next
        assert forward == everything.lines


async def test_a_page_of_long_lines_is_short(database: Database) -> None:
    run = await a_started_run(database)
    offset = 0
    async with database.transaction() as session:
        for _ in range(10):
            offset = await push_log(session, run.id, offset, f"{'x' * 9_999}\n" * 10)
    async with database.reading() as session:
        sizes, after, more = [], "0:0", True
        while more:
            page = await logs.read(session, run.job, after, 1000)
            after, more = page.next, page.more
            sizes.append(len(page.lines))
    assert (max(sizes), sum(sizes)) == (27, 100)
