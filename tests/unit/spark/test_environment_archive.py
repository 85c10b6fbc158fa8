"""The archive with the Python environment of executors: which packages it has, and what is refused."""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path

import pytest

from clonos.errors import ClonosError, EnvironmentFault, SpecError
from clonos.spark import environment_archive
from clonos.spark.environment_archive import build_environment


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages, instead of Clonos's."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    monkeypatch.setattr(environment_archive, "_OWN", "root")
    monkeypatch.setattr(environment_archive, "_EXTRAS", ("codecs",))
    monkeypatch.setattr(environment_archive, "_CHECK", "import root")
    install(site, "root", requires=["Lower.Part>=1", 'codec; extra == "codecs"', 'other; extra == "server"'])
    install(site, "lower-part", requires=['absent; sys_platform == "nowhere"', 'codec; extra == "never"'])
    return site


def install(site: Path, name: str, *, requires: list[str] = [], files: dict[str, str] | None = None) -> None:  # noqa: B006
    info = f"{name.replace('-', '_')}-1.0.dist-info"
    lines = [f"Requires-Dist: {text}" for text in requires]
    contents = {
        f"{name.replace('-', '_')}/__init__.py": "",
        f"{info}/METADATA": "\n".join(["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0", *lines, ""]),
        **(files or {}),
    }
    contents[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in [*contents, f"../bin/{name}"])
    for file, text in contents.items():
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).write_text(text)


SCRIPT = """#!{python}
import site, sys
site.getsitepackages = lambda: ["{stage}"]
sys.path.insert(0, "{stage}")
exec(sys.argv[2])
"""


@pytest.fixture
def small_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter that is not copied."""

    def script(stage: Path) -> Path:
        python = stage / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(SCRIPT.format(python=sys.executable, stage=stage))
        python.chmod(0o755)
        return python

    monkeypatch.setattr(environment_archive, "_copy_interpreter", script)


def names(archive: Path) -> set[str]:
    with tarfile.open(archive) as content:
        return {member.name for member in content.getmembers() if member.isfile()}


@pytest.mark.usefixtures("small_interpreter")
def test_it_has_what_the_named_packages_require_and_nothing_else(packages: Path, tmp_path: Path) -> None:
    install(packages, "other")
    install(packages, "wanted")
    built = build_environment(tmp_path / "out.tar.gz", ["wanted"])
    assert set(built.packages) == {"root", "lower-part", "wanted"}  # `codec` of the extra is not installed
    assert {"root/__init__.py", "lower_part/__init__.py", "wanted/__init__.py"} <= names(built.path)
    assert "other/__init__.py" not in names(built.path)
    assert not any("bin/root" in name for name in names(built.path)), "a script names the driver's interpreter"
    assert built.size_bytes == (tmp_path / "out.tar.gz").stat().st_size
    assert {path.name for path in tmp_path.iterdir()} == {"site", "out.tar.gz"}


@pytest.mark.usefixtures("small_interpreter")
def test_an_editable_package_becomes_files(packages: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "edited").mkdir(parents=True)
    (source / "edited" / "__init__.py").write_text("REAL = 1")
    (source / "single.py").write_text("")
    (source / "notes").mkdir()
    origin = {"edited-1.0.dist-info/direct_url.json": '{"url": "file:///s", "dir_info": {"editable": true}}'}
    install(packages, "edited", files={"_edited.pth": f"{source}\n", **origin})
    built = names(build_environment(tmp_path / "out.tgz", ["edited"]).path)
    assert {"edited/__init__.py", "single.py"} <= built
    assert not {name for name in built if name.endswith(".pth") or "notes" in name}


@pytest.mark.usefixtures("small_interpreter")
@pytest.mark.parametrize(
    ("package", "error", "what"),
    [
        ("absent", SpecError, "The package absent is not installed here."),
        ("demanding", SpecError, "The package absent, which demanding requires, is not installed here."),
        ("no name!", SpecError, "is not a name of a package"),
        ("hooked", EnvironmentFault, "The package hooked is installed as editable in a way that names no folders."),
    ],
)
def test_a_package_that_cannot_be_included_is_named(
    packages: Path, tmp_path: Path, package: str, error: type[ClonosError], what: str
) -> None:
    install(packages, "demanding", requires=["absent"])
    origin = {"hooked-1.0.dist-info/direct_url.json": '{"url": "file:///s", "dir_info": {"editable": true}}'}
    install(packages, "hooked", files={"_hooked.pth": "import hook\n", **origin})
    (tmp_path / "out.tar.gz").write_text("older")
    with pytest.raises(error, match=what) as raised:
        build_environment(tmp_path / "out.tar.gz", [package])
    assert raised.value.kept == "no archive was written; an older one is unchanged."
    assert raised.value.hint
    assert (tmp_path / "out.tar.gz").read_text() == "older"
    assert {path.name for path in tmp_path.iterdir()} == {"site", "out.tar.gz"}


@pytest.mark.usefixtures("small_interpreter")
def test_an_environment_whose_python_does_not_run_is_refused(packages: Path, tmp_path: Path) -> None:
    (packages / "root" / "__init__.py").write_text("import lib_of_this_host")
    with pytest.raises(EnvironmentFault, match="cannot run the workers of Spark: ModuleNotFoundError: No module named"):
        build_environment(tmp_path / "out.tar.gz")


def test_other_names_and_missing_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"environment\.zip is not a name of an environment archive"):
        build_environment(tmp_path / "environment.zip")
    with pytest.raises(EnvironmentFault, match=r"cannot be written: .*No such file"):
        build_environment(tmp_path / "missing" / "environment.tar.gz")
