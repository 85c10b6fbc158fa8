"""The job specification: one pydantic schema for YAML files, code, the REST API and the CLI."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from clonos.documents import describe_fields, read_yaml
from clonos.extend.sink import DeliveryMode
from clonos.units import Mebibytes, Milliseconds, Seconds, require_units

SharingDepth = Literal["0", "1", "full"]
# Spark and the operating system take no longer times.
_Milliseconds = Annotated[Milliseconds, Field(le=7 * 24 * 60 * 60 * 1000)]
_Seconds = Annotated[Seconds, Field(le=7 * 24 * 60 * 60)]
SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"
# Spark settings that a running session takes over completely. Others are fixed when a JVM, or its state store, starts.
SESSION_SETTINGS: Final = frozenset(
    {
        SHUFFLE_PARTITIONS,
        "spark.sql.ansi.enabled",
        "spark.sql.autoBroadcastJoinThreshold",
        "spark.sql.caseSensitive",
        "spark.sql.execution.arrow.maxRecordsPerBatch",
        "spark.sql.files.maxPartitionBytes",
        "spark.sql.legacy.timeParserPolicy",
        "spark.sql.session.timeZone",
        "spark.sql.streaming.noDataMicroBatches.enabled",
    }
)
DATABASES: Final = ("postgresql", "sqlite")
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,98}[a-z0-9])?")


def check_name(name: str) -> str:
    """Check and return the name of a job or sink: ``[a-z0-9-]``, no dots, because dots separate the parts of topic
    names.

    Raises:
        ValueError: The name is invalid.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r}: use 1 to 100 of a-z, 0-9 and -, not starting or ending with -")
    return name


class Part(BaseModel):
    """A part of a document of the user. Numbers of fields with a unit need it."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, frozen=True, json_schema_extra=describe_fields)

    @model_validator(mode="before")
    @classmethod
    def _with_units(cls, values: object) -> object:
        if isinstance(values, dict):
            require_units(cls, values)
        return values


Mode = Literal["epochs", "live", "auto"]


class Trigger(Part):
    """When the epochs (micro-batches) of a job start, and whether output waits for their ends."""

    mode: Mode = "epochs"
    """``epochs``: the output of an epoch becomes visible at its end. ``live``: output becomes visible within
    milliseconds, in small transactions; a job with a query that cannot run so is refused. ``auto``: live where the
    query allows it.
    """
    interval_ms: _Milliseconds = Field(0, alias="interval", ge=0, json_schema_extra={"default": "0s"})
    """Minimum time between the starts of two epochs; 0 starts the next epoch as soon as input arrives."""
    available_now: bool = Field(False, alias="availableNow")
    """Process the input that exists at start, then finish."""
    commit_interval_ms: Annotated[Milliseconds, Field(le=1000)] = Field(
        0, alias="commitInterval", ge=0, json_schema_extra={"default": "0s"}
    )
    """Shortest pause between two transactions of a live query, at most a second; 0: 5 ms. After more than four records
    the pause also follows from how long transactions take. A longer one needs less CPU time. A record that comes after
    the pause does not wait.
    """

    @model_validator(mode="after")
    def _possible(self) -> Trigger:
        if self.commit_interval_ms and self.mode == "epochs":
            raise ValueError("commitInterval is of live queries: set mode to live or auto, or leave it out")
        if self.available_now and self.mode == "live":
            raise ValueError("a live query does not end: set mode to auto or epochs, or leave availableNow out")
        return self


class RestartPolicy(Part):
    """How often and after which delay a driver restarts its queries after failures. The terms are Flink's."""

    attempts: int = Field(8, ge=0)
    """Number of consecutive restarts without a committed epoch; after these the job fails."""
    initial_backoff_ms: _Milliseconds = Field(100, alias="initialBackoff", ge=0, json_schema_extra={"default": "100ms"})
    """Delay before the first restart; each further restart doubles the delay."""
    max_backoff_ms: _Milliseconds = Field(10_000, alias="maxBackoff", ge=0, json_schema_extra={"default": "10s"})
    """Longest delay."""


class Standbys(Part):
    """Standbys of a job: warm drivers that take over when its driver fails."""

    replicas: int = Field(0, ge=0, le=8)
    """Number of standbys, on different hosts if there are enough."""
    mode: Literal["dedicated", "pool", "none"] = "dedicated"
    """``dedicated``: standbys for this job alone. They, and its driver after a failure without a standby, start in a
    pool driver of their host if it has one (``clonos agent --pool-size``). ``pool``: no standbys; the host that starts
    the job uses one of its pool drivers also for the first start. ``none``: no standbys and no pool driver.
    """
    self_promote_after_s: _Seconds = Field(0.0, alias="selfPromoteAfter", ge=0, json_schema_extra={"default": "0s"})
    """A standby promotes itself after this time without the control plane and without progress in the causal log while
    input waits. 0: only the control plane promotes it.
    """
    executors: int = Field(1, ge=1, le=10_000)
    """Number of executors that a standby of a job on a cluster holds. It requests the others at its promotion."""

    @property
    def dedicated_replicas(self) -> int:
        """The number of standbys to run: `replicas`, or 0 unless the mode is ``dedicated``."""
        return self.replicas if self.mode == "dedicated" else 0


class DriverResources(Part):
    """The resources of a driver process."""

    cores: int | None = Field(None, ge=1, le=1024)
    """Number of cores. The master ``auto`` has twice as many task slots. None: all cores of the machine."""
    memory_mb: Mebibytes = Field(1024, alias="memory", ge=480, json_schema_extra={"default": "1g"})
    """Heap of the driver's JVM, in MiB; Spark does not start with less than 480."""


class ExecutorResources(Part):
    """The resources of a job's executors on a Spark cluster. The terms are the Spark operator's."""

    instances: int = Field(2, ge=1, le=10_000)
    """Number of executors."""
    cores: int = Field(1, ge=1, le=1024)
    """Task slots of each executor."""
    memory_mb: Mebibytes = Field(1024, alias="memory", ge=450, json_schema_extra={"default": "1g"})
    """Heap of each executor's JVM, in MiB; at least Spark's own limit."""


class Connection(Part):
    """A database that sinks of the job write to."""

    url: str
    """Address, as SQLAlchemy has it and without a password: ``postgresql://app@db.example.org/crm``, or
    ``sqlite:////data/crm.db``.
    """
    password: str = Field("", repr=False)
    """Password of the login. On the platform a reference: ``${secret:NAME}``."""

    @field_validator("url")
    @classmethod
    def _known(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in DATABASES:
            raise ValueError(f"the address of a database begins with {' or '.join(f'{name}://' for name in DATABASES)}")
        if parts.password is not None or "password=" in parts.query:
            raise ValueError("the address holds a password: put it into the field password")
        if parts.scheme == "sqlite" and not parts.path.startswith("//"):
            raise ValueError("an SQLite database has an absolute path: sqlite:////data/crm.db")
        return url


class Spec(Part):
    """The settings of a job: the field ``spec`` of a job.yaml."""

    main: str = ""
    """The job file, relative to the YAML file."""
    params: dict[str, str] = Field(default_factory=dict)
    """Job parameters."""
    spark_conf: dict[str, str] = Field(default_factory=dict, alias="sparkConf")
    """Spark configuration."""
    connections: dict[str, Connection] = Field(default_factory=dict)
    """Databases: the name for ``ctx.sink(…, connection=)``, and the database."""
    master: str = "auto"
    """Spark master; ``auto``: this machine, two task slots per core."""
    cluster: str = ""
    """Name of a Spark cluster of the control plane, instead of `master`; empty: none."""
    checkpoint: str | None = None
    """Checkpoint location; default below ``CLONOS_HOME``."""
    trigger: Trigger = Trigger()
    """When epochs begin."""
    delivery: DeliveryMode = "exactly-once"
    """Delivery mode of sinks that name none."""
    sharing_depth: SharingDepth = Field("full", alias="sharingDepth")
    """Replicas that acknowledge a determinant: ``0`` (no recording), ``1`` (the leader) or ``full`` (all in-sync
    replicas).
    """
    restart_policy: RestartPolicy = Field(RestartPolicy(), alias="restartPolicy")
    """How the driver is restarted after failures."""
    driver: DriverResources = DriverResources()
    """Resources of the driver process."""
    executor: ExecutorResources = ExecutorResources()
    """Resources of the executors; only on a cluster."""
    dropped_sinks: tuple[str, ...] = Field((), alias="droppedSinks")
    """Sinks that the job had before and no longer has. Without this, a missing sink stops the job."""
    standby: Standbys = Standbys()
    """Standbys; they need the control plane."""
    shuffle_partitions: int | None = Field(None, alias="shufflePartitions", ge=1, le=10_000)
    """Number of partitions of each shuffle, and of the state. A driver that starts with another number than the
    checkpoint has repartitions the state first. None: as in the checkpoint; in a new job,
    ``spark.sql.shuffle.partitions`` or two for each task slot.
    """
    stall_timeout_s: _Seconds = Field(600.0, alias="stallTimeout", ge=0, json_schema_extra={"default": "10min"})
    """The driver exits, so that another one continues, if input waits and nothing makes progress for this time plus the
    trigger's interval; 0: never.
    """

    @field_validator("params", "spark_conf", mode="before")
    @classmethod
    def _texts(cls, value: object) -> object:
        """Convert numbers and booleans of YAML files to text."""
        if isinstance(value, dict):
            return {key: _text(item) for key, item in value.items()}
        return value

    @field_validator("sharing_depth", mode="before")
    @classmethod
    def _depth(cls, value: object) -> object:
        return str(value) if isinstance(value, int) else value

    @field_validator("cluster")
    @classmethod
    def _cluster_name(cls, name: str) -> str:
        return check_name(name) if name else name

    @model_validator(mode="after")
    def _one_master(self) -> Spec:
        if self.cluster and self.master != "auto":
            raise ValueError("name a cluster or a master, and not both")
        return self

    @model_validator(mode="after")
    def _one_width(self) -> Spec:
        if self.shuffle_partitions is not None and SHUFFLE_PARTITIONS in self.spark_conf:
            raise ValueError(f"set shufflePartitions or {SHUFFLE_PARTITIONS}, and not both")
        return self

    @property
    def any_jvm(self) -> bool:
        """Whether a pool driver's JVM suits the job: default master and memory, and `SESSION_SETTINGS` only."""
        jvm_settings = {"master", "cluster", "driver", "executor"}
        same_jvm = self.model_dump(include=jvm_settings) == Spec().model_dump(include=jvm_settings)
        return same_jvm and SESSION_SETTINGS.issuperset(self.spark_conf)


def _text(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


class Metadata(Part):
    """Name and labels of a job."""

    name: str = Field(json_schema_extra={"pattern": f"^{_NAME.pattern}$"})
    """Name of the job: 1 to 100 of a-z, 0-9 and -."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels: name and value."""

    @field_validator("name")
    @classmethod
    def _check(cls, name: str) -> str:
        return check_name(name)


class JobSpec(Part):
    """The specification of a job, as in a ``job.yaml``."""

    api_version: Annotated[Literal["clonos/v1"], Field(alias="apiVersion")] = "clonos/v1"
    """Version of the format."""
    kind: Literal["Job"] = "Job"
    """Kind of the document."""
    metadata: Metadata
    """Name and labels."""
    spec: Spec = Spec()
    """Settings of the job."""

    @property
    def name(self) -> str:
        """The job's name."""
        return self.metadata.name

    def with_params(self, params: dict[str, str]) -> JobSpec:
        """Return a copy of this specification in which `params` are added to the parameters, or replace them."""
        spec = self.spec.model_copy(update={"params": {**self.spec.params, **params}})
        return self.model_copy(update={"spec": spec})


def read_spec(path: Path) -> JobSpec:
    """Read the specification in a YAML file; `SpecError` names the invalid field."""
    return read_yaml(path, JobSpec, "a job specification")
