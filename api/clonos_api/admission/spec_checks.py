"""Checks the contents of a submitted specification.

The code of a job has the permissions of its uid, but agents and JVMs outside of it read its *specification*. Therefore
only options that are known to be harmless are accepted: none that load code, run commands, read files of the host or
send credentials to other addresses. Secrets are references.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import unquote, urlsplit

from clonos.errors import ArchiveInvalid, SpecError
from clonos.jobs.cluster import ClusterSpec
from clonos.jobs.locations import locate
from clonos.jobs.secret_refs import references
from clonos.jobs.spec import Connection, ExecutorResources, JobSpec
from clonos.resources.archives import check_name
from clonos.resources.failures import SpecRefused
from clonos.resources.service import FieldProblem
from clonos.telemetry.redaction import is_reference, looks_secret
from clonos_api.admission.allowed_options import KAFKA, PROMISE, REFUSED, SPARK, SPARK_PREFIXES

MAX_LENGTH: Final = 65_536
MAX_ENTRIES: Final = 200
MAX_LABELS: Final = 64
MAX_LABEL: Final = 255
MAX_PARAM_NAME: Final = 200
MAX_LOCATION: Final = 1024
_DRIVER_MB: Final = 65_536
_EXECUTOR_MB: Final = 262_144
_TASK_SLOTS: Final = 10_000  # of all executors of a job
LOCAL: Final = re.compile(r"auto|local(\[([0-9]{1,4}|\*)\])?")
_SCHEMES: Final = frozenset({"", "file", "hdfs", "s3a", "abfs", "abfss", "gs"})
_KERNEL_FOLDERS: Final = frozenset({"proc", "sys", "dev"})  # with links to every other folder
LABEL: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")
SPARK_KEY: Final = re.compile(r"spark\.[A-Za-z0-9_.-]{1,200}")
# Spark replaces ``${env:…}``, ``${system:…}`` and ``${spark.…}`` in its configuration.
_SUBSTITUTED: Final = re.compile(r"\$\{(?!secret:)")
_EXECUTOR_SETTINGS: Final = frozenset(
    {"spark.cores.max", "spark.executor.cores", "spark.executor.instances", "spark.executor.memory"}
)
_BY_REFERENCE: Final = "store it with the agents and write ${secret:NAME} here."


def check_spec(spec: JobSpec) -> list[FieldProblem]:
    """Return the problems of a submitted specification; `clusters.check_job` checks its cluster."""
    part = spec.spec
    problems = [
        *check_labels(spec.metadata.labels),
        *_check_params(part.params),
        *_check_spark_conf(part.spark_conf, on_cluster=bool(part.cluster)),
        *_check_connections(part.connections),
        *check_size(spec, "the specification"),
        *_check_master(part.master),
        *_check_executors(part.executor),
    ]
    if part.checkpoint is not None:
        problems += check_location(part.checkpoint, "spec.checkpoint")
    if part.main:
        problems += _check_main(part.main)
    if part.driver.memory_mb > _DRIVER_MB:
        problems.append(FieldProblem(field="spec.driver.memory", what=f"{_DRIVER_MB}m is the maximum"))
    return problems


def refuse(problems: list[FieldProblem]) -> None:
    """Raise `SpecRefused` with all problems of a request, if there are any."""
    if problems:
        raise SpecRefused(problems)


def check_location(location: str, field: str) -> list[FieldProblem]:
    """Return the problems of a directory for checkpoints or savepoints.

    It must be a path or a file system's URI without credentials.
    """
    try:
        parsed = urlsplit(location)
        valid_port = parsed.port is None or parsed.port > 0
    except ValueError:
        return [FieldProblem(field=field, what="this is neither a path nor a URI")]
    if not location or len(location) > MAX_LOCATION or _has_controls(location) or not valid_port:
        return [FieldProblem(field=field, what="this is neither a path nor a URI")]
    if parsed.scheme.lower() not in _SCHEMES:
        hint = f"use a path, or one of {', '.join(sorted(filter(None, _SCHEMES)))}."
        return [FieldProblem(field=field, what=f"{parsed.scheme}: is not a file system for checkpoints", hint=hint)]
    # abfss://container@account… names no user.
    named = parsed.username is not None and not parsed.scheme.startswith("abfs")
    if named or parsed.password is not None or parsed.query or parsed.fragment:
        return [FieldProblem(field=field, what="a location holds no credentials and no query", hint=_BY_REFERENCE)]
    decoded = unquote(parsed.path)
    if unquote(decoded) != decoded:
        hint = "encode each character once, or write it as it is."
        return [FieldProblem(field=field, what="the path is percent-encoded twice", hint=hint)]
    if ".." in decoded.split("/") or "\\" in decoded or "\\" in location:
        return [FieldProblem(field=field, what="a location has no '..' and no backslash")]
    if parsed.scheme.lower() in ("", "file"):
        return _check_folder(parsed.netloc, decoded, location, field)
    return []


def _check_folder(netloc: str, path: str, location: str, field: str) -> list[FieldProblem]:
    """Return the problems of a folder of the hosts; a folder has one spelling, which its owner is looked up by."""
    if location.startswith("//") or path.startswith("//") or netloc not in ("", "localhost") or path[:1] != "/":
        hint = "write /path, or file:///path."
        return [FieldProblem(field=field, what="a folder is an absolute path with one slash at its start", hint=hint)]
    first = locate(location).path.split("/")[1]
    if first in _KERNEL_FOLDERS:
        return [FieldProblem(field=field, what=f"/{first} holds no checkpoints")]
    return []


def check_kafka_options(options: Mapping[str, object], field: str = "options") -> list[FieldProblem]:
    """Return the problems of options of Kafka clients: options that are not in the list of allowed ones.

    librdkafka's or Java's names are accepted, with or without the prefix ``kafka.``.
    """
    problems = []
    for name, value in options.items():
        plain, path = name.removeprefix("kafka."), f"{field}.{shown(name)}"
        refused = _refused(plain)
        if refused is not None:
            problems.append(FieldProblem(field=path, what=refused, hint="leave it out; the agents' settings have it."))
        elif plain not in KAFKA:
            hint = "leave it out. docs/security.md lists what can be set."
            problems.append(FieldProblem(field=path, what="this Kafka option cannot be set by a job", hint=hint))
        else:
            problems += _check_value(plain, str(value), path)
    return problems


def _check_params(params: Mapping[str, str]) -> Iterator[FieldProblem]:
    if len(params) > MAX_ENTRIES:
        yield FieldProblem(field="spec.params", what=f"{MAX_ENTRIES} parameters are the most")
        return
    for name, value in params.items():
        path = f"spec.params.{shown(name)}"
        if not name or len(name) > MAX_PARAM_NAME or _has_controls(name) or len(value) > MAX_LENGTH or "\0" in value:
            yield FieldProblem(field=path, what="the name or value is too long, or holds control characters")
        elif name.startswith("kafka."):
            yield from check_kafka_options({name: value}, "spec.params")
        else:
            yield from _check_value(name, value, path)


def _check_spark_conf(conf: Mapping[str, str], *, on_cluster: bool) -> Iterator[FieldProblem]:
    if len(conf) > MAX_ENTRIES:
        yield FieldProblem(field="spec.sparkConf", what=f"{MAX_ENTRIES} settings are the most")
        return
    for name, value in conf.items():
        path = f"spec.sparkConf.{shown(name)}"
        refused = _refused(name)
        if not SPARK_KEY.fullmatch(name):
            yield FieldProblem(field=path, what="this is not a setting of Spark", hint="names start with 'spark.'.")
        elif refused is not None:
            yield FieldProblem(field=path, what=refused, hint="leave it out; who runs the agents can set it there.")
        elif name not in SPARK and not name.startswith(SPARK_PREFIXES):
            hint = "leave it out. docs/security.md lists what can be set."
            yield FieldProblem(field=path, what="this Spark setting cannot be set by a job", hint=hint)
        elif on_cluster and name in _EXECUTOR_SETTINGS:
            yield FieldProblem(field=path, what="a field sets this", hint="use spec.executor.")
        else:
            yield from _check_spark_value(name, value, path)


def _check_connections(connections: Mapping[str, Connection]) -> Iterator[FieldProblem]:
    if len(connections) > MAX_ENTRIES:
        yield FieldProblem(field="spec.connections", what=f"{MAX_ENTRIES} connections are the most")
        return
    for name, connection in connections.items():
        path = f"spec.connections.{shown(name)}"
        if not name or len(name) > MAX_PARAM_NAME or _has_controls(name + connection.url):
            yield FieldProblem(field=path, what="the name is too long, or it or the URL holds control characters")
        else:
            yield from _check_value("url", connection.url, f"{path}.url")
            yield from _check_value("password", connection.password, f"{path}.password")


def check_setting(name: str, value: str, path: str) -> Iterator[FieldProblem]:
    """Return the problems of a setting of Spark that an admin writes: any, except settings of exactly-once delivery."""
    if not SPARK_KEY.fullmatch(name):
        yield FieldProblem(field=path, what="this is not a setting of Spark", hint="names start with 'spark.'.")
    elif _refused(name) == PROMISE:
        yield FieldProblem(field=path, what=PROMISE, hint="leave it out.")
    else:
        yield from _check_spark_value(name, value, path)


def _check_spark_value(name: str, value: str, path: str) -> Iterator[FieldProblem]:
    if _has_controls(value) or len(value) > MAX_LENGTH or _SUBSTITUTED.search(value):
        what = "the value holds control characters or a ${…} that Spark would replace"
        yield FieldProblem(field=path, what=what, hint="${secret:NAME} is the only reference.")
    else:
        yield from _check_value(name, value, path)


def _check_value(name: str, value: str, path: str) -> Iterator[FieldProblem]:
    """Check that secrets are references, and that references have valid names."""
    try:
        references([value])
    except SpecError as error:
        yield FieldProblem(field=path, what=error.what, hint=error.hint)
        return
    if looks_secret(name) and value and not is_reference(value):
        yield FieldProblem(
            field=path, what="this looks like a secret, and would be stored and shown", hint=_BY_REFERENCE
        )
    elif re.search(r"://[^\s/@:]*:[^\s/@]+@", re.sub(r"\$\{secret:[^}]*\}", "", value)):
        yield FieldProblem(field=path, what="the address holds a password", hint=_BY_REFERENCE)


def _check_master(master: str) -> Iterator[FieldProblem]:
    if not LOCAL.fullmatch(master):
        hint = "use auto or local[n]; or cluster: NAME instead of a master (clonos cluster ls)."
        yield FieldProblem(field="spec.master", what="this master cannot be used", hint=hint)


def _check_executors(executor: ExecutorResources) -> Iterator[FieldProblem]:
    if executor.memory_mb > _EXECUTOR_MB:
        yield FieldProblem(field="spec.executor.memory", what=f"{_EXECUTOR_MB}m is the maximum")
    slots = executor.instances * executor.cores
    if slots > _TASK_SLOTS:
        what = f"{executor.instances} executors have {slots} task slots, and {_TASK_SLOTS} are the most"
        yield FieldProblem(field="spec.executor", what=what, hint="lower instances or cores.")


def check_size(document: JobSpec | ClusterSpec, subject: str) -> Iterator[FieldProblem]:
    """Return a problem if a document is too long; the problem names its `subject`."""
    size = len(document.model_dump_json(exclude_unset=True).encode())
    if size > MAX_LENGTH:
        hint = f"{MAX_LENGTH} are the most; put data into files beside the code."
        yield FieldProblem(field="spec", what=f"{subject} has {size} bytes", hint=hint)


def _check_main(main: str) -> list[FieldProblem]:
    try:
        check_name(main.removeprefix("./"))
    except ArchiveInvalid as error:
        return [FieldProblem(field="spec.main", what=error.what, hint="a path inside of the uploaded code.")]
    return []


def check_labels(labels: Mapping[str, str]) -> list[FieldProblem]:
    """Return the problems of labels: their number, names and values."""
    invalid = (
        not LABEL.fullmatch(name) or len(value) > MAX_LABEL or _has_controls(value) for name, value in labels.items()
    )
    if len(labels) > MAX_LABELS or any(invalid):
        names = "names of 1 to 63 of a-z, A-Z, 0-9, '.', '_', '/', '-'"
        what = f"at most 64, with {names} and values of up to 255, without control characters"
        return [FieldProblem(field="metadata.labels", what=what)]
    return []


def _refused(name: str) -> str | None:
    lower = name.lower()
    return next((why for pattern, why in REFUSED if pattern.search(lower)), None)


def _has_controls(text: str) -> bool:
    return any(char < " " or "\x7f" <= char <= "\x9f" for char in text)


def shown(name: str) -> str:
    """Return the name of a field in printable characters, shortened."""
    return ascii(name[:100])[1:-1]
