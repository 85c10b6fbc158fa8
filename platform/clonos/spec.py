"""The job specification: one schema for YAML files, code and (later) the REST API and CLI."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from clonos.errors import SpecError
from clonos.sinks import DeliveryMode

SharingDepth = Literal["0", "1", "full"]
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,98}[a-z0-9])?")


def check_name(name: str) -> str:
    """A job or sink name: ``[a-z0-9-]``, no dots (dots separate the parts of topic and transaction names).

    Raises:
        ValueError: It is something else.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r}: use 1 to 100 of a-z, 0-9 and -, not starting or ending with -")
    return name


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True, frozen=True)


class Trigger(_Part):
    """When epochs start.

    Attributes:
        interval_ms: At least so long between starts; 0: as soon as there is input.
        available_now: Work through what is there at start, then finish.
    """

    interval_ms: int = Field(0, alias="intervalMs", ge=0)
    available_now: bool = Field(False, alias="availableNow")


class RestartPolicy(_Part):
    """How often a failed epoch is replayed before the job gives up.

    Attributes:
        attempts: Restarts without any epoch finished in between.
        backoff_ms: Pause before the first; it doubles up to `max_backoff_ms`.
    """

    attempts: int = Field(8, ge=0)
    backoff_ms: int = Field(100, alias="backoffMs", ge=0)
    max_backoff_ms: int = Field(10_000, alias="maxBackoffMs", ge=0)


class Standbys(_Part):
    """Warm drivers that take over when the job's own falls.

    Attributes:
        replicas: How many, each on a host of its own as far as there are.
        mode: ``dedicated``: they wait for this job alone; ``pool``: there are none, but its driver is one of the spares
            of whatever host starts it (``clonos agent --spares``), if that has one; ``none``: neither, whatever
            `replicas` says.
        alone_after_s: One takes over by itself when its host does not hear of the control plane and the causal log
            shows no progress for so long although input waits; 0: it waits to be told.
    """

    replicas: int = Field(0, ge=0, le=8)
    mode: Literal["dedicated", "pool", "none"] = "dedicated"
    alone_after_s: float = Field(0.0, alias="aloneAfterS", ge=0)

    @property
    def wanted(self) -> int:
        """How many there are to be."""
        return self.replicas if self.mode == "dedicated" else 0


class Spec(_Part):
    """What a job needs to run.

    Attributes:
        main: The job file, relative to the YAML file.
        params: Job parameters.
        spark_conf: Spark configuration.
        master: Spark master; ``auto``: this machine, two task slots per core.
        checkpoint: Checkpoint location; default below ``CLONOS_HOME``.
        delivery: Promise of sinks that name none.
        sharing_depth: How many holders must acknowledge a determinant: 0 (off), 1 (leader), full.
        driver_memory_mb: Heap of the driver's JVM.
        standby: Warm drivers (only with the control plane).
        stall_timeout_s: End the driver, so that another one goes on, when input waits and no epoch ends for so long; 0:
            never. The pause of `trigger` comes on top of it.
    """

    main: str = ""
    params: dict[str, str] = Field(default_factory=dict)
    spark_conf: dict[str, str] = Field(default_factory=dict, alias="sparkConf")
    master: str = "auto"
    checkpoint: str | None = None
    trigger: Trigger = Trigger()
    delivery: DeliveryMode = "exactly-once"
    sharing_depth: SharingDepth = Field("full", alias="sharingDepth")
    restart_policy: RestartPolicy = Field(RestartPolicy(), alias="restartPolicy")
    driver_memory_mb: int = Field(1024, alias="driverMemoryMb", ge=256)
    standby: Standbys = Standbys()
    stall_timeout_s: float = Field(600.0, alias="stallTimeoutS", ge=0)

    @field_validator("params", "spark_conf", mode="before")
    @classmethod
    def _texts(cls, value: object) -> object:
        """YAML users write numbers and booleans; both maps hold text."""
        if isinstance(value, dict):
            return {key: _text(item) for key, item in value.items()}
        return value

    @field_validator("sharing_depth", mode="before")
    @classmethod
    def _depth(cls, value: object) -> object:
        return str(value) if isinstance(value, int) else value

    @property
    def any_jvm(self) -> bool:
        """Whether its driver's JVM may be one that was started before anything was known of the job."""
        own = {"master", "driver_memory_mb", "spark_conf"}
        return self.model_dump(include=own) == Spec().model_dump(include=own)


def _text(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


class Metadata(_Part):
    """Name and labels."""

    name: str
    labels: dict[str, str] = Field(default_factory=dict)

    @field_validator("name")
    @classmethod
    def _check(cls, name: str) -> str:
        return check_name(name)


class JobSpec(_Part):
    """A whole job, as in ``job.yaml``."""

    api_version: Annotated[Literal["clonos/v1"], Field(alias="apiVersion")] = "clonos/v1"
    kind: Literal["Job"] = "Job"
    metadata: Metadata
    spec: Spec = Spec()

    @property
    def name(self) -> str:
        """The job's name."""
        return self.metadata.name

    def with_params(self, params: dict[str, str]) -> JobSpec:
        """The same job with more parameters."""
        spec = self.spec.model_copy(update={"params": {**self.spec.params, **params}})
        return self.model_copy(update={"spec": spec})


def read_spec(path: Path) -> JobSpec:
    """The specification in a YAML file.

    Raises:
        SpecError: The file is missing or wrong; the message names field and line of thought.
    """
    try:
        return JobSpec.model_validate(yaml.safe_load(path.read_text()))
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SpecError(f"{path} is not YAML: {error}") from error
    except ValidationError as error:
        raise SpecError(f"{path} is not a job specification: {explain(error)}.") from error


def explain(error: ValidationError) -> str:
    """A pydantic error as one readable line."""
    return "; ".join(f"{'.'.join(map(str, one['loc'])) or 'the file'}: {one['msg']}" for one in error.errors())
