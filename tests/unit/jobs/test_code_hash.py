"""The code hash covers the job file and the files that belong to it, not what a process has imported."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clonos.driver.code_identity import changed_parts, code_parts
from clonos.errors import JobFileInvalid, JobNotImportable
from clonos.jobs.code_files import code_files, code_hash
from clonos.jobs.definition import Job
from clonos.jobs.loading import load_job
from clonos.jobs.spec import JobSpec, Metadata, Spec
from clonos.resources.spec_secrets import resolved

JOB = """
import clonos
import helper


@clonos.job(name="hashed")
def hashed(ctx):
    import inside
    open("model.bin").read()
"""
Write = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def file(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    file("job.py", JOB)
    file("helper.py", "import vendored.used\n")
    file("inside.py", "a = 1\n")
    file("vendored/__init__.py", "")
    file("vendored/used.py", "a = 1\n")
    file("vendored/unused.py", "a = 1\n")
    file("model.bin", "1")
    file("unrelated.py", "a = 1\n")
    return file


@pytest.fixture
def job(tmp_path: Path, write: Write) -> Path:
    return tmp_path / "job.py"


@pytest.mark.parametrize("name", ["job.py", "helper.py", "inside.py", "vendored/used.py", "model.bin"])
def test_a_changed_file_of_the_job_changes_the_hash(job: Path, write: Write, name: str) -> None:
    before = code_files(job)
    write(name, (job.parent / name).read_text() + "\n# changed")
    after = code_files(job)
    assert code_hash(after) != code_hash(before)
    assert changed_parts(before, after) == name


@pytest.mark.parametrize(
    ("text", "files"),
    [
        ("from spaced.deep import g", {"spaced/deep.py"}),
        ("import spaced.deep", {"spaced/deep.py"}),
        ("from spaced import deep", {"spaced/deep.py"}),
        ("import vendored.used", {"vendored/__init__.py", "vendored/used.py"}),
        ("from vendored import used", {"vendored/__init__.py", "vendored/used.py"}),
        ("from vendored.relative import a", {"vendored/__init__.py", "vendored/relative.py", "vendored/used.py"}),
        ("from .helper import a", {"helper.py", "vendored/__init__.py", "vendored/used.py"}),
        ("from ....helper import a", set()),
        ("import os.path, json, nowhere", set()),
        ("def f():\n    import helper", {"helper.py", "vendored/__init__.py", "vendored/used.py"}),
    ],
)
def test_imported_modules_belong_to_the_job(job: Path, write: Write, text: str, files: set[str]) -> None:
    """Also modules of a folder without ``__init__.py``, a namespace package."""
    write("spaced/deep.py", "def g(v):\n    return v\n")
    write("vendored/relative.py", "from .used import a\nfrom . import missing\n")
    write("job.py", text)
    found = {name for name in code_files(job) if not name.startswith("package ")}
    assert found == files | {"job.py"}


@pytest.mark.parametrize(
    "literal",
    ["\\ud800", "\\0", "x" * 300, "é" * 200, "/" * 250, "loop", "loop/x", "..", ".", "", "a/" * 120, "\\udcff.bin"],
    ids=str.__len__,
)
def test_text_that_cannot_name_a_file(job: Path, write: Write, literal: str) -> None:
    (job.parent / "loop").symlink_to("loop")
    write("job.py", f'TEXT = "{literal}"\nMODEL = "model.bin"\n')
    found = {name for name in code_files(job) if not name.startswith("package ")}
    assert found == {"job.py", "model.bin"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("def (:\n", r"inside\.py, line 1, does not import: SyntaxError"),
        ("a = 1\0\n", r"inside\.py.* does not import"),
        ("# coding: nowhere\n", r"inside\.py.* does not import"),
        ("a = " + "(" * 5000, r"inside\.py.* does not import"),
    ],
    ids=["syntax", "nul", "encoding", "nesting"],
)
def test_a_module_that_is_not_python_is_named(job: Path, write: Write, content: str, message: str) -> None:
    """It is imported inside a function only, so the job file itself imports."""
    write("job.py", "def f():\n    import inside\n")
    write("inside.py", content)
    with pytest.raises(JobNotImportable, match=message):
        code_files(job)


@pytest.mark.parametrize("name", ["inside.py", "model.bin"])
def test_a_file_that_cannot_be_read_is_named(job: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Path.open

    def refuse(path: Path, *args: Any, **options: Any) -> Any:
        if path.name == name:
            raise PermissionError(13, "Permission denied")
        return opened(path, *args, **options)

    def read(path: Path) -> bytes:
        with path.open("rb") as file:
            return file.read()

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(Path, "read_bytes", read)
    with pytest.raises(JobNotImportable, match=rf"{name}.* cannot be read: Permission denied"):
        code_files(job)


JOB_OF_NAMES = """
import clonos

@clonos.job(name="named")
def named(ctx):
    pass
"""


@pytest.mark.parametrize("name", ["logging.py", "random.py", "types.py"])
def test_a_job_file_that_workers_would_import_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(JOB_OF_NAMES)
    with pytest.raises(JobFileInvalid, match=rf"{name} has the name of the module"):
        load_job(tmp_path / name)


@pytest.mark.parametrize("name", ["token.py", "email/__init__.py", "pandas.py"])
def test_a_helper_that_workers_would_import_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "job.py").write_text(JOB_OF_NAMES)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("")
    with pytest.raises(JobFileInvalid, match=rf"{name.partition('/')[0]} has the name of the module"):
        load_job(tmp_path)


@pytest.mark.parametrize(
    "name", ["statistics.py", "kafka.py", "utils.py", "email/notes.py", "token.txt", "my-job.v2.py"]
)
def test_a_harmless_name_is_allowed(tmp_path: Path, name: str) -> None:
    (tmp_path / "job.py").write_text(JOB_OF_NAMES)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(JOB_OF_NAMES)
    assert load_job(tmp_path).spec.name == "named"
    if name.endswith(".py") and "/" not in name:
        assert load_job(tmp_path / name).spec.name == "named"


@pytest.mark.parametrize("name", ["unrelated.py", "vendored/unused.py", "notes.txt"])
def test_other_files_do_not_count(job: Path, write: Write, name: str) -> None:
    before = code_files(job)
    write(name, "changed")
    assert code_files(job) == before


def test_what_the_process_has_imported_does_not_count(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(job.parent))
    names = ("helper", "inside", "vendored", "vendored.used", "vendored.unused")
    before = code_files(job)
    try:
        __import__("vendored.unused")
        assert code_files(job) == before
        assert load_job(job).files == before
    finally:
        for name in names:
            sys.modules.pop(name, None)


def test_libraries_beside_the_job_count_by_their_version(job: Path, write: Write) -> None:
    """Clonos in the folder of the job, as after ``pip install -t`` or at the root of a checkout."""
    before = code_files(job)
    write("clonos/__init__.py", "")
    write("pandas/__init__.py", "")
    assert code_files(job) == before
    assert before.keys() >= {"package clonos", "package pyspark", "package pandas", "package pyarrow"}


def test_parameters_and_settings_belong_to_the_code() -> None:
    def parts(conf: dict[str, str] | None = None, **spec: object) -> dict[str, str]:
        body = Spec.model_validate(spec)
        return code_parts(Job(lambda ctx: None, JobSpec(metadata=Metadata(name="j"), spec=body), "c"), conf or {})

    before = parts(params={"city": "Berlin"})
    assert changed_parts(before, parts(params={"city": "Rome"})) == "param city"
    assert changed_parts(before, parts({"spark.sql.session.timeZone": "UTC"}, params={"city": "Berlin"})) == (
        "spark.sql.session.timeZone (new)"
    )
    assert parts({"spark.ui.enabled": "false"}, params={"city": "Berlin"}) == before


def test_settings_of_queries_in_a_cluster_belong_to_the_code() -> None:
    """The others, such as addresses, change with the cluster."""
    job = Job(lambda ctx: None, JobSpec(metadata=Metadata(name="j"), spec=Spec()), "c")
    before = code_parts(job, {"spark.sql.session.timeZone": "UTC"})
    assert (
        code_parts(job, {"spark.sql.session.timeZone": "UTC"}, {"spark.driver.host": "a", "spark.rpc.x": "b"}) == before
    )
    zone = {"spark.sql.session.timeZone": "Europe/Rome"}
    assert changed_parts(before, code_parts(job, zone, zone)) == "spark.sql.session.timeZone"
    assert code_parts(job, {"spark.sql.session.timeZone": "UTC"}, zone) == code_parts(job, zone)


def test_a_secret_is_not_code() -> None:
    """It may be rotated while an epoch is in doubt, and the causal log must not hold a hash of it."""
    texts = {"login": "ada:${secret:db}", "city": "Berlin"}
    spec = JobSpec(metadata=Metadata(name="j"), spec=Spec(params=texts, spark_conf={"spark.x": "${secret:db}"}))

    def parts(secret: str) -> dict[str, str]:
        driver_spec = resolved(spec, lambda _name: secret)
        assert driver_spec.spec.params["login"] == f"ada:{secret}"
        return code_parts(Job(lambda ctx: None, driver_spec, "c"), {"spark.y.password": secret})

    assert parts("l0velace") == parts("changed")
    assert {name for name, value in parts("l0velace").items() if value == "hidden"} == {
        "param login",
        "spark.x",
        "spark.y.password",
    }


def test_files_that_the_job_writes_are_not_code(job: Path, write: Write) -> None:
    names = ("events.jsonl", "job.log", "cache.sqlite", "model.json")
    job.write_text(job.read_text() + f"\nFILES = {names!r}\n")
    for name in names:
        write(name, "before")
    events = job.parent / "events.jsonl"
    before = code_files(job, outputs=[events])
    assert "model.json" in before
    for name in names[:-1]:
        write(name, "after")
    assert code_files(job, outputs=[events]) == before


def test_a_changed_version_is_shown() -> None:
    before = {"job.py": "a", "package pandas": "2.2", "gone.py": "c"}
    after = {"job.py": "b", "package pandas": "2.3"}
    assert changed_parts(before, after) == "gone.py (gone), job.py, package pandas (2.2, now 2.3)"
    assert changed_parts({}, after) == ""
