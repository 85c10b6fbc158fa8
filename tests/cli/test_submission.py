"""A path as a job to create: what is packed, how it is named, what is refused."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import pytest

from clonos.client.packing import pack_folder
from clonos.client.submission import job_name, read_submission
from clonos.errors import JobMissing, JobNotImportable, SpecError
from clonos.resources.archives import inspect

JOB = '@clonos.job(name="shout")\ndef shout(ctx):\n    pass\n'
YAML = "metadata:\n  name: loud\nspec:\n  main: code/main.py\n  params: {a: 1}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A job's folder, with all that lies around in such folders."""
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


def test_a_folder_holds_code_and_nothing_else(folder: Path) -> None:
    read = read_submission(folder)
    assert read.spec.name == "loud"
    assert read.spec.spec.main == "code/main.py"
    assert names(read.packed.content) == ["code/main.py", "code/tool.py", "job.yaml", "offsets/notes.txt"]
    assert read_submission(folder / "job.yaml") == read
    # What the control plane looks at it with finds nothing against it, and the job file.
    archive = folder.parent / read.packed.name
    archive.write_bytes(read.packed.content)
    assert inspect(archive, archive.name).main == "code/main.py"


def test_the_same_content_is_the_same_archive(folder: Path, tmp_path: Path) -> None:
    """Whatever the times, modes and the order in which files were made."""
    before = pack_folder(folder, "code/main.py").content
    again = tmp_path / "again" / "loud"
    for name in reversed(names(before)):
        (again / name).parent.mkdir(parents=True, exist_ok=True)
        (again / name).write_bytes((folder / name).read_bytes())
        (again / name).chmod(0o755)
        os.utime(again / name, (1, 1))
    assert pack_folder(again, "code/main.py").content == before
    (again / "code" / "tool.py").write_text("x = 2\n")
    assert pack_folder(again, "code/main.py").content != before


def test_parameters_and_another_name(folder: Path) -> None:
    read = read_submission(folder, name="louder", params={"b": "2"})
    assert read.spec.name == "louder"
    assert read.spec.spec.params == {"a": "1", "b": "2"}
    # What nobody set stays unset: there the decorator in the code counts.
    assert set(read.spec.model_dump(exclude_unset=True)["spec"]) == {"main", "params"}


def test_standbys_win_over_the_specification(folder: Path) -> None:
    assert read_submission(folder).spec.spec.standby.wanted == 0
    read = read_submission(folder, standbys=2)
    assert read.spec.spec.standby.wanted == 2
    assert set(read.spec.model_dump(exclude_unset=True)["spec"]) == {"main", "params", "standby"}
    (folder / "job.yaml").write_text(YAML + "  standby: {replicas: 3, mode: none}\n")
    assert read_submission(folder).spec.spec.standby.wanted == 0
    assert read_submission(folder, standbys=1).spec.spec.standby.wanted == 1
    assert read_submission(folder, standbys=0).spec.spec.standby.wanted == 0
    (folder / "job.yaml").write_text(YAML + "  standby: {replicas: 3, aloneAfterS: 15}\n")
    assert read_submission(folder, standbys=1).spec.spec.standby.alone_after_s == 15


def test_a_lone_file_is_sent_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "shout.py"
    file.write_text(JOB)
    (tmp_path / "other.py").write_text("")
    read = read_submission(file)
    assert (read.spec.name, read.spec.spec.main) == ("shout", "shout.py")
    assert (read.packed.name, read.packed.content) == ("shout.py", JOB.encode())
    file.rename(tmp_path / "job.py")
    assert names(read_submission(tmp_path).packed.content) == ["job.py", "other.py"]


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("x = 1", JobMissing, "holds no job"),
        (JOB + JOB.replace("shout", "again"), JobMissing, "holds 2 jobs"),
        (JOB.replace('"shout"', "NAME"), JobMissing, "is computed"),
        (JOB.replace('"shout"', '"Shout!"'), SpecError, "Shout!"),
        ("def (", JobNotImportable, "line 1"),
        ("\0", JobNotImportable, "not Python"),
    ],
)
def test_files_that_name_no_job(tmp_path: Path, text: str, error: type[Exception], said: str) -> None:
    file = tmp_path / "job.py"
    file.write_text(text)
    with pytest.raises(error, match=said):
        read_submission(file)


def test_the_name_is_found_without_running_the_file(tmp_path: Path) -> None:
    file = tmp_path / "job.py"
    file.write_text("raise SystemExit\n" + JOB.replace("clonos.job", "job"))
    assert job_name(file) == "shout"


def test_what_is_not_there_or_leads_out(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(JobMissing):
        read_submission(tmp_path / "nowhere")
    with pytest.raises(JobMissing, match="neither"):
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
