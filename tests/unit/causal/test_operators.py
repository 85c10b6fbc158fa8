"""`clonos.operator`, `clonos.pandas_udf` and `clonos.arrow_udf` without Spark."""

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
from pyspark.sql.types import StringType
from pyspark.util import PythonEvalType

import clonos
from clonos.carried_errors import CarriedError, uncarry
from clonos.causal import naming, operator_task, scope
from clonos.causal.epoch_scope import EpochScope
from clonos.causal.ordering import ordered_batches, ordered_frame, ordered_rows, ordered_table
from clonos.causal.scope import TaskScope
from clonos.causal.vectorised import _batch_by_batch, _iterator_udf
from clonos.errors import EpochFailed, JobCodeError, SpecError
from clonos.log.records import Determinant, EpochIdentity, Owner

EPOCH = EpochScope(
    EpochIdentity("j", "clonos.j.log", "q", 3, Owner(1, 1, "a"), replay=False),
    timestamp_ms=0,
    seed=42,
    depth="full",
    log_partitions=(1,),
    start_offsets={1: 0},
    claim_offsets={1: 5},
    params={},
)
TIMES = TimerValues(1000, 0)


class Recorder:
    def __init__(self, *_args: object) -> None:
        self.queued: list[Determinant] = []
        self.written = self.bytes = 0

    def add(self, entry: Determinant) -> None:
        self.queued.append(entry)

    def flush(self) -> None:
        self.written += len(self.queued)
        self.queued = []


class Scopes:
    """The scopes that operators opened in a task without Spark."""

    def __init__(self) -> None:
        self.opened: list[TaskScope] = []
        self.number = 0

    def open(self, operator: str) -> TaskScope:
        opened = TaskScope(EPOCH, operator, self.number)
        self.opened.append(opened)
        return opened

    def unacknowledged(self) -> int:
        return sum(len(opened._recorder.queued) for opened in self.opened)  # type: ignore[attr-defined]

    def written(self) -> int:
        return sum(opened._recorder.written for opened in self.opened)  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def scopes(monkeypatch: pytest.MonkeyPatch) -> Scopes:
    opened = Scopes()
    monkeypatch.setattr(scope, "Recorder", Recorder)
    monkeypatch.setattr(operator_task, "open_task_scope", opened.open)
    naming.forget_uses()
    return opened


@clonos.service(name="length")
def length(word: str) -> int:
    return len(word)


def in_task(target: Any) -> Any:
    """The object that Spark unpickles in a task."""
    return cloudpickle.loads(cloudpickle.dumps(target))  # type: ignore[no-untyped-call]


def shuffled(frame: pd.DataFrame, seed: int) -> pd.DataFrame:
    return frame.sample(frac=1, random_state=seed).reset_index(drop=True)


# The signatures that Spark reads.


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
def test_wrapped_function_has_the_kind_of_the_function(function: Callable[..., Any], kind: int) -> None:
    wrapped = clonos.operator(function)
    assert inspect.signature(wrapped) == inspect.signature(function)
    assert inspect.getfullargspec(wrapped).args == inspect.getfullargspec(function).args
    assert infer_group_pandas_eval_type_from_func(wrapped) == kind
    assert wrapped.__name__ == function.__name__


def test_wrapped_arrow_function_has_the_kind_of_the_function() -> None:
    assert infer_group_arrow_eval_type_from_func(
        clonos.operator(keyed_tables)
    ) == infer_group_arrow_eval_type_from_func(keyed_tables)


def test_wrapped_method_has_no_self_argument() -> None:
    assert inspect.getfullargspec(clonos.operator(Method().group)).args == ["frame"]


def test_function_in_a_task_takes_the_key() -> None:
    for function, arguments in ((a_group, 2), (a_keyed_group, 2), (lambda k, a, b: a, 3)):
        assert len(inspect.getfullargspec(in_task(clonos.operator(function))).args) == arguments


def test_pickling_numbers_each_use(scopes: Scopes) -> None:
    wrapped = clonos.operator(a_group)
    named = clonos.operator(a_keyed_group, name="score")
    uses = [in_task(operator) for operator in (wrapped, named, wrapped, named)]
    again = clonos.operator(a_keyed_group, name="score")
    uses.append(in_task(again))
    for use in uses:
        use(("k",), pd.DataFrame({"x": [1]}))
    assert [opened.operator for opened in scopes.opened] == ["a_group", "score", "a_group#2", "score#2", "score#3"]
    naming.forget_uses()
    in_task(wrapped)(("k",), pd.DataFrame({"x": [1]}))
    assert scopes.opened[-1].operator == "a_group", "another run of the job function has the same numbers"


@pytest.mark.parametrize("name", ["", "a#2"])
def test_name_with_a_number_sign_is_refused(name: str) -> None:
    for decorate in (clonos.operator(name=name), clonos.udf("long", name=name), clonos.pandas_udf("long", name=name)):
        with pytest.raises(SpecError, match="cannot be named"):
            decorate(a_group)


@pytest.mark.parametrize("target", [3, "text", StatefulProcessor])
def test_operator_refuses_other_objects(target: Any) -> None:
    with pytest.raises(SpecError, match=r"clonos\.operator got"):
        clonos.operator(target)


def test_operator_outside_spark_calls_the_function(scopes: Scopes) -> None:
    frame = pd.DataFrame({"x": [2, 1]})
    assert clonos.operator(a_group, order_by="x")(frame) is frame
    assert scopes.opened == []


def test_operator_refuses_to_be_a_udf() -> None:
    for arguments in ((3,), (pd.Series([1]),), (pd.Series([1]), pd.Series([2])), (pa.array([1]),)):
        with pytest.raises(CarriedError) as refused:
            in_task(clonos.operator(lambda *a: a))(*arguments)
        assert "clonos.pandas_udf" in getattr(uncarry(str(refused.value)), "hint", "")


# Scopes and acknowledgement.


def test_answers_are_acknowledged_before_their_output_leaves(scopes: Scopes) -> None:
    @clonos.operator
    def lengths(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for batch in batches:
            yield batch.assign(n=[length(word) for word in batch["word"]])
        length("after the last batch")

    seen = []
    for out in in_task(lengths)(iter([pd.DataFrame({"word": [f"{n}", "same"]}) for n in range(3)])):
        assert scopes.unacknowledged() == 0
        seen.append((len(out), scopes.written()))
    assert seen == [(2, 2), (2, 3), (2, 4)]
    assert (scopes.written(), scopes.unacknowledged()) == (5, 0)
    assert len(scopes.opened) == 1


@pytest.mark.parametrize("group", [pd.DataFrame({"word": ["a", "b"]}), pa.table({"word": ["a", "b"]})])
def test_answers_of_a_group_are_acknowledged_before_it_returns(group: Any, scopes: Scopes) -> None:
    @clonos.operator
    def ask(key: tuple[Any, ...], rows: Any) -> Any:
        length(key[0])
        return rows

    use = in_task(ask)
    for number in range(3):
        use((f"k{number}",), group)
        assert (scopes.written(), scopes.unacknowledged()) == (number + 1, 0)
    assert len(scopes.opened) == 1


def test_interleaved_generators_keep_their_operators(scopes: Scopes) -> None:
    """Each step runs in its own operator and group, and the context is reset after it."""

    def draw(batches: Iterator[int]) -> Iterator[tuple[str, float]]:
        for _ in batches:
            current = scope.operator_scope()
            assert current is not None
            yield [current.operator, clonos.random()]  # type: ignore[misc]

    first, second = (in_task(clonos.operator(draw, name=name))(iter(range(3))) for name in ("first", "second"))
    turns = [next(first), next(second), next(second), next(first), next(first), next(second)]
    assert scope.operator_scope() is None
    assert [operator for operator, _ in turns] == ["first", "second", "second", "first", "first", "second"]
    naming.forget_uses()
    alone = list(in_task(clonos.operator(draw, name="first"))(iter(range(3))))
    assert alone == [turns[0], turns[3], turns[4]]


def test_generator_is_closed_inside_its_operator() -> None:
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
    # Pickling copied the list: put the original into the closure.
    running._function.__closure__[0].cell_contents = closed
    stream = running(iter(range(3)))
    next(stream)
    stream.close()
    assert closed == ["closing"]


def test_typed_errors_are_carried() -> None:
    @clonos.operator
    def fails(batches: Iterator[Any]) -> Iterator[Any]:
        yield next(batches)
        raise EpochFailed("failed")

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


def test_draws_of_a_group_depend_on_its_key_only(scopes: Scopes) -> None:
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


def test_draws_of_a_cogroup_without_a_key_depend_on_its_rows() -> None:
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


def test_cogroup_gets_its_key_and_ordered_sides() -> None:
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
def test_order_depends_on_the_rows_only(by: tuple[str, ...] | None, columns: list[str]) -> None:
    if by is not None and not set(by) <= set(columns):
        columns = [*columns, *(name for name in by if name not in columns)]
    frame = RECORDS[columns]
    expected = ordered_frame(shuffled(frame, 0), by)
    assert not expected.equals(shuffled(frame, 0))
    arrow = [name for name in columns if name != "mixed"]
    by_arrow = None if by == ("mixed",) else by
    table = pa.Table.from_pandas(frame[arrow], preserve_index=False)
    expected_table = ordered_table(table, by_arrow)
    rows = [Row(**{name: row[name] for name in arrow}) for row in ROWS]
    expected_rows = ordered_rows(list(rows), by_arrow)
    for seed in range(1, 6):
        pd.testing.assert_frame_equal(ordered_frame(shuffled(frame, seed), by), expected)
        mixed = random.Random(seed).sample(range(40), 40)
        assert ordered_table(table.take(pa.array(mixed)), by_arrow).equals(expected_table)
        assert str(ordered_rows([rows[n] for n in mixed], by_arrow)) == str(expected_rows)


def test_default_order_is_by_the_source_columns() -> None:
    frame = ordered_frame(shuffled(RECORDS, 3), None)
    assert list(zip(frame["partition"], frame["offset"], strict=True)) == sorted(
        zip(frame["partition"], frame["offset"], strict=True)
    )
    random.Random(3).shuffle(rows := list(ROWS))
    assert [(row.partition, row.offset) for row in ordered_rows(rows, None)] == [
        (row["partition"], row["offset"]) for row in frame.to_dict("records")
    ]


def test_named_columns_order_the_rows_ascending() -> None:
    rows = [Row(at=at, word=word) for at, word in [(3, "c"), (None, "d"), (1, "b"), (1, "a")]]
    expected = ["a", "b", "c", "d"]
    assert [row.word for row in ordered_rows(rows, ("at",))] == expected
    frame = pd.DataFrame([row.asDict() for row in rows])
    assert list(ordered_frame(frame, ("at",))["word"]) == expected
    assert ordered_table(pa.Table.from_pandas(frame), ("at",)).column("word").to_pylist() == expected


@pytest.mark.parametrize("arrow", [False, True])
def test_batches_of_one_group_are_ordered_together(arrow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clonos.causal.ordering._CHUNK", 15)

    records = RECORDS.drop(columns="mixed")
    schema = pa.Schema.from_pandas(records, preserve_index=False)

    def batches(seed: int, cut: int) -> Iterator[Any]:
        frame = shuffled(records, seed)
        for start in range(0, len(frame), cut):
            part = frame.iloc[start : start + cut].reset_index(drop=True)
            yield pa.RecordBatch.from_pandas(part, schema, preserve_index=False) if arrow else part

    def offsets(seed: int, cut: int) -> list[list[Any]]:
        parts = ordered_batches(batches(seed, cut), None)
        return [part.column("offset").to_pylist() if arrow else list(part["offset"]) for part in parts]

    assert offsets(1, 7) == offsets(2, 40) == offsets(3, 1)
    assert [len(part) for part in offsets(1, 7)] == [15, 15, 10]
    assert list(ordered_batches([], None)) == []


def test_empty_batch_is_passed_on() -> None:
    """applyInPandasWithState passes an empty batch when a key timed out."""
    (left,) = ordered_batches([pd.DataFrame({"x": []})], None)
    assert list(left.columns) == ["x"]
    (right,) = ordered_batches([pa.RecordBatch.from_pylist([], pa.schema([("x", pa.int64())]))], None)
    assert right.schema.names == ["x"]


# Stateful processors.


class Totals(StatefulProcessor):
    """Records its calls in `seen`."""

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


def test_pickling_numbers_each_use_of_a_processor(scopes: Scopes) -> None:
    totals = clonos.operator(Totals())
    assert isinstance(totals, StatefulProcessor)
    for _ in range(2):
        in_task(totals).init("handle")
    in_task(clonos.operator(Totals(), name="totals")).init("handle")
    assert [opened.operator for opened in scopes.opened] == ["Totals", "Totals#2", "totals"]
    assert {"transformWithStateUDF", "transformWithStateWithInitStateUDF"} <= naming.shown_in_plans()


def test_processor_gets_ordered_rows_and_draws_by_key(scopes: Scopes) -> None:
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


def test_pandas_processor_gets_ordered_chunks() -> None:
    def run(seed: int, cut: int) -> pd.DataFrame:
        naming.forget_uses()
        frame = shuffled(pd.DataFrame({"word": [f"{n:02}" for n in range(20)]}), seed)
        chunks = (frame.iloc[start : start + cut] for start in range(0, 20, cut))
        return pd.concat(list(processor().handleInputRows(("k",), chunks, TIMES)))

    pd.testing.assert_frame_equal(run(1, 7), run(2, 20))
    assert list(run(1, 7)["word"]) == sorted(run(1, 7)["word"])


def test_all_methods_of_a_processor_run_inside_the_operator(scopes: Scopes) -> None:
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
    assert [call[0] for call in seen] == ["init", "initial", "initial", "close"]
    assert list(seen[1][2]["word"]) == ["a", "b"]
    drawn = [seen[0][2], seen[1][3], seen[2][3], timers[0][0].draw, timers[1][0].draw]
    assert len(set(drawn)) == 5
    naming.forget_uses()
    again = processor()
    assert list(again.handleExpiredTimer(("k",), TIMES, ExpiredTimerInfo(2))) == timers[1], (
        "independent of earlier calls"
    )


def test_rows_share_acknowledgements(scopes: Scopes, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_processor_works_on_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_task, "open_task_scope", lambda _: None)
    direct = clonos.operator(Totals())
    direct.init("handle")  # type: ignore[arg-type]
    (row,) = direct.handleInputRows(("k",), iter([Row(word="abc")]), TIMES)
    assert row.n == 3


# Vectorised functions.


def test_scalar_function_runs_per_batch() -> None:
    apply = _batch_by_batch("pandas", lambda a, b: (a + b).to_numpy(), struct=False)
    out = list(apply(iter([(pd.Series([1, 2]), pd.Series([10, 20])), (pd.Series([3]), pd.Series([30]))])))
    assert [list(series) for series in out] == [[11, 22], [33]]
    assert all(isinstance(series, pd.Series) for series in out)
    with pytest.raises(ValueError, match="got 2 rows and returned 1"):
        list(_batch_by_batch("arrow", lambda a: a[:1], struct=False)(iter([pa.array([1, 2])])))


def test_calls_of_a_function_in_one_task_draw_different_numbers(scopes: Scopes) -> None:
    """In a live query a task may call a function on an iterator several times."""

    def ids(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        for batch in batches:
            yield batch.map(lambda _word: str(clonos.uuid4()))

    call: Any = _iterator_udf("pandas", ids, "job.ids", StringType(), ("word",))
    drawn = [number for _ in range(2) for batch in call.func(iter([pd.Series(["a", "b"])])) for number in batch]
    assert len(set(drawn)) == 4
    assert len(scopes.opened) == 1


def test_original_function_is_an_attribute() -> None:
    @clonos.pandas_udf("long")
    def double(values: pd.Series) -> pd.Series:
        return values * 2

    assert list(double.function(pd.Series([1]))) == [2]  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="at least one column"):
        double()
