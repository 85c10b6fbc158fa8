"""The commands of `docs/start/install.md` for a project of one's own: the package has all that it needs."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

import pytest

from support.page_shell import ROOT, Shell, blocks, commands, file_of

PAGES: Final = ROOT / "docs/start"


@pytest.mark.turn
@pytest.mark.timeout(1200)
def test_clonos_is_installed_into_an_environment_of_its_own(tmp_path: Path) -> None:
    """The environment finds the dependencies in the tests' environment, so only the build backend is downloaded."""
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    shell = Shell(tmp_path, environment / "bin")
    try:
        _, own = (commands(block) for block in blocks(PAGES / "install.md", "sh"))
        install, *prepare, doctor = own
        shell.type(install.replace("/path/to/clone", str(ROOT)))
        assert prepare == ["python -m clonos.spark.aot"], "`make setup` has run it"
        checks = json.loads(shell.type(f"{doctor} -o json || true"))["checks"]
        # Another platform on this machine may have the default port.
        assert {check["name"] for check in checks if check["status"] == "fail"} <= {"control plane"}, checks
        printed = shell.type("python -c 'import clonos, clonos_api; print(clonos.__file__, clonos_api.__file__)'")
        assert printed.count(str(packages)) == 2, "not the clone"
        shell.write(file_of(PAGES / "first-job.md", "job.py"))
        shell.type("clonos lint job.py")
        shell.type("clonos demo --help")
        assert (packages / "clonos_api/migrations").is_dir()
    finally:
        shell.end()
