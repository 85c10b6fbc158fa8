"""Sees to it that the engine has the images of docker/compose.yaml; prints their names as lines for ``--env-file``.

``python docker/images.py``. What exists of exactly these files is not built again. Wheels and jars are fetched here,
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
# A registry that does not answer may hang.
_PULL_S = 600
# That of the image.
_PYTHON = (3, 11)
_PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


class ImageUnavailable(EnvironmentFault):
    """An image can be neither found nor built."""

    slug = "image-unavailable"


def images() -> dict[str, str]:
    """The variables of docker/compose.yaml that name images.

    Raises:
        ImageUnavailable: Saying what the engine said.
        JarsUnavailable: Jars cannot be fetched.
    """
    _run([str(HERE / "base-image")])
    return {
        "CLONOS_KAFKA_IMAGE": _run([sys.executable, str(HERE / "kafka" / "build.py")]),
        **dict(zip(map(_variable, TARGETS), clonos_images(), strict=True)),
        **{_variable(name): published_or_made(name) for name in ("postgres", "prometheus")},
    }


def clonos_images() -> list[str]:
    """Those of the control plane and the agent."""
    tag = f"{version('clonos')}-{_pin()}"
    made = [f"clonos/{target}:{tag}" for target in TARGETS]
    if not all(map(_exists, made)):
        prepare()
        for target, image in zip(TARGETS, made, strict=True):
            latest = f"clonos/{target}:latest"
            _say(f"Building {image}")
            _build(ROOT, "--file", str(HERE / "Dockerfile"), "--target", target, "--tag", image, "--tag", latest)
    return made


def prepare() -> None:
    """Fill build/image with what the build would fetch otherwise, where this machine's files fit into the image."""
    shutil.rmtree(PREPARED, ignore_errors=True)
    _linked(ensure_jars(Settings()).connector.parent, PREPARED / "jars", leave_out="aot")
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc" or sys.version_info[:2] != _PYTHON:
        return
    _linked(_wheels(), PREPARED / "wheels", below="")
    _run([*_PIP, "wheel", "--no-deps", "--wheel-dir", str(PREPARED / "dist"), str(ROOT)])


def _wheels() -> Path:
    """A folder with all dependencies, each checked against the lock; fetched once."""
    folder = Settings().cache / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]
    with exclusive(folder / ".lock"):
        if not target.exists():
            _say("Fetching wheels (once)")
            draft = target.with_name(f".{target.name}")
            options = ["--no-deps", "--require-hashes", "--requirement", str(LOCK), "--wheel-dir", str(draft)]
            _run([*_PIP, "wheel", *options])
            draft.rename(target)
    return target


def published_or_made(name: str) -> str:
    """The image that compose.yaml names for a service, or one of Debian's packages where that cannot be pulled."""
    found = re.search(rf"\$\{{{_variable(name)}:-([^}}]+)\}}", COMPOSE.read_text())
    assert found is not None
    published, folder = found[1], HERE / "stand-ins" / name
    made = f"clonos/stand-in-{name}:{_digest(sorted(folder.iterdir()))}"
    if _exists(published):
        return published
    if _exists(made):
        return made
    try:
        _run(["docker", "pull", "--quiet", published], timeout_s=_PULL_S)
    except ImageUnavailable as error:
        _say(f"Building {made}, because {published} cannot be pulled: {error.what.splitlines()[-1]}")
        _build(folder, "--tag", made)
        return made
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
    """What a command printed.

    Raises:
        ImageUnavailable: It failed.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, cwd=ROOT)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ImageUnavailable(f"{' '.join(command[:3])} does not run: {error}.") from error
    if done.returncode:
        raise ImageUnavailable(f"{' '.join(command[:3])} failed:\n{done.stdout[-2000:]}\n{done.stderr.strip()[-2000:]}")
    return done.stdout.strip()


def _pin() -> str:
    """A digest of everything in the images but their base."""
    return _digest([ROOT / name for name in _FILES] + [file for name in _SOURCES for file in _files(ROOT / name)])


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)


def _digest(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]


def _linked(source: Path, target: Path, *, below: str | None = None, leave_out: str = "") -> None:
    """A copy of a folder below another, by hard links where that is possible."""
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
