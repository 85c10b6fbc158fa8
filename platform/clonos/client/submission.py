"""A path as a job to create: its specification and its code. The code is read, not run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from clonos.client.packing import Packed, pack_file, pack_folder
from clonos.errors import JobMissing, JobNotImportable, SpecError
from clonos.spec import JobSpec, Metadata, Spec, check_name, explain, read_spec

_YAML = (".yaml", ".yml")


@dataclass(frozen=True)
class Submission:
    """What `clonos submit` sends."""

    spec: JobSpec
    packed: Packed


def read_submission(
    path: Path, *, name: str | None = None, params: Mapping[str, str] | None = None, standbys: int | None = None
) -> Submission:
    """The job at `path`: a ``.py`` file, a ``job.yaml``, or their folder.

    With a YAML file all of its folder is the code. Of a lone Python file the name is that in its decorator; what else
    the decorator says counts where the specification says nothing, as with ``clonos run``. `standbys` wins over what
    the specification says of them.

    Raises:
        JobMissing: There is no job.
        JobNotImportable: It is no Python.
        SpecError: The specification is wrong, or the name.
    """
    try:
        name = check_name(name) if name is not None else None
    except ValueError as error:
        raise SpecError(f"The name {error}.") from error
    path = path.resolve()
    if path.is_dir():
        found = [path / one for one in ("job.yaml", "job.yml", "job.py") if (path / one).is_file()]
        if not found:
            raise JobMissing(f"The folder {path} holds neither a job.yaml nor a job.py.")
        folder, file = path, found[0]
    elif path.is_file():
        folder, file = path.parent, path
    else:
        raise JobMissing(f"There is no job file {path}.")
    if file.suffix in _YAML:
        spec = read_spec(file)
        packed = pack_folder(folder, spec.spec.main or "job.py")
    elif file.suffix == ".py":
        named = name or job_name(file)
        try:
            spec = JobSpec(metadata=Metadata(name=named))
        except ValidationError as error:
            raise SpecError(f"{file} names its job {named!r}: {explain(error)}.") from error
        packed = pack_folder(folder, file.name) if path.is_dir() else pack_file(file)
    else:
        raise JobMissing(f"{file} is neither a Python file nor a YAML file.")
    spec = _with(spec, packed.main, name, standbys)
    return Submission(spec.with_params(dict(params)) if params else spec, packed)


def _with(spec: JobSpec, main: str, name: str | None, standbys: int | None) -> JobSpec:
    metadata = spec.metadata.model_copy(update={"name": name}) if name is not None else spec.metadata
    inner: Spec = spec.spec.model_copy(update={"main": main})
    if standbys is not None:
        # Asked for on the command line: whatever the mode was, it is these now.
        standby = inner.standby.model_copy(update={"replicas": standbys, "mode": "dedicated"})
        inner = inner.model_copy(update={"standby": standby})
    return spec.model_copy(update={"metadata": metadata, "spec": inner})


def job_name(file: Path) -> str:
    """The name in the one ``@clonos.job(name="…")`` of a file.

    Raises:
        JobMissing: There is none, or several, or its name is computed.
        JobNotImportable: It is no Python.
    """
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise JobNotImportable(f"{file}{line} is not Python: {error}.") from error
    names = list(_names(tree))
    if not names:
        raise JobMissing(f"{file} holds no job.", hint='decorate one function in it with @clonos.job(name="…").')
    if len(names) > 1:
        raise JobMissing(f"{file} holds {len(names)} jobs.", hint="give each a file of its own.")
    if names[0] is None:
        raise JobMissing(f"The name of the job in {file} is computed.", hint="name it with --name, or in a job.yaml.")
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
                given = {one.arg: one.value for one in decorator.keywords}.get("name")
                yield given.value if isinstance(given, ast.Constant) and isinstance(given.value, str) else None
