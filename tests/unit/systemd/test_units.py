"""The files in ``systemd``: valid units, and settings and commands that exist."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Final

import pytest
import typer

from clonos.cli.app import app
from clonos.settings import Settings
from clonos_api.settings import ApiSettings
from support.reporting import program

FOLDER: Final = Path(__file__).parents[3] / "systemd"
UNITS: Final = ("clonos-control-plane", "clonos-agent")


def directives(name: str) -> dict[str, str]:
    """The directives of a unit; each stands once in a section."""
    read: dict[str, str] = {}
    for line in (FOLDER / f"{name}.service").read_text().splitlines():
        if line and line[0] not in "#[":
            key, _, value = line.partition("=")
            assert key not in read, f"{key} stands twice"
            read[key] = value
    return read


def variables(file: str) -> dict[str, str]:
    """The variables of an environment file, also of its commented examples."""
    lines = re.findall(r"^#?([A-Z_]+)=(.*)$", (FOLDER / file).read_text(), re.MULTILINE)
    return {name: value.strip('"') for name, value in lines}


@pytest.mark.parametrize("name", UNITS)
def test_systemd_accepts_the_unit(pytestconfig: pytest.Config, name: str, tmp_path: Path) -> None:
    analyze = program(pytestconfig, "systemd-analyze")
    text = (FOLDER / f"{name}.service").read_text()
    # The programs are not installed here, and so are their users.
    unit = tmp_path / f"{name}.service"
    unit.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.MULTILINE))
    checked = _verify(analyze, unit)
    assert checked.returncode == 0, checked.stderr
    assert name not in checked.stderr, "a warning"
    unit.write_text(unit.read_text().replace("ProtectSystem=", "ProtectSystems="))
    assert "ProtectSystems" in _verify(analyze, unit).stderr, "the check notices an unknown directive"


def _verify(analyze: str, unit: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [analyze, "verify", "--man=no", "--recursive-errors=no", str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_is_confined_and_restarts(name: str) -> None:
    unit = directives(name)
    assert unit["User"] != "root"
    assert (unit["Restart"], unit["StartLimitIntervalSec"]) == ("always", "0")
    assert (unit["NoNewPrivileges"], unit["ProtectSystem"], unit["ProtectHome"]) == ("yes", "strict", "yes")
    assert unit["CapabilityBoundingSet"] == ""
    assert "WatchdogSec" not in unit, "the processes do not notify systemd"
    assert f"/var/lib/{unit['StateDirectory']}" in unit["Environment"], "CLONOS_HOME is the only writable directory"


def test_a_restart_of_the_agent_leaves_its_drivers_running() -> None:
    unit = directives("clonos-agent")
    assert unit["KillMode"] == "process"
    assert unit["OOMPolicy"] == "continue"
    assert "PrivateTmp" not in unit, "systemd would remove the files of drivers that continue"
    assert "--stop-drivers" not in variables("agent.env")["CLONOS_AGENT_OPTIONS"]


def test_the_commands_and_their_options_exist() -> None:
    assert shlex.split(directives("clonos-control-plane")["ExecStart"])[1:] == ["-m", "clonos_api"]
    program, command, options = shlex.split(directives("clonos-agent")["ExecStart"])
    assert (Path(program).name, command, options) == ("clonos", "agent", "$CLONOS_AGENT_OPTIONS")
    agent = typer.main.get_command(app).commands["agent"]  # type: ignore[attr-defined]
    known = {option for parameter in agent.params for option in parameter.opts}
    used = {word for word in shlex.split(variables("agent.env")["CLONOS_AGENT_OPTIONS"]) if word.startswith("--")}
    assert used
    assert used <= known


def test_the_settings_exist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CLONOS_HOME", str(tmp_path))
    fields = {f"CLONOS_API__{name.upper()}" for name in ApiSettings.model_fields}
    written = variables("control-plane.env")
    assert written.keys() <= fields
    for name, value in written.items():
        monkeypatch.setenv(name, value.replace("whsec_…", f"whsec_{'A' * 40}"))
    settings = ApiSettings()
    settings.check_exposure()
    assert settings.webhooks[0].name == "pager"
    agent = variables("agent.env")
    assert agent.keys() == {"CLONOS_API", "CLONOS_AGENT_OPTIONS", "CLONOS_KAFKA__BOOTSTRAP_SERVERS"}
    assert "bootstrap_servers" in type(Settings().kafka).model_fields
