"""Reads a job from disk: its specification and its code. The code is parsed, not executed."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from clonos import python_source
from clonos.client.packing import Packed, pack_file, pack_folder
from clonos.documents import explain
from clonos.errors import JobFileInvalid, JobNotImportable, SpecError
from clonos.jobs.packages import lock_of, read_lock
from clonos.jobs.spec import JobSpec, Metadata, Spec, check_name, read_spec

_YAML = (".yaml", ".yml")


@dataclass(frozen=True)
class Submission:
    """A job that was read from disk."""

    spec: JobSpec
    """Its specification."""
    packed: Packed
    """Its code, packed for the upload."""
    file: Path
    """The file with the job's function."""


def read_submission(
    path: Path,
    *,
    name: str | None = None,
    params: Mapping[str, str] | None = None,
    standbys: int | None = None,
    cluster: str | None = None,
) -> Submission:
    """Read the job at `path`: a ``.py`` file, a ``job.yaml``, or their folder.

    With a YAML file, the code is the file's whole folder. Without one, the job has the name in its decorator. Other
    arguments of the decorator apply where the specification has no value, as with ``clonos run``. The arguments replace
    what is specified: `standbys` also the mode, `cluster` also the master; `params` are added.

    Raises:
        JobFileInvalid: There is no job.
        JobNotImportable: The file is not valid Python.
        SpecError: The specification or the name is invalid.
    """
    try:
        name = check_name(name) if name is not None else None
        cluster = check_name(cluster) if cluster is not None else None
    except ValueError as error:
        raise SpecError(f"The name {error}.") from error
    path = path.resolve()
    if path.is_dir():
        files = [path / file_name for file_name in ("job.yaml", "job.yml", "job.py") if (path / file_name).is_file()]
        if not files:
            raise JobFileInvalid(f"The folder {path} holds neither a job.yaml nor a job.py.")
        folder, file = path, files[0]
    elif path.is_file():
        folder, file = path.parent, path
    else:
        from clonos.jobs.loading import missing_job_file

        raise missing_job_file(path)
    if file.suffix in _YAML:
        spec = read_spec(file)
        packed = pack_folder(folder, spec.spec.main or "job.py")
    elif file.suffix == ".py":
        decorated_name = name or job_name(file)
        try:
            spec = JobSpec(metadata=Metadata(name=decorated_name))
        except ValidationError as error:
            raise SpecError(f"{file} names its job {decorated_name!r}: {explain(error, JobSpec)}.") from error
        packed = pack_folder(folder, file.name) if path.is_dir() else pack_file(file)
    else:
        raise JobFileInvalid(f"{file} is neither a Python file nor a YAML file.")
    if (lock := lock_of(folder / packed.main)) is not None:
        read_lock(lock)  # a host would refuse it
    spec = _with(spec, packed.main, name, standbys, cluster)
    return Submission(spec.with_params(dict(params)) if params else spec, packed, folder / packed.main)


def _with(spec: JobSpec, main: str, name: str | None, standbys: int | None, cluster: str | None) -> JobSpec:
    metadata = spec.metadata.model_copy(update={"name": name}) if name is not None else spec.metadata
    inner: Spec = spec.spec.model_copy(update={"main": main})
    if standbys is not None:
        # The number on the command line also replaces the mode of the specification.
        standby = inner.standby.model_copy(update={"replicas": standbys, "mode": "dedicated"})
        inner = inner.model_copy(update={"standby": standby})
    if cluster is not None:
        inner = inner.model_copy(update={"cluster": cluster, "master": "auto"})
    return spec.model_copy(update={"metadata": metadata, "spec": inner})


def job_name(file: Path) -> str:
    """Return the name in the one ``@clonos.job(name="…")`` of a file.

    Raises:
        JobFileInvalid: The file has no job, or several, or the name is computed.
        JobNotImportable: The file is not valid Python.
    """
    try:
        tree = python_source.parse(file.read_bytes(), str(file))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise JobNotImportable(f"{file}{line} is not Python: {error}.") from error
    names = list(_names(tree))
    if not names:
        raise JobFileInvalid(f"{file} holds no job.", hint='decorate one function in it with @clonos.job(name="…").')
    if len(names) > 1:
        raise JobFileInvalid(f"{file} holds {len(names)} jobs.", hint="give each a file of its own.")
    if names[0] is None:
        raise JobFileInvalid(
            f"The name of the job in {file} is computed.", hint="name it with --name, or in a job.yaml."
        )
    return names[0]


def _names(tree: ast.Module) -> Iterator[str | None]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef):
            continue
        for decorator in node.decorator_list:
            if not isinstance(decorator, ast.Call):
                continue
            called = decorator.func
            plain = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if plain == "job":
                argument = {keyword.arg: keyword.value for keyword in decorator.keywords}.get("name")
                yield argument.value if isinstance(argument, ast.Constant) and isinstance(argument.value, str) else None
