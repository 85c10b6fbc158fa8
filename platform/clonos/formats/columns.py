"""Decodes and encodes columns with Arrow iterator UDFs around the reader or writer of a format."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, Self, cast

import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type

from clonos.carried_errors import carry, carrying
from clonos.causal import exact
from clonos.causal.naming import operator_name
from clonos.causal.scope import TaskScope, current_epoch, open_task_scope, time_ms
from clonos.errors import ClonosError, JobCodeError, PoisonRecord, RegistryRefused, RegistryUnavailable, SpecError
from clonos.formats.codec import Decode, Reader, Writer
from clonos.formats.poison import COLUMN, HEADERS, POISON, UDF_NAME, VERDICT, DropCount, Policy, drops
from clonos.formats.registry import SchemaKey, UnknownSchema, named, registry_at
from clonos.log.records import Determinant
from clonos.units import parse_duration

_SOURCE: Final = ("topic", "partition", "offset")
_MESSAGE_CHARACTERS: Final = 500
# The address in an object's default text differs between runs; a dead letter must not.
_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")


class Bound(NamedTuple):
    """The longest time by which a field of a record may be after the time of its epoch."""

    event_time: str
    ahead_s: float

    @classmethod
    def of(cls, event_time: str, ahead: str, record: T.StructType) -> Self:
        """Check and parse the arguments of `ctx.decode`: `SpecError` without such a timestamp or duration."""
        if event_time not in record.names or not isinstance(record[event_time].dataType, T.TimestampType):
            raise SpecError(
                f"event_time={event_time!r} is not a field of type timestamp; the record has "
                f"{record.simpleString()[:_MESSAGE_CHARACTERS]}.",
                hint="name a field of the record itself, and declare it as timestamp in schema=.",
            )
        try:
            return cls(event_time, parse_duration(ahead))
        except ValueError as error:
            raise SpecError(f"max_ahead: {error}.") from error

    def poison(self, records: pa.Array) -> dict[int, tuple[str, str]]:
        """Index → cause of the records beyond the bound. A replay decides the same: the epoch's time is in its plan."""
        epoch = current_epoch()
        if epoch is None:
            return {}
        latest = dt.datetime.fromtimestamp(time_ms(epoch) / 1000 + self.ahead_s, dt.UTC)
        times = records.field(self.event_time).to_pylist()
        text = f"is after {latest.isoformat(timespec='milliseconds')}, the time of the epoch and max_ahead"
        return {
            index: ("FutureEventTime", f"{self.event_time}={at.isoformat()} {text}")
            for index, at in enumerate(times)
            if at is not None and at > latest
        }


def decode(
    frame: DataFrame,
    reader: Reader,
    number: int,
    *,
    column: str,
    into: str,
    on_poison: Policy,
    dead_letters: str,
    bound: Bound | None = None,
) -> DataFrame:
    """Decode `column` into the struct column `into`, as the call with this number of `ctx.decode`, whose arguments it
    has.

    The policy ``dead-letter`` adds the column ``poison``.

    Raises:
        SpecError: `frame` lacks columns of the source, or has one of the new columns already.
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
    verdict = f"{VERDICT}{number}"
    judged = frame.withColumn(
        verdict, _decode_udf(reader, number, on_poison, bound)(column, _schema_header(frame, reader, column), *_SOURCE)
    )
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


def _schema_header(frame: DataFrame, reader: Reader, column: str) -> Column:
    """Return the header with the schema of `column`, as Confluent Platform 8 writes it; null without it."""
    kinds = dict(frame.dtypes)
    if not _is_framed(reader) or kinds.get("headers") != HEADERS.simpleString():
        return F.lit(None).cast("binary")
    name = f"__{'key' if column == 'key' else 'value'}_schema_id"
    return F.get(F.filter("headers", lambda header: header["key"] == name), F.lit(0))["value"]


def _is_framed(reader: Reader) -> bool:
    return bool(reader.registry or getattr(reader, "framed", False))


def encode(column: Column | str, writer: Writer) -> Column:
    """Encode the struct `column` as bytes with the writer of a format; null stays null."""

    def encode_batches(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        write = writer.open()
        start = 0
        for batch in batches:
            with carrying():
                rows = exact.from_arrow(batch, "ctx.encode", "the record", start)
            start += len(rows)
            yield pa.array([_encoded(write, row) for row in rows], pa.binary())

    encode_batches.__annotations__ = {"batches": Iterator[pa.Array], "return": Iterator[pa.Array]}
    encoded: Column = _arrow_udf(encode_batches, T.BinaryType())(column)
    return encoded


def _encoded(write: Callable[[dict[str, Any]], bytes], row: dict[str, Any] | None) -> bytes | None:
    if row is None:
        return None
    try:
        return write(row)
    except Exception as error:
        cause = str(error) if isinstance(error, exact.Unfit) else f"{type(error).__name__}: {error}"
        raise carry(
            JobCodeError(
                f"A row cannot be encoded: {cause}.",
                hint="make the columns fit the schema of ctx.encode, with a cast or a filter before it.",
            )
        ) from error


# The stubs list scalar functions only; iterators of arrays are documented.
_arrow_udf: Callable[..., Any] = cast("Any", arrow_udf)


def _decode_udf(reader: Reader, number: int, on_poison: Policy, bound: Bound | None) -> Callable[..., Column]:
    spark = T.StructType().add("record", reader.spark_type).add("error", "string").add("message", "string")
    arrow = cast("pa.StructType", to_arrow_type(spark, timezone="UTC"))
    operator = operator_name("clonos.decode")
    counter = drops.for_pickling()

    def decode_batches(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        try:
            task = _Decoding(reader, operator)
            dropped = 0
            for values, schemas, topics, partitions, offsets in batches:
                records, poison = task.decode(_framed(values, schemas, reader), arrow.field("record").type)
                if bound is not None and (ahead := bound.poison(records)):
                    poison |= ahead
                    mask = pa.array([index in ahead for index in range(len(values))])
                    records = pc.if_else(mask, pa.scalar(None, records.type), records)
                task.flush()
                if on_poison == "drop":
                    dropped += len(poison)
                elif on_poison == "fail" and poison:
                    first = min(poison)
                    raise PoisonRecord(
                        f"{topics[first]}[{partitions[first]}] offset {offsets[first]} cannot be decoded: "
                        f"{': '.join(poison[first])}."
                    )
                causes = [poison.get(index, (None, None)) for index in range(len(values))]
                yield pa.StructArray.from_arrays(
                    [
                        records,
                        pa.array([error for error, _ in causes], pa.string()),
                        pa.array([message for _, message in causes], pa.string()),
                    ],
                    fields=list(arrow),
                )
            DropCount.add(counter, dropped)
        except ClonosError as error:
            raise carry(error) from error

    # The plan shows this name, from which `clonos.formats.poison` finds the decode of a sink's poison rows.
    decode_batches.__name__ = f"{UDF_NAME}{number}"
    decode_batches.__annotations__ = {"batches": Iterator[tuple[pa.Array, ...]], "return": Iterator[pa.Array]}
    # Nondeterministic, so that Spark evaluates it once, as a clonos.udf.
    once: Callable[..., Column] = _arrow_udf(decode_batches, spark).asNondeterministic()
    return once


def _framed(values: pa.Array, schemas: pa.Array, reader: Reader) -> list[bytes | None]:
    """Return the values, each after the schema that its header names, as in the wire format."""
    plain: list[bytes | None] = values.to_pylist()
    if schemas.null_count == len(schemas) or not _is_framed(reader):
        return plain
    return [
        value if value is None or schema is None else schema + value
        for value, schema in zip(plain, schemas.to_pylist(), strict=True)
    ]


class _Decoding:
    """Decodes the records of one task."""

    def __init__(self, reader: Reader, operator: str) -> None:
        self._registry = reader.registry
        # The registry may get an id later: that it lacked the id is recorded, so that a replay decides the same.
        self._scope: TaskScope | None = open_task_scope(operator) if reader.registry else None
        self._unknown: set[bytes] = set()
        self._decode: Decode = reader.open(self._schema)

    def decode(self, values: list[bytes | None], arrow: pa.DataType) -> tuple[pa.Array, dict[int, tuple[str, str]]]:
        """Decode a batch: the records, null for poison, and index → class and message of the error."""
        records: list[Any] = []
        poison: dict[int, tuple[str, str]] = {}
        for index, value in enumerate(values):
            try:
                records.append(None if value is None else self._decode(value))
            except (RegistryRefused, RegistryUnavailable):
                raise  # no poison: the record can be decoded once the registry answers
            except Exception as error:
                records.append(None)
                poison[index] = _cause(error)
        try:
            return pa.array(records, arrow), poison
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            # For example a decimal with too many digits: convert one record at a time.
            for index, record in enumerate(records):
                try:
                    pa.array([record], arrow)
                except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
                    records[index] = None
                    poison[index] = _cause(error)
            return pa.array(records, arrow), poison

    def flush(self) -> None:
        """Write the ids that the registry lacked to the log, and wait for the acknowledgement."""
        if self._scope is not None:
            self._scope.flush()

    def _schema(self, number: SchemaKey, *, serialized: bool = False) -> Any:
        url = self._registry or ""
        key = xxhash.xxh3_128_digest(f"clonos.formats {url} {number}".encode())
        if key in self._unknown or (self._scope is not None and self._scope.find(key) is not None):
            raise UnknownSchema(f"{named(number)} is not in the registry {url}.")
        try:
            return registry_at(url).schema(number, serialized=serialized)
        except UnknownSchema:
            if self._scope is None:
                self._unknown.add(key)
            else:
                self._scope.record(Determinant(key, b"", failed=True))
            raise


def _cause(error: Exception) -> tuple[str, str]:
    text = _ADDRESS.sub("", " ".join(str(error).split()))
    return type(error).__name__, text[:_MESSAGE_CHARACTERS]
