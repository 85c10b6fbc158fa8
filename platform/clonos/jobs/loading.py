"""Loads a job from a Python or YAML file, with the parts of its code."""

from __future__ import annotations

import difflib
from dataclasses import replace
from pathlib import Path
from typing import Any

from clonos.errors import JobFileInvalid, SpecError
from clonos.jobs.code_files import code_files, code_hash
from clonos.jobs.definition import Job
from clonos.jobs.importing import check_names, import_file
from clonos.jobs.spec import JobSpec, read_spec


def load_job(path: Path) -> Job:
    """Load the job in a Python file, or in the Python file that a YAML file names.

    Args:
        path: The Python or YAML file, or a folder with a ``job.yaml`` or ``job.py``. The fields of a YAML file take
            precedence over those of the decorator.

    Returns:
        The job, with the parts of its code.

    Raises:
        JobFileInvalid: The file does not exist, or does not hold exactly one job.
        JobNotImportable: The file raised while it was imported.
        SessionRequired: The file uses Spark while it is imported, and there is no session yet.
        SpecError: The YAML file is invalid.

    Example::

        job = clonos.load_job(Path("examples/wordcount/job.py"))
    """
    path = _in_folder(path.resolve())
    if path.suffix in {".yaml", ".yml"}:
        spec = read_spec(path)
        main = job_file(path, spec)
        if main.suffix in {".yaml", ".yml"}:
            raise SpecError(f"{path} names {main.name} as its job file.", hint="main: is a Python file.")
        inner = load_job(main)
        return replace(inner, spec=_merged(inner.spec, spec))
    if not path.is_file():
        raise missing_job_file(path)
    check_names(path.parent)
    module = import_file(path)
    jobs = list({id(value): value for value in vars(module).values() if isinstance(value, Job)}.values())
    if not jobs:
        raise JobFileInvalid(f"{path} holds no job.", hint="decorate one function in it with @clonos.job(name=…).")
    if len(jobs) > 1:
        names = ", ".join(job.spec.name for job in jobs)
        raise JobFileInvalid(f"{path} holds {len(jobs)} jobs: {names}.", hint="put each into its own file.")
    files = code_files(path)
    return replace(jobs[0], code=code_hash(files), directory=path.parent, files=files)


def find_job_file(path: Path) -> Path:
    """Return the Python file that `load_job` would load from `path`; it may be missing. Raises as `load_job`."""
    path = _in_folder(path.resolve())
    return job_file(path, read_spec(path)) if path.suffix in {".yaml", ".yml"} else path


def _in_folder(path: Path) -> Path:
    if not path.is_dir():
        return path
    candidates = [path / name for name in ("job.yaml", "job.py") if (path / name).exists()]
    if not candidates:
        raise JobFileInvalid(f"The folder {path} holds neither a job.yaml nor a job.py.")
    return candidates[0]


def job_file(path: Path, spec: JobSpec) -> Path:
    """Return the Python file that a YAML file with this `spec` names; Python workers import the modules beside it."""
    return path.parent / (spec.spec.main or "job.py")


def missing_job_file(path: Path) -> JobFileInvalid:
    """Return the error about a job file that does not exist, with the most similar file beside it."""
    if not path.parent.is_dir():
        return JobFileInvalid(f"There is no job file {path}: its folder does not exist.")
    candidates = [file.name for file in path.parent.iterdir() if file.suffix in {".py", ".yaml", ".yml"}]
    close = difflib.get_close_matches(path.name, candidates, 1)
    return JobFileInvalid(f"There is no job file {path}." + (f" Did you mean {close[0]}?" if close else ""))


def _merged(code: JobSpec, text: JobSpec) -> JobSpec:
    """Return the decorator's fields, updated with the fields of the YAML file."""
    fields: dict[str, Any] = {name: getattr(text.spec, name) for name in text.spec.model_fields_set}
    for name in ("params", "spark_conf", "connections"):
        fields[name] = {**getattr(code.spec, name), **fields.get(name, {})}
    return JobSpec(metadata=text.metadata, spec=code.spec.model_copy(update=fields))
