"""Decoding and encoding as columns: Arrow iterator UDFs around a format's task half."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

import pyarrow as pa
import xxhash
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type

from clonos.carried import carry
from clonos.causal.naming import operator_name
from clonos.causal.scope import TaskScope, open_task_scope
from clonos.errors import ClonosError, EpochFailed, JobCodeError, PoisonRecord, RegistryUnavailable, SpecError
from clonos.formats.codec import Decode, Reader, Writer
from clonos.formats.poison import COLUMN, POISON, UDF_NAME, DropCount, Policy, drops
from clonos.formats.registry import UnknownSchema, registry_at
from clonos.log.records import Entry

_SOURCE: Final = ("topic", "partition", "offset")
_MESSAGE_CHARACTERS: Final = 500
# What a Python object calls itself differs from run to run; a dead letter may not.
_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")


def decode(
    frame: DataFrame, reader: Reader, number: int, *, column: str, into: str, on_poison: Policy, dead_letters: str
) -> DataFrame:
    """`frame` with the struct column `into`, and with `poison` where the policy is ``dead-letter``.

    Raises:
        SpecError: `frame` lacks columns of the source that the policy needs.
    """
    needs = [column, *_SOURCE, *(("key", "headers", "timestamp") if on_poison == "dead-letter" else ())]
    missing = [name for name in needs if name not in frame.columns]
    if missing:
        raise SpecError(
            f"ctx.decode needs the source's columns {missing}.", hint="decode first, then select what you need."
        )
    if into in frame.columns or (on_poison == "dead-letter" and COLUMN in frame.columns):
        raise SpecError(
            f"The DataFrame has a column {into if into in frame.columns else COLUMN!r} already.", hint="pass into=…."
        )
    verdict = f"_verdict_{number}"
    judged = frame.withColumn(verdict, _decode_udf(reader, number, on_poison)(column, *_SOURCE))
    decoded = judged.withColumn(into, F.col(f"{verdict}.record"))
    failed = F.col(f"{verdict}.error").isNotNull()
    if on_poison == "drop":
        decoded = decoded.where(~failed)
    elif on_poison == "dead-letter":
        parts = {**{name: F.col(name) for name in (*_SOURCE, "key", "headers", "timestamp")}, "value": F.col(column)}
        parts |= {name: F.col(f"{verdict}.{name}") for name in ("error", "message")}
        parts["dead_letters"] = F.lit(dead_letters)
        whole = F.struct(*(parts[field.name].cast(field.dataType).alias(field.name) for field in POISON.fields))
        decoded = decoded.withColumn(COLUMN, F.when(failed, whole))
    return decoded.drop(verdict)


def encode(column: Column | str, writer: Writer) -> Column:
    """`column`, a struct, as bytes; null stays null."""

    def batches_of_one(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        write = writer.open()
        for batch in batches:
            yield pa.array([_encoded(write, row) for row in batch.to_pylist(maps_as_pydicts="strict")], pa.binary())

    batches_of_one.__annotations__ = {"batches": Iterator[pa.Array], "return": Iterator[pa.Array]}
    made: Column = _arrow_udf(batches_of_one, T.BinaryType())(column)
    return made


def _encoded(write: Callable[[dict[str, Any]], bytes], row: dict[str, Any] | None) -> bytes | None:
    if row is None:
        return None
    try:
        return write(row)
    except Exception as error:
        raise carry(
            JobCodeError(
                f"A row cannot be encoded: {type(error).__name__}: {error}.",
                hint="make the columns fit the schema that ctx.encode was given.",
            )
        ) from error


# Its stubs list scalar functions only; iterators of arrays are documented and work.
_arrow_udf: Callable[..., Any] = cast("Any", arrow_udf)


def _decode_udf(reader: Reader, number: int, on_poison: Policy) -> Callable[..., Column]:
    spark = T.StructType(
        [
            T.StructField("record", reader.spark_type),
            T.StructField("error", T.StringType()),
            T.StructField("message", T.StringType()),
        ]
    )
    arrow = cast("pa.StructType", to_arrow_type(spark, timezone="UTC"))
    operator = operator_name("clonos.decode")
    counter = drops.for_pickling()

    def decode_batches(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        try:
            task = _Decoding(reader, operator)
            dropped = 0
            for values, topics, partitions, offsets in batches:
                records, wrong = task.decode(values.to_pylist(), arrow.field("record").type)
                task.flush()
                if on_poison == "drop":
                    dropped += len(wrong)
                elif on_poison == "fail" and wrong:
                    first = min(wrong)
                    raise PoisonRecord(
                        f"{topics[first]}[{partitions[first]}] offset {offsets[first]} cannot be decoded: "
                        f"{': '.join(wrong[first])}."
                    )
                why = [wrong.get(index, (None, None)) for index in range(len(values))]
                yield pa.StructArray.from_arrays(
                    [
                        records,
                        pa.array([one for one, _ in why], pa.string()),
                        pa.array([one for _, one in why], pa.string()),
                    ],
                    fields=list(arrow),
                )
            DropCount.add(counter, dropped)
        except ClonosError as error:
            raise carry(error) from error

    # The name shows in the plan: there it says whose poison rows a sink gets.
    decode_batches.__name__ = f"{UDF_NAME}{number}"
    decode_batches.__annotations__ = {"batches": Iterator[tuple[pa.Array, ...]], "return": Iterator[pa.Array]}
    # As a clonos.udf: Spark evaluates a deterministic one more than once.
    made: Callable[..., Column] = _arrow_udf(decode_batches, spark).asNondeterministic()
    return made


class _Decoding:
    """Decodes the records of one task."""

    def __init__(self, reader: Reader, operator: str) -> None:
        self._registry = reader.registry
        # Whether the registry knows an id may change; that it did not is recorded, so that a replay agrees.
        self._scope: TaskScope | None = open_task_scope(operator) if reader.registry else None
        self._unknown: set[bytes] = set()
        self._decode: Decode = reader.open(self._schema)

    def decode(self, values: list[bytes | None], arrow: pa.DataType) -> tuple[pa.Array, dict[int, tuple[str, str]]]:
        """The records as Arrow, null where `values` is or where it is poison; and the poison's causes."""
        records: list[Any] = []
        wrong: dict[int, tuple[str, str]] = {}
        for index, value in enumerate(values):
            try:
                records.append(None if value is None else self._decode(value))
            except RegistryUnavailable as error:
                raise EpochFailed(error.what, hint=error.hint) from error
            except Exception as error:
                records.append(None)
                wrong[index] = _cause(error)
        try:
            return pa.array(records, arrow), wrong
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            # A decimal with too many digits, say: find the records.
            for index, record in enumerate(records):
                try:
                    pa.array([record], arrow)
                except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
                    records[index] = None
                    wrong[index] = _cause(error)
            return pa.array(records, arrow), wrong

    def flush(self) -> None:
        """Return once the log has what the registry did not know."""
        if self._scope is not None:
            self._scope.flush()

    def _schema(self, number: int, *, serialized: bool = False) -> Any:
        url = self._registry or ""
        key = xxhash.xxh3_128_digest(f"clonos.formats {url} {number}".encode())
        if key in self._unknown or (self._scope is not None and self._scope.known(key) is not None):
            raise UnknownSchema(f"The id {number} is not in the registry {url}.")
        try:
            return registry_at(url).schema(number, serialized=serialized)
        except UnknownSchema:
            self._unknown.add(key)
            if self._scope is not None:
                self._scope.record(Entry(key, b"", failed=True))
            raise


def _cause(error: Exception) -> tuple[str, str]:
    text = _ADDRESS.sub("", " ".join(str(error).split()))
    return type(error).__name__, text[:_MESSAGE_CHARACTERS]
