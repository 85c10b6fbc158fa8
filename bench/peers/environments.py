"""Installs the peers: a virtual environment for each, and Flink's Kafka connector."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, Literal

from bench.progress import log_progress
from clonos.embedded.jars import exclusive, ivy_command
from clonos.settings import Settings

Peer = Literal["flink", "quix"]

_PACKAGES: Final[dict[Peer, str]] = {"flink": "apache-flink==2.2.1", "quix": "quixstreams==3.28.1"}
_CONNECTOR: Final = ("org.apache.flink", "flink-sql-connector-kafka", "5.0.0-2.2")
_JOBS: Final = Path(__file__).parent / "jobs"


def command(
    peer: Peer, *, tuned: bool = False, bootstrap: str, kind: str, source: str, output: str, folder: Path
) -> list[str]:
    """The command line of a peer's job; the first call installs the peer.

    Args:
        peer: The system.
        tuned: Whether it has its settings for short latencies and restarts.
        bootstrap: Kafka's bootstrap servers.
        kind: The computation, as in `bench.jobs.subject`.
        source: Input topic.
        output: Output topic.
        folder: Where the job stores its state.
    """
    arguments = {"bootstrap": bootstrap, "kind": kind, "input": source, "output": output, "folder": str(folder)}
    if peer == "flink":
        arguments["connector"] = str(_connector())
    options = [text for name, value in arguments.items() for text in (f"--{name}", value)] + ["--tuned"] * tuned
    return [str(_python(peer)), str(_JOBS / f"{peer}.py"), *options]


def _home() -> Path:
    home = Settings().cache / "peers"
    home.mkdir(parents=True, exist_ok=True)
    return home


def _python(peer: Peer) -> Path:
    environment = _home() / _PACKAGES[peer]
    complete = environment / ".complete"
    python = environment / "bin" / "python"
    with exclusive(_home() / f".{peer}.lock"):
        if not complete.exists():
            log_progress(f"installing {_PACKAGES[peer]} into {environment}")
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(environment)], check=True)
            pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            # The build of one of Flink's dependencies needs pkg_resources, which newer versions of setuptools lack.
            subprocess.run([*pip, "setuptools<81", "wheel"], check=True, stdout=sys.stderr)
            subprocess.run([*pip, "--no-build-isolation", _PACKAGES[peer]], check=True, stdout=sys.stderr)
            complete.touch()
    return python


def _connector() -> Path:
    """Flink's Kafka connector."""
    organisation, name, revision = _CONNECTOR
    jar = _home() / f"{name}-{revision}.jar"
    with exclusive(_home() / ".connector.lock"):
        if not jar.exists():
            with tempfile.TemporaryDirectory(dir=_home()) as scratch:
                (Path(scratch) / "ivy.xml").write_text(
                    f"""<ivy-module version="2.0"><info organisation="clonos" module="peers"/>
                    <configurations><conf name="default"/></configurations><dependencies>
                    <dependency org="{organisation}" name="{name}" rev="{revision}" conf="default->master"
                     transitive="false"/></dependencies></ivy-module>"""
                )
                pattern = f"{scratch}/[artifact]-[revision].[ext]"
                ivy = ivy_command(Settings(), Path(scratch), configurations=["default"])
                subprocess.run([*ivy, "-retrieve", pattern], check=True, stdout=sys.stderr)
                (Path(scratch) / jar.name).rename(jar)
    return jar
