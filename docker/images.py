"""Builds or pulls the images of docker/compose.yaml, and prints their names as lines for ``--env-file``.

``python docker/images.py``. An image is rebuilt only if its files have changed. Wheels and jars are downloaded here,
with this machine's own settings (proxies, mirrors, authorities), and not in the build.
"""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

from clonos.embedded.jars import ensure_jars, exclusive
from clonos.errors import EnvironmentFault
from clonos.settings import Settings

HERE = Path(__file__).parent
ROOT = HERE.parent
PREPARED = ROOT / "build" / "image"
LOCK = HERE / "requirements.lock"
TARGETS = ("control-plane", "agent")
COMPOSE = HERE / "compose.yaml"
_SOURCES = ("platform", "connectors", "sinks", "api", "examples", "migrations")
_FILES = (
    *("pyproject.toml", ".dockerignore", "docker/Dockerfile", "docker/requirements.lock"),
    *("docker/healthy-control-plane", "docker/healthy-agent"),
)
# An unreachable registry may hang.
_PULL_S = 600
# Python version of the image.
_PYTHON = (3, 11)
_PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


class ImageUnavailable(EnvironmentFault):
    """An image can be neither pulled nor built."""

    slug = "image-unavailable"


def images() -> dict[str, str]:
    """The image variables of docker/compose.yaml.

    Raises:
        ImageUnavailable: An image can be neither pulled nor built; the message has the engine's output.
        JarsUnavailable: A jar cannot be downloaded.
    """
    _run([str(HERE / "base-image")])
    return {
        "CLONOS_KAFKA_IMAGE": _run([sys.executable, str(HERE / "kafka" / "build.py")]),
        **dict(zip(map(_variable, TARGETS), clonos_images(), strict=True)),
        **{_variable(name): published_or_built(name) for name in ("postgres", "prometheus")},
    }


def clonos_images() -> list[str]:
    """Build the images of the control plane and the agent."""
    tag = f"{version('clonos')}-{_pin()}"
    images = [f"clonos/{target}:{tag}" for target in TARGETS]
    if not all(map(_exists, images)):
        prepare()
        for target, image in zip(TARGETS, images, strict=True):
            latest = f"clonos/{target}:latest"
            _say(f"Building {image}")
            _build(ROOT, "--file", str(HERE / "Dockerfile"), "--target", target, "--tag", image, "--tag", latest)
    return images


def prepare() -> None:
    """Fill build/image with jars and wheels, so that the build need not download them.

    Wheels are added only if this machine has the Python version and C library of the image.
    """
    shutil.rmtree(PREPARED, ignore_errors=True)
    _linked(ensure_jars(Settings()).connector.parent, PREPARED / "jars", leave_out="aot")
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc" or sys.version_info[:2] != _PYTHON:
        return
    _linked(_wheels(), PREPARED / "wheels", below="")
    _run([*_PIP, "wheel", "--no-deps", "--wheel-dir", str(PREPARED / "dist"), str(ROOT)])


def _wheels() -> Path:
    """A directory with all dependencies, verified against the lock; downloaded once."""
    folder = Settings().cache / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]
    with exclusive(folder / ".lock"):
        if not target.exists():
            _say("Downloading wheels (once)")
            draft = target.with_name(f".{target.name}")
            options = ["--no-deps", "--require-hashes", "--requirement", str(LOCK), "--wheel-dir", str(draft)]
            _run([*_PIP, "wheel", *options])
            draft.rename(target)
    return target


def published_or_built(name: str) -> str:
    """The published image of a service in compose.yaml, or one built from Debian packages if it cannot be pulled."""
    match = re.search(rf"\$\{{{_variable(name)}:-([^}}]+)\}}", COMPOSE.read_text())
    assert match is not None
    published, folder = match[1], HERE / "stand-ins" / name
    local = f"clonos/stand-in-{name}:{_digest(sorted(folder.iterdir()))}"
    if _exists(published):
        return published
    if _exists(local):
        return local
    try:
        _run(["docker", "pull", "--quiet", published], timeout_s=_PULL_S)
    except ImageUnavailable as error:
        _say(f"Building {local}, because {published} cannot be pulled: {error.what.splitlines()[-1]}")
        _build(folder, "--tag", local)
        return local
    return published


def _variable(name: str) -> str:
    return f"CLONOS_{name.upper().replace('-', '_')}_IMAGE"


def _exists(image: str) -> bool:
    try:
        _run(["docker", "image", "inspect", image])
    except ImageUnavailable:
        return False
    return True


def _build(context: Path, *options: str) -> None:
    _run(["docker", "build", "--label", "clonos.image=compose", *options, str(context)])


def _run(command: Sequence[str], timeout_s: float | None = None) -> str:
    """Run a command and return its output.

    Raises:
        ImageUnavailable: The command failed.
    """
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, cwd=ROOT)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ImageUnavailable(f"{' '.join(command[:3])} does not run: {error}.") from error
    if process.returncode:
        raise ImageUnavailable(
            f"{' '.join(command[:3])} failed:\n{process.stdout[-2000:]}\n{process.stderr.strip()[-2000:]}"
        )
    return process.stdout.strip()


def _pin() -> str:
    """A digest of all files in the images except the base image."""
    return _digest([ROOT / name for name in _FILES] + [file for name in _SOURCES for file in _files(ROOT / name)])


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)


def _digest(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]


def _linked(source: Path, target: Path, *, below: str | None = None, leave_out: str = "") -> None:
    """Copy a directory below another one, with hard links if possible."""
    target = target / source.name if below is None else target
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(leave_out), copy_function=_link)


def _link(source: str, target: str) -> None:
    try:
        Path(target).hardlink_to(source)
    except OSError:
        shutil.copy2(source, target)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        for variable, image in images().items():
            print(f"{variable}={image}")
    except EnvironmentFault as failure:
        sys.exit(str(failure))
