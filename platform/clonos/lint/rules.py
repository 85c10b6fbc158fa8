"""The linter's rules: each describes code that may differ in a replay, and its replacement."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """The severity of a finding."""

    ERROR = "error"
    """A replay may compute other records than the published ones."""

    WARNING = "warning"
    """A replay may differ only in some jobs or in the last digits, or the code runs at start only."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of the linter."""

    code: str  # stable id, for output and ``# clonos: allow``
    name: str  # short name of two or three words
    severity: Severity  # severity in UDFs and job functions; in code that runs at the start it is a warning
    finds: str  # the calls that violate the rule, for the documentation
    why: str  # the reason why a replay may differ, in one clause
    instead: str  # the recommended replacement


_ERROR, _WARNING = Severity.ERROR, Severity.WARNING

_TABLE = (
    Rule(
        "CL001",
        "raw clock",
        _ERROR,
        "`time.time`, `monotonic`, `perf_counter`, …; `datetime.now`, `utcnow`, `today`; `pandas.Timestamp.now`, …",
        "a replay reads another time",
        "clonos.now() for the epoch's time, or clonos.clock() for the true time, recorded",
    ),
    Rule(
        "CL002",
        "raw random numbers",
        _ERROR,
        "`random.*`, `numpy.random.*`, `torch.rand*`; generators without a seed, or shared between rows; "
        "pandas `sample` without `random_state`",
        "a replay draws other numbers",
        "clonos.random(key), or clonos.rng(key) for a generator",
    ),
    Rule(
        "CL003",
        "raw unique id",
        _ERROR,
        "`uuid.uuid1`, `uuid4`, `uuid6`, `uuid7`, `uuid8`; `shortuuid`, `ulid`, `nanoid`, `ksuid`",
        "a replay makes another id",
        "clonos.uuid4(key), or uuid.uuid5 of the row's own values",
    ),
    Rule(
        "CL004",
        "raw entropy",
        _ERROR,
        "`secrets.*`, `os.urandom`, `os.getrandom`, `random.SystemRandom`",
        "a replay draws other bytes",
        "clonos.rng(key).randbytes(n), or a @clonos.service where the value must be secret",
    ),
    Rule(
        "CL005",
        "process or host state",
        _ERROR,
        "`os.getpid`, thread ids, host names, load and memory figures, `id()`, Spark's task attempt",
        "a replay runs in another process, perhaps on another host",
        "a value of the row, clonos.param(name), or a @clonos.service that reads it",
    ),
    Rule(
        "CL006",
        "external call",
        _ERROR,
        "calls of HTTP, database, cloud and socket libraries, and their clients",
        "a replay asks again and may get another answer",
        "a function decorated with @clonos.service around the call",
    ),
    Rule(
        "CL007",
        "other program",
        _ERROR,
        "`subprocess.*`, `os.system`, `os.popen`, …",
        "a replay runs the program again and may get another answer",
        "a function decorated with @clonos.service around the call",
    ),
    Rule(
        "CL008",
        "file or environment read",
        _WARNING,
        "`open`, `Path.read_text`, `os.listdir`, `pandas.read_csv`, `os.environ`, … inside UDFs",
        "a replay reads the current content",
        "clonos.param(name) for settings, a file that never changes, or a @clonos.service that reads it",
    ),
    Rule(
        "CL009",
        "order of hashes",
        _WARNING,
        "`hash()`; `list`, `tuple`, `enumerate` or `join` of a set",
        "hash values and the order of sets follow PYTHONHASHSEED, memory addresses and the order of insertion",
        "zlib.crc32 or hashlib for values, sorted(…) for sets",
    ),
    Rule(
        "CL010",
        "causal service without a task",
        _ERROR,
        "`clonos.now`, `clock`, `random`, `rng`, `uuid4`, `epoch` or a `@clonos.service` called while the job is built",
        "outside of a UDF it answers directly and nothing is recorded",
        "the call inside a @clonos.udf, or a job parameter",
    ),
    Rule(
        "CL011",
        "no key after a shuffle",
        _WARNING,
        "`clonos.random`, `rng` or `uuid4` without a key in a UDF used after `groupBy`, `join`, `repartition`, …",
        "without a key the row's position counts, and a shuffle may hand rows over in another order",
        "a key that identifies the row, such as (topic, partition, offset)",
    ),
    Rule(
        "CL101",
        "Spark function that is not repeatable",
        _ERROR,
        "`rand`, `randn`, `uuid`, `shuffle`, `randstr`, `uniform`, `sample`, `randomSplit` without a seed; `reflect`; "
        "in Python and in SQL text",
        "the next start of the job draws another seed",
        "a @clonos.udf that returns clonos.random(key) or clonos.uuid4(key)",
    ),
    Rule(
        "CL102",
        "depends on the row's position",
        _WARNING,
        "`rand`, `sample`, … with a seed; `monotonically_increasing_id`, `spark_partition_id`, `input_file_name`",
        "it follows from the partition and from the position of the row in it, which a shuffle does not repeat",
        "the row's topic, partition and offset, or a @clonos.udf that returns clonos.random(key)",
    ),
    Rule(
        "CL103",
        "order-sensitive aggregate",
        _ERROR,
        "`first`, `last`, `any_value`, `collect_list`, `collect_set`, `listagg`, …, unless in `sort_array` or `over`",
        "rows reach an aggregate in another order in a replay",
        "F.min_by or F.max_by with an order that has no ties, or F.sort_array(F.collect_list(F.struct(order, value)))",
    ),
    Rule(
        "CL104",
        "aggregate that breaks ties or approximates",
        _WARNING,
        "`mode`, `percentile_approx`, `approx_percentile`, `histogram_numeric`",
        "which of several right answers it gives follows from the order of rows",
        "F.mode(…, deterministic=True), F.percentile, or an aggregate with an order that has no ties",
    ),
    Rule(
        "CL105",
        "floating-point sum",
        _WARNING,
        "`sum`, `avg` of a column that is cast or declared as double or float; `stddev`, `variance`, `corr`, …",
        "the last digits follow from the order of additions",
        "a cast to decimal before the sum",
    ),
    Rule(
        "CL106",
        "row that arrives first",
        _WARNING,
        "`dropDuplicates` and `dropDuplicatesWithinWatermark` with columns; `limit`",
        "which of several rows stays follows from the order in which they arrive",
        "columns that identify the whole row, or an aggregate such as F.min_by with an order that has no ties",
    ),
    Rule(
        "CL900",
        "allow that silences nothing",
        _WARNING,
        "`# clonos: allow` without a finding on its line, or with an unknown code",
        "it would hide the next finding on this line",
        "the line without the comment, or with the right code",
    ),
)

RULES: dict[str, Rule] = {rule.code: rule for rule in _TABLE}
