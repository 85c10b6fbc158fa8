"""`clonos.operator`, `clonos.pandas_udf` and `clonos.arrow_udf` without Spark: what Spark sees, what user code sees."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.pandas.typehints import infer_group_arrow_eval_type_from_func, infer_group_pandas_eval_type_from_func
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessor, TimerValues
from pyspark.util import PythonEvalType

import clonos
from clonos.carried import CarriedError, uncarry
from clonos.causal import naming, operators, scope
from clonos.causal.ordering import ordered_batches, ordered_frame, ordered_rows, ordered_table
from clonos.causal.scope import EpochScope, TaskScope
from clonos.causal.vectorised import _batch_by_batch
from clonos.errors import EpochFailed, JobCodeError, SpecError
from clonos.log.records import Entry, Owner

EPOCH = EpochScope(
    job="j",
    topic="clonos.j.log",
    query="q",
    epoch=3,
    at=0,
    seed=42,
    owner=Owner(1, 1, "a"),
    replay=False,
    depth="full",
    partitions=(1,),
    since={1: 0},
    until={1: 5},
    params={},
)
TIMES = TimerValues(1000, 0)


class Recorder:
    def __init__(self, *_args: object) -> None:
        self.queued: list[Entry] = []
        self.written = self.bytes = 0

    def add(self, entry: Entry) -> None:
        self.queued.append(entry)

    def flush(self) -> None:
        self.written += len(self.queued)
        self.queued = []


class Scopes:
    """The scopes that operators opened in a made-up task."""

    def __init__(self) -> None:
        self.opened: list[TaskScope] = []
        self.number = 0

    def open(self, operator: str) -> TaskScope:
        made = TaskScope(EPOCH, operator, self.number)
        self.opened.append(made)
        return made

    def unacknowledged(self) -> int:
        return sum(len(one._recorder.queued) for one in self.opened)  # type: ignore[attr-defined]

    def written(self) -> int:
        return sum(one._recorder.written for one in self.opened)  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def scopes(monkeypatch: pytest.MonkeyPatch) -> Scopes:
    made = Scopes()
    monkeypatch.setattr(scope, "Recorder", Recorder)
    monkeypatch.setattr(operators, "open_task_scope", made.open)
    naming.forget_uses()
    return made


@clonos.service(name="length")
def length(word: str) -> int:
    return len(word)


def in_task(target: Any) -> Any:
    """What Spark unpickles in a task."""
    return cloudpickle.loads(cloudpickle.dumps(target))  # type: ignore[no-untyped-call]


def shuffled(frame: pd.DataFrame, seed: int) -> pd.DataFrame:
    return frame.sample(frac=1, random_state=seed).reset_index(drop=True)


# What Spark sees.


def a_group(frame: pd.DataFrame) -> pd.DataFrame:
    return frame


def a_keyed_group(key: tuple[Any, ...], frame: pd.DataFrame) -> pd.DataFrame:
    return frame


def group_batches(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    yield from batches


def keyed_tables(key: tuple[pa.Scalar, ...], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


class Method:
    def group(self, frame: pd.DataFrame) -> pd.DataFrame:
        return frame


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (a_group, PythonEvalType.SQL_GROUPED_MAP_PANDAS_UDF),
        (a_keyed_group, PythonEvalType.SQL_GROUPED_MAP_PANDAS_UDF),
        (group_batches, PythonEvalType.SQL_GROUPED_MAP_PANDAS_ITER_UDF),
    ],
)
def test_spark_takes_the_same_kind_of_function(function: Callable[..., Any], kind: int) -> None:
    wrapped = clonos.operator(function)
    assert inspect.signature(wrapped) == inspect.signature(function)
    assert inspect.getfullargspec(wrapped).args == inspect.getfullargspec(function).args
    assert infer_group_pandas_eval_type_from_func(wrapped) == kind
    assert wrapped.__name__ == function.__name__


def test_spark_takes_the_same_kind_of_arrow_function() -> None:
    assert infer_group_arrow_eval_type_from_func(
        clonos.operator(keyed_tables)
    ) == infer_group_arrow_eval_type_from_func(keyed_tables)


def test_a_method_does_not_count_itself() -> None:
    assert inspect.getfullargspec(clonos.operator(Method().group)).args == ["frame"]


def test_in_a_task_spark_tells_the_key_of_a_group() -> None:
    for function, arguments in ((a_group, 2), (a_keyed_group, 2), (lambda k, a, b: a, 3)):
        assert len(inspect.getfullargspec(in_task(clonos.operator(function))).args) == arguments


def test_each_use_is_numbered_when_it_is_pickled(scopes: Scopes) -> None:
    wrapped = clonos.operator(a_group)
    named = clonos.operator(a_keyed_group, name="score")
    uses = [in_task(one) for one in (wrapped, named, wrapped, named)]
    again = clonos.operator(a_keyed_group, name="score")
    uses.append(in_task(again))
    for use in uses:
        use(("k",), pd.DataFrame({"x": [1]}))
    assert [one.operator for one in scopes.opened] == ["a_group", "score", "a_group#2", "score#2", "score#3"]
    naming.forget_uses()
    in_task(wrapped)(("k",), pd.DataFrame({"x": [1]}))
    assert scopes.opened[-1].operator == "a_group", "another run of the job function numbers alike"


@pytest.mark.parametrize("name", ["", "a#2"])
def test_names_that_could_be_another_use(name: str) -> None:
    for decorate in (clonos.operator(name=name), clonos.udf("long", name=name), clonos.pandas_udf("long", name=name)):
        with pytest.raises(SpecError, match="cannot be named"):
            decorate(a_group)


@pytest.mark.parametrize("target", [3, "text", StatefulProcessor])
def test_what_cannot_be_an_operator(target: Any) -> None:
    with pytest.raises(SpecError, match=r"clonos\.operator got"):
        clonos.operator(target)


def test_outside_of_spark_it_is_the_function_itself(scopes: Scopes) -> None:
    frame = pd.DataFrame({"x": [2, 1]})
    assert clonos.operator(a_group, order_by="x")(frame) is frame
    assert scopes.opened == []


def test_an_operator_is_no_udf() -> None:
    for arguments in ((3,), (pd.Series([1]),), (pd.Series([1]), pd.Series([2])), (pa.array([1]),)):
        with pytest.raises(CarriedError) as refused:
            in_task(clonos.operator(lambda *a: a))(*arguments)
        assert "clonos.pandas_udf" in getattr(uncarry(str(refused.value)), "hint", "")


# What user code sees.


def test_answers_are_acknowledged_before_what_used_them_is_handed_on(scopes: Scopes) -> None:
    @clonos.operator
    def lengths(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for batch in batches:
            yield batch.assign(n=[length(word) for word in batch["word"]])
        length("at the very end")

    seen = []
    for out in in_task(lengths)(iter([pd.DataFrame({"word": [f"{n}", "same"]}) for n in range(3)])):
        assert scopes.unacknowledged() == 0
        seen.append((len(out), scopes.written()))
    assert seen == [(2, 2), (2, 3), (2, 4)]
    assert (scopes.written(), scopes.unacknowledged()) == (5, 0)
    assert len(scopes.opened) == 1


@pytest.mark.parametrize("group", [pd.DataFrame({"word": ["a", "b"]}), pa.table({"word": ["a", "b"]})])
def test_a_groups_answers_are_acknowledged_when_it_is_done(group: Any, scopes: Scopes) -> None:
    @clonos.operator
    def ask(key: tuple[Any, ...], rows: Any) -> Any:
        length(key[0])
        return rows

    use = in_task(ask)
    for number in range(3):
        use((f"k{number}",), group)
        assert (scopes.written(), scopes.unacknowledged()) == (number + 1, 0)
    assert len(scopes.opened) == 1


def test_generators_take_turns(scopes: Scopes) -> None:
    """Each finds its own operator and group at every step, and leaves nothing behind."""

    def draw(batches: Iterator[int]) -> Iterator[tuple[str, float]]:
        for _ in batches:
            current = scope.operator_scope()
            assert current is not None
            yield [current.operator, clonos.random()]  # type: ignore[misc]

    one, two = (in_task(clonos.operator(draw, name=name)) for name in ("one", "two"))
    first, second = one(iter(range(3))), two(iter(range(3)))
    turns = [next(first), next(second), next(second), next(first), next(first), next(second)]
    assert scope.operator_scope() is None
    assert [operator for operator, _ in turns] == ["one", "two", "two", "one", "one", "two"]
    naming.forget_uses()
    alone = list(in_task(clonos.operator(draw, name="one"))(iter(range(3))))
    assert alone == [turns[0], turns[3], turns[4]]


def test_a_generator_is_closed_inside() -> None:
    closed = []

    @clonos.operator(name="closing")
    def closing(batches: Iterator[int]) -> Iterator[list[int]]:
        try:
            for batch in batches:
                yield [batch]
        finally:
            current = scope.operator_scope()
            closed.append(current.operator if current else None)

    running = in_task(closing)
    # The list is of this process: shared by hand.
    running._function.__closure__[0].cell_contents = closed
    stream = running(iter(range(3)))
    next(stream)
    stream.close()
    assert closed == ["closing"]


def test_typed_errors_travel() -> None:
    @clonos.operator
    def fails(batches: Iterator[Any]) -> Iterator[Any]:
        yield next(batches)
        raise EpochFailed("gone")

    @clonos.operator(order_by="nowhere")
    def ordered(frame: pd.DataFrame) -> pd.DataFrame:
        return frame

    stream = in_task(fails)(iter([[1], [2]]))
    next(stream)
    with pytest.raises(CarriedError) as failed:
        next(stream)
    assert isinstance(uncarry(str(failed.value)), EpochFailed)
    with pytest.raises(CarriedError) as refused:
        in_task(ordered)(("k",), pd.DataFrame({"x": [1, 2]}))
    carried = uncarry(str(refused.value))
    assert isinstance(carried, JobCodeError)
    assert "nowhere" in carried.what


def test_a_group_draws_by_its_key_wherever_and_whenever_it_is_computed(scopes: Scopes) -> None:
    def draw(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.assign(draw=[clonos.random() for _ in range(len(frame))], id=str(clonos.uuid4()))

    def run(order: list[str], task: int) -> dict[str, list[Any]]:
        naming.forget_uses()
        scopes.number = task
        use = in_task(clonos.operator(draw))
        groups = {key: use((key,), pd.DataFrame({"x": [1, 2]})) for key in order}
        return {key: frame[["draw", "id"]].values.tolist() for key, frame in sorted(groups.items())}

    first = run(["a", "b", "c"], 0)
    assert first == run(["c", "a", "b"], 1)
    assert len({row[0] for rows in first.values() for row in rows}) == 6


def test_a_cogroup_without_a_key_draws_by_its_rows() -> None:
    def draw(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"draw": [clonos.random()], "left": [len(left)]})

    def run(seed: int, reverse: bool) -> dict[int, float]:
        naming.forget_uses()
        use = in_task(clonos.operator(draw, order_by="v"))
        drawn = {}
        for key in (2, 1) if reverse else (1, 2):
            left = shuffled(pd.DataFrame({"k": key, "v": range(5)}), seed)
            right = pd.DataFrame({"k": [key], "w": ["x"]}) if key == 1 else pd.DataFrame({"k": [], "w": []})
            drawn[key] = use(left, right)["draw"][0]
        return drawn

    assert run(1, reverse=False) == run(2, reverse=True)
    assert len(set(run(1, reverse=False).values())) == 2


def test_a_keyed_cogroup() -> None:
    use = in_task(
        clonos.operator(lambda key, left, right: (key, list(left["v"]), list(right["w"])), order_by=["v", "w"])
    )
    left, right = pd.DataFrame({"v": [3, 1, 2]}), pd.DataFrame({"w": ["b", "a"]})
    assert use(("k",), left, right) == (("k",), [1, 2, 3], ["a", "b"])


# Order.

RECORDS = pd.DataFrame(
    {
        "topic": ["t"] * 40,
        "partition": [n % 3 for n in range(40)],
        "offset": [n // 3 for n in range(40)],
        "word": [f"w{n % 7}" if n % 5 else None for n in range(40)],
        "price": [n / 4 if n % 6 else float("nan") for n in range(40)],
        "tags": [[f"{n % 4}", None] for n in range(40)],
        "mixed": [n if n % 2 else f"{n}" for n in range(40)],
        "at": pd.to_datetime([n * 10**9 for n in range(40)], utc=True),
    }
)
ROWS = [Row(**record) for record in RECORDS.to_dict("records")]


@pytest.mark.parametrize("by", [None, ("word",), ("price", "word"), ("tags",), ("mixed",), ("at",)])
@pytest.mark.parametrize("columns", [list(RECORDS.columns), ["word", "price", "tags", "mixed"], ["word", "at"]])
def test_the_order_follows_from_the_rows(by: tuple[str, ...] | None, columns: list[str]) -> None:
    if by is not None and not set(by) <= set(columns):
        columns = [*columns, *(name for name in by if name not in columns)]
    frame = RECORDS[columns]
    wanted = ordered_frame(shuffled(frame, 0), by)
    assert not wanted.equals(shuffled(frame, 0))
    arrow = [name for name in columns if name != "mixed"]
    by_arrow = None if by == ("mixed",) else by
    table = pa.Table.from_pandas(frame[arrow], preserve_index=False)
    wanted_table = ordered_table(table, by_arrow)
    rows = [Row(**{name: row[name] for name in arrow}) for row in ROWS]
    wanted_rows = ordered_rows(list(rows), by_arrow)
    for seed in range(1, 6):
        pd.testing.assert_frame_equal(ordered_frame(shuffled(frame, seed), by), wanted)
        mixed = random.Random(seed).sample(range(40), 40)
        assert ordered_table(table.take(pa.array(mixed)), by_arrow).equals(wanted_table)
        assert str(ordered_rows([rows[n] for n in mixed], by_arrow)) == str(wanted_rows)


def test_source_columns_decide_where_there_are_any() -> None:
    frame = ordered_frame(shuffled(RECORDS, 3), None)
    assert list(zip(frame["partition"], frame["offset"], strict=True)) == sorted(
        zip(frame["partition"], frame["offset"], strict=True)
    )
    random.Random(3).shuffle(rows := list(ROWS))
    assert [(row.partition, row.offset) for row in ordered_rows(rows, None)] == [
        (row["partition"], row["offset"]) for row in frame.to_dict("records")
    ]


def test_named_columns_decide_in_ascending_order() -> None:
    rows = [Row(at=at, word=word) for at, word in [(3, "c"), (None, "d"), (1, "b"), (1, "a")]]
    wanted = ["a", "b", "c", "d"]
    assert [row.word for row in ordered_rows(rows, ("at",))] == wanted
    frame = pd.DataFrame([row.asDict() for row in rows])
    assert list(ordered_frame(frame, ("at",))["word"]) == wanted
    assert ordered_table(pa.Table.from_pandas(frame), ("at",)).column("word").to_pylist() == wanted


@pytest.mark.parametrize("arrow", [False, True])
def test_one_group_in_several_batches_is_ordered_as_one(arrow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clonos.causal.ordering._CHUNK", 15)

    records = RECORDS.drop(columns="mixed")
    schema = pa.Schema.from_pandas(records, preserve_index=False)

    def batches(seed: int, cut: int) -> Iterator[Any]:
        frame = shuffled(records, seed)
        for start in range(0, len(frame), cut):
            part = frame.iloc[start : start + cut].reset_index(drop=True)
            yield pa.RecordBatch.from_pandas(part, schema, preserve_index=False) if arrow else part

    def handed(seed: int, cut: int) -> list[list[Any]]:
        parts = ordered_batches(batches(seed, cut), None)
        return [part.column("offset").to_pylist() if arrow else list(part["offset"]) for part in parts]

    assert handed(1, 7) == handed(2, 40) == handed(3, 1)
    assert [len(part) for part in handed(1, 7)] == [15, 15, 10]
    assert list(ordered_batches([], None)) == []


def test_an_empty_batch_stays() -> None:
    """applyInPandasWithState hands one over when a key timed out."""
    (left,) = ordered_batches([pd.DataFrame({"x": []})], None)
    assert list(left.columns) == ["x"]
    (right,) = ordered_batches([pa.RecordBatch.from_pylist([], pa.schema([("x", pa.int64())]))], None)
    assert right.schema.names == ["x"]


# Stateful processors.


class Totals(StatefulProcessor):
    """Tells what it sees."""

    def init(self, handle: Any) -> None:
        self.seen: list[Any] = [("init", handle, clonos.random())]

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Any]:  # noqa: N802, N803
        for row in rows:
            if isinstance(row, pd.DataFrame):
                yield row.assign(n=[length(word) for word in row["word"]], draw=clonos.random())
            else:
                yield Row(word=row.word, n=length(row.word), draw=clonos.random())

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Any]:
        yield Row(key=key[0], draw=clonos.random(), n=length("timer"))

    def handleInitialState(self, key: Any, initialState: Any, timerValues: TimerValues) -> None:  # noqa: N802, N803
        self.seen.append(("initial", key, initialState, clonos.random(), length("initial")))

    def close(self) -> None:
        self.seen.append(("close", length("closing")))


def processor(order_by: str | None = None) -> Any:
    return in_task(clonos.operator(Totals(), order_by=order_by))


def test_each_use_of_a_processor_is_numbered(scopes: Scopes) -> None:
    one = clonos.operator(Totals())
    assert isinstance(one, StatefulProcessor)
    for _ in range(2):
        in_task(one).init("handle")
    in_task(clonos.operator(Totals(), name="totals")).init("handle")
    assert [opened.operator for opened in scopes.opened] == ["Totals", "Totals#2", "totals"]
    assert {"transformWithStateUDF", "transformWithStateWithInitStateUDF"} <= naming.shown_in_plans()


def test_a_processor_sees_rows_in_order_and_draws_by_key(scopes: Scopes) -> None:
    rows = [Row(word=word) for word in ("c", "a", "b")]

    def run(keys: str, rows: list[Row]) -> dict[str, list[Row]]:
        naming.forget_uses()
        use = processor()
        use.init("handle")
        return {key: list(use.handleInputRows((key,), iter(rows), TIMES)) for key in keys}

    first, second = run("kl", rows), run("lk", rows[::-1])
    assert first == second
    assert [row.word for row in first["k"]] == ["a", "b", "c"]
    assert len({row.draw for rows in first.values() for row in rows}) == 6
    assert scopes.unacknowledged() == 0


def test_a_pandas_processor_sees_all_chunks_of_a_key_in_order() -> None:
    def run(seed: int, cut: int) -> pd.DataFrame:
        naming.forget_uses()
        frame = shuffled(pd.DataFrame({"word": [f"{n:02}" for n in range(20)]}), seed)
        chunks = (frame.iloc[start : start + cut] for start in range(0, 20, cut))
        return pd.concat(list(processor().handleInputRows(("k",), chunks, TIMES)))

    pd.testing.assert_frame_equal(run(1, 7), run(2, 20))
    assert list(run(1, 7)["word"]) == sorted(run(1, 7)["word"])


def test_every_method_of_a_processor_is_inside(scopes: Scopes) -> None:
    use = processor()
    use.init("handle")
    frame = pd.DataFrame({"word": ["b", "a"]})
    use.handleInitialState(("k",), frame, TIMES)
    use.handleInitialState(("k",), Row(word="x"), TIMES)
    assert scopes.unacknowledged() == 0
    timers = [list(use.handleExpiredTimer(("k",), TIMES, ExpiredTimerInfo(at))) for at in (1, 2)]
    use.close()
    assert scopes.unacknowledged() == 0
    assert scopes.written() == 3
    seen = use.inner.seen
    assert [what[0] for what in seen] == ["init", "initial", "initial", "close"]
    assert list(seen[1][2]["word"]) == ["a", "b"]
    drawn = [seen[0][2], seen[1][3], seen[2][3], timers[0][0].draw, timers[1][0].draw]
    assert len(set(drawn)) == 5
    naming.forget_uses()
    again = processor()
    assert list(again.handleExpiredTimer(("k",), TIMES, ExpiredTimerInfo(2))) == timers[1], "whatever came before"


def test_rows_are_acknowledged_together(scopes: Scopes, monkeypatch: pytest.MonkeyPatch) -> None:
    flushes: list[int] = []
    flush = Recorder.flush

    def counted(self: Recorder) -> None:
        flushes.append(len(self.queued))
        flush(self)

    monkeypatch.setattr(Recorder, "flush", counted)
    rows = iter([Row(word=f"{n}") for n in range(50)])
    for _ in processor().handleInputRows(("k",), rows, TIMES):
        assert scopes.unacknowledged() == 0
    assert sum(flushes) == 50
    assert len(flushes) <= 2


def test_on_the_driver_a_processor_just_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "open_task_scope", lambda _: None)
    direct = clonos.operator(Totals())
    direct.init("handle")  # type: ignore[arg-type]
    (row,) = direct.handleInputRows(("k",), iter([Row(word="abc")]), TIMES)
    assert row.n == 3


# Vectorised functions.


def test_a_scalar_function_runs_batch_by_batch() -> None:
    apply = _batch_by_batch("pandas", lambda a, b: (a + b).to_numpy(), struct=False)
    out = list(apply(iter([(pd.Series([1, 2]), pd.Series([10, 20])), (pd.Series([3]), pd.Series([30]))])))
    assert [list(one) for one in out] == [[11, 22], [33]]
    assert all(isinstance(one, pd.Series) for one in out)
    with pytest.raises(ValueError, match="2 rows went in, 1 came out"):
        list(_batch_by_batch("arrow", lambda a: a[:1], struct=False)(iter([pa.array([1, 2])])))


def test_the_function_stays_reachable() -> None:
    @clonos.pandas_udf("long")
    def double(values: pd.Series) -> pd.Series:
        return values * 2

    assert list(double.function(pd.Series([1]))) == [2]  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="at least one column"):
        double()
