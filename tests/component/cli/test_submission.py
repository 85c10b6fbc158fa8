"""Reading a submission from a path: its archive, its name and invalid paths."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import pytest

from clonos.client.packing import largest_files, pack_folder
from clonos.client.submission import job_name, read_submission
from clonos.errors import JobFileInvalid, JobNotImportable, SpecError
from clonos.resources.archives import inspect

JOB = '@clonos.job(name="shout")\ndef shout(ctx):\n    pass\n'
YAML = "metadata:\n  name: loud\nspec:\n  main: code/main.py\n  params: {a: 1}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A job's folder with typical other files."""
    root = tmp_path / "loud"
    for name, text in {
        "job.yaml": YAML,
        "code/main.py": JOB,
        "code/tool.py": "x = 1\n",
        "code/__pycache__/tool.cpython-311.pyc": "",
        ".git/config": "",
        ".env": "PASSWORD=1\n",
        "out/offsets/0": "",
        "out/commits/0": "",
        "checkpoints/a": "",
        "offsets/notes.txt": "no checkpoint\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def names(content: bytes) -> list[str]:
    return zipfile.ZipFile(io.BytesIO(content)).namelist()


def test_the_archive_of_a_folder_holds_its_code_only(folder: Path) -> None:
    submission = read_submission(folder)
    assert submission.spec.name == "loud"
    assert submission.spec.spec.main == "code/main.py"
    assert names(submission.packed.content) == ["code/main.py", "code/tool.py", "job.yaml", "offsets/notes.txt"]
    assert read_submission(folder / "job.yaml") == submission
    # The control plane's inspection accepts the archive and finds the job file.
    archive = folder.parent / submission.packed.name
    archive.write_bytes(submission.packed.content)
    assert inspect(archive, archive.name).main == "code/main.py"


def test_a_missing_file_gets_the_most_similar_name(folder: Path) -> None:
    with pytest.raises(JobFileInvalid, match=r"There is no job file .*jobb\.yaml\. Did you mean job\.yaml\?"):
        read_submission(folder / "jobb.yaml")
    with pytest.raises(JobFileInvalid, match=r"other\.py\.\nKept"):
        read_submission(folder / "other.py")
    with pytest.raises(JobFileInvalid, match="its folder does not exist"):
        read_submission(folder / "no/job.py")


def test_an_ignore_file_leaves_files_out(folder: Path) -> None:
    (folder / "model.bin").write_bytes(b"x" * 5000)
    (folder / ".clonosignore").write_text("# data\n*.bin\n/offsets/\n")
    assert names(read_submission(folder).packed.content) == ["code/main.py", "code/tool.py", "job.yaml"]
    (folder / ".clonosignore").write_text("/code/\n")
    with pytest.raises(SpecError, match=r"code/main\.py is not in"):
        read_submission(folder)


@pytest.mark.parametrize("content", [b"!\n", b"\xff\xfe"])
def test_an_ignore_file_that_cannot_be_used_is_refused(folder: Path, content: bytes) -> None:
    (folder / ".clonosignore").write_bytes(content)
    with pytest.raises(SpecError, match=r"\.clonosignore cannot be read"):
        read_submission(folder)


def test_the_largest_files_are_named(folder: Path) -> None:
    (folder / "model.bin").write_bytes(b"x" * 5000)
    packed = read_submission(folder).packed
    assert largest_files(packed, 2) == [("model.bin", 5000), ("job.yaml", len(YAML))]


def test_equal_content_gives_equal_archives(folder: Path, tmp_path: Path) -> None:
    """Times, modes and the order of creation do not matter."""
    before = pack_folder(folder, "code/main.py").content
    copy = tmp_path / "again" / "loud"
    for name in reversed(names(before)):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes((folder / name).read_bytes())
        (copy / name).chmod(0o755)
        os.utime(copy / name, (1, 1))
    assert pack_folder(copy, "code/main.py").content == before
    (copy / "code" / "tool.py").write_text("x = 2\n")
    assert pack_folder(copy, "code/main.py").content != before


def test_parameters_and_name_override_the_specification(folder: Path) -> None:
    submission = read_submission(folder, name="louder", params={"b": "2"})
    assert submission.spec.name == "louder"
    assert submission.spec.spec.params == {"a": "1", "b": "2"}
    # Unset fields stay unset, so that the decorator's values apply.
    assert set(submission.spec.model_dump(exclude_unset=True)["spec"]) == {"main", "params"}


def test_standbys_override_the_specification(folder: Path) -> None:
    assert read_submission(folder).spec.spec.standby.dedicated_replicas == 0
    submission = read_submission(folder, standbys=2)
    assert submission.spec.spec.standby.dedicated_replicas == 2
    assert set(submission.spec.model_dump(exclude_unset=True)["spec"]) == {"main", "params", "standby"}
    (folder / "job.yaml").write_text(YAML + "  standby: {replicas: 3, mode: none}\n")
    assert read_submission(folder).spec.spec.standby.dedicated_replicas == 0
    assert read_submission(folder, standbys=1).spec.spec.standby.dedicated_replicas == 1
    assert read_submission(folder, standbys=0).spec.spec.standby.dedicated_replicas == 0
    (folder / "job.yaml").write_text(YAML + "  standby: {replicas: 3, selfPromoteAfter: 15s}\n")
    assert read_submission(folder, standbys=1).spec.spec.standby.self_promote_after_s == 15


def test_a_single_file_is_sent_unpacked(tmp_path: Path) -> None:
    file = tmp_path / "shout.py"
    file.write_text(JOB)
    (tmp_path / "other.py").write_text("")
    submission = read_submission(file)
    assert (submission.spec.name, submission.spec.spec.main) == ("shout", "shout.py")
    assert (submission.packed.name, submission.packed.content) == ("shout.py", JOB.encode())
    file.rename(tmp_path / "job.py")
    assert names(read_submission(tmp_path).packed.content) == ["job.py", "other.py"]


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("x = 1", JobFileInvalid, "holds no job"),
        (JOB + JOB.replace("shout", "again"), JobFileInvalid, "holds 2 jobs"),
        (JOB.replace('"shout"', "NAME"), JobFileInvalid, "is computed"),
        (JOB.replace('"shout"', '"Shout!"'), SpecError, "Shout!"),
        ("def (", JobNotImportable, "line 1"),
        ("\0", JobNotImportable, "not Python"),
    ],
)
def test_invalid_job_files_raise(tmp_path: Path, text: str, error: type[Exception], message: str) -> None:
    file = tmp_path / "job.py"
    file.write_text(text)
    with pytest.raises(error, match=message):
        read_submission(file)


def test_job_name_does_not_run_the_file(tmp_path: Path) -> None:
    file = tmp_path / "job.py"
    file.write_text("raise SystemExit\n" + JOB.replace("clonos.job", "job"))
    assert job_name(file) == "shout"


def test_missing_paths_and_links_outside_raise(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(JobFileInvalid):
        read_submission(tmp_path / "nowhere")
    with pytest.raises(JobFileInvalid, match="neither"):
        read_submission(tmp_path)
    with pytest.raises(SpecError, match="use 1 to 100"):
        read_submission(folder, name="No Name")
    (folder / "secret").symlink_to("/etc/passwd")
    with pytest.raises(SpecError, match="leads out"):
        read_submission(folder)
    (folder / "secret").unlink()
    (folder / "job.yaml").write_text(YAML.replace("code/main.py", "../main.py"))
    with pytest.raises(SpecError, match=r"\.\./main\.py is not in"):
        read_submission(folder)
