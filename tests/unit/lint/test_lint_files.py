"""The files that the linter reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from clonos.errors import SpecError
from clonos.lint import lint
from support.linting import Lint, codes, in_job, in_udf, only

RAW = "import time\n\ndef stamp(word):\n    return time.time()\n"


@pytest.mark.parametrize(
    ("imports", "call"),
    [
        ("import stamps", "stamps.stamp(word)"),
        ("import stamps as s", "s.stamp(word)"),
        ("from stamps import stamp", "stamp(word)"),
        ("from stamps import stamp as s", "s(word)"),
        ("from stamps import *", "stamp(word)"),
        ("from . import stamps", "stamps.stamp(word)"),
        ("from .stamps import stamp", "stamp(word)"),
        ("import stamps\nSTAMPS = {'a': stamps.stamp}", "STAMPS['a'](word)"),
        ("from functools import partial\nimport stamps\nstamp = partial(stamps.stamp, 1)", "stamp()"),
    ],
)
def test_modules_in_the_folder_are_followed(linted: Lint, imports: str, call: str) -> None:
    report = linted(in_udf(f"value = {call}", imports), stamps=RAW, unrelated=RAW.replace("def stamp", "stamp = "))
    assert (only(report).file, only(report).runs) == ("stamps.py", "rows")
    assert [path.name for path in report.files] == ["job.py", "stamps.py"]


@pytest.mark.parametrize(
    ("imports", "call"),
    [
        ("import pack.stamps", "pack.stamps.stamp(word)"),
        ("from pack import stamps", "stamps.stamp(word)"),
        ("from pack.stamps import stamp", "stamp(word)"),
        ("from pack import stamp", "stamp(word)"),
        ("import pack", "pack.stamp(word)"),
        ("import pack", "pack.stamps.stamp(word)"),
    ],
)
def test_packages_are_followed(linted: Lint, imports: str, call: str) -> None:
    report = linted(
        in_udf(f"value = {call}", imports), **{"pack/__init__": "from .stamps import stamp\n", "pack/stamps": RAW}
    )
    assert only(report).file == "pack/stamps.py"


def test_alias_of_another_file_is_followed(linted: Lint) -> None:
    clients = "import requests\nfrom time import time as now\nsession = requests.Session()\n"
    report = linted(in_udf("value = now(), session.get(word)", "from clients import now, session"), clients=clients)
    assert codes(report) == ["CL001", "CL006"]


def test_services_of_another_file_are_allowed(linted: Lint) -> None:
    services = "import clonos, requests\n\n@clonos.service\ndef ask(word):\n    return requests.get(word)\n"
    assert not linted(in_udf("value = ask(word)", "from services import ask"), services=services).findings


def test_modules_of_the_job_hide_installed_ones(linted: Lint) -> None:
    assert not linted(in_udf("value = random.random()", "import random"), random="def random(): return 4\n").findings
    # Nothing of the job's own can stand in for these.
    assert codes(linted(in_job("rows = rows.select(F.rand())"), pyspark="x = 1\n", clonos="x = 1\n")) == ["CL101"]


def test_module_of_a_package_does_not_hide_an_installed_one(linted: Lint) -> None:
    user = "import random\n\ndef draw(word):\n    return random.random()\n"
    report = linted(
        in_udf("value = draw(word)", "from pack.user import draw"),
        **{"pack/__init__": "", "pack/user": user, "pack/random": "def random(): return 4\n"},
    )
    assert codes(report) == ["CL002"]


def test_folder_includes_its_jobs(linted: Lint, tmp_path: Path) -> None:
    bad = in_udf("value = time.time()", "import clonos, time")
    hidden = {f"{folder}/job": bad for folder in (".hidden", "venv", "node_modules", "deep/.venv")}
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    report = linted(
        in_udf("value = 1"),
        folder=True,
        tool="import time\n\nprint(time.time())\n\nif __name__ == '__main__':\n    time.time()\n",
        **{"deep/er/job": bad},
        **hidden,
    )
    assert [finding.file for finding in report.findings] == ["deep/er/job.py"]
    assert [str(path.relative_to(tmp_path)) for path in report.files] == ["deep/er/job.py", "job.py"]


def test_jobs_of_a_folder_find_their_own_modules(linted: Lint) -> None:
    """Each job of a folder imports the modules in its own folder."""
    job = in_udf("value = stamp(word)", "import clonos\nfrom stamps import stamp")
    report = linted(in_udf("value = 1"), folder=True, **{"one/job": job, "one/stamps": RAW, "two/stamps": RAW})
    assert [finding.file for finding in report.findings] == ["one/stamps.py"]


def test_several_paths_share_a_report(tmp_path: Path) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("import clonos" + in_udf("value = time.time()", "\nimport time"))
    assert len(lint([tmp_path / "a.py", tmp_path / "b.py"]).findings) == 2
    assert len(lint([tmp_path, tmp_path / "b.py"]).findings) == 2


def test_encoding_of_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_bytes("# coding: latin-1\nimport clonos\nGRÜN = clonos.now()\n".encode("latin-1"))
    assert only(lint([path])).column == 8
    path.write_bytes(b"\xef\xbb\xbfimport clonos\r\nX = clonos.now()\r\n")
    assert only(lint([path])).line == 2


def test_syntax_warnings_are_ignored(linted: Lint) -> None:
    assert not linted("PATTERN = '\\d' is 1\n" + in_udf("value = 1")).findings


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"import clonos\ndef broken(:\n", "job.py, line 2: "),
        (b"x = '\xff'\n", "not Python"),
        (b"# coding: no-such-code\n", "not Python"),
        (b"x = 1\0\n", "job.py"),
        (b"(" * 500 + b")" * 500, "job.py"),
    ],
)
def test_unreadable_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "job.py").write_bytes(content)
    for path in (tmp_path, tmp_path / "job.py"):
        with pytest.raises(SpecError, match=message):
            lint([path])


def test_broken_module_is_refused(linted: Lint) -> None:
    with pytest.raises(SpecError, match=r"stamps\.py, line 1"):
        linted("import stamps", stamps="def (")


def test_long_chain_of_calls_is_refused(linted: Lint) -> None:
    def chain(length: int) -> str:
        return in_job("rows = rows" + ".withColumn('x', F.rand())" * length)

    assert len(linted(chain(150)).findings) == 150
    with pytest.raises(SpecError, match="nested too deeply"):
        linted(chain(1000))


def test_missing_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="There is no file"):
        lint([tmp_path / "none.py"])
    with pytest.raises(SpecError, match="There is no"):
        lint([tmp_path / "none"])
    with pytest.raises(SpecError, match="holds no Python file"):
        lint([tmp_path])
    (tmp_path / "text.txt").touch()
    with pytest.raises(SpecError, match="not a Python file"):
        lint([tmp_path / "text.txt"])


def test_unresolved_imports_are_ignored(linted: Lint) -> None:
    imports = "from ....... import far\nfrom . import nothing\nfrom .nothing import more\nimport nothing.at.all\n"
    assert not linted(imports + in_udf("value = far(), nothing(), more.x(), nothing.at.all.x()")).findings
