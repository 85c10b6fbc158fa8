"""The ahead-of-time caches of JVMs: which of them a training run removes."""

from __future__ import annotations

import os
from pathlib import Path

from clonos.embedded import aot


def cache(folder: Path, name: str, used_at: int) -> Path:
    """A cache whose last use was at `used_at`, in seconds since 1970."""
    file = folder / f"{name}.aot"
    file.write_bytes(b"cache")
    os.utime(file, (used_at, used_at))
    return file


def train(file: Path) -> None:
    with aot.training_flags(file) as flags:
        Path(flags[0].removeprefix("-XX:AOTCacheOutput=")).write_bytes(b"new")


def test_a_training_run_removes_the_caches_that_were_used_least_recently(tmp_path: Path) -> None:
    older = [cache(tmp_path, f"spark-{number}", used_at=number) for number in range(aot.KEPT + 1)]
    of_another_program = cache(tmp_path, "broker-0", used_at=0)
    newest = tmp_path / "spark-new.aot"
    train(newest)
    assert set(tmp_path.iterdir()) == {newest, of_another_program, *older[2:]}
    assert newest.read_bytes() == b"new"


def test_a_cache_that_is_used_stays(tmp_path: Path) -> None:
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.touch()
    (tmp_path / "jdk" / "release").write_text('JAVA_VERSION="25.0.1"\n')
    caches = tmp_path / "aot"
    caches.mkdir()
    older = [cache(caches, f"spark-{number}", used_at=number) for number in range(aot.KEPT)]
    assert aot.use_flags(java, older[0])[0] == f"-XX:AOTCache={older[0]}"
    train(caches / "spark-new.aot")
    assert older[0].exists()
    assert not older[1].exists()


def test_a_training_run_without_a_cache_removes_nothing(tmp_path: Path) -> None:
    older = [cache(tmp_path, f"spark-{number}", used_at=number) for number in range(aot.KEPT + 1)]
    with aot.training_flags(tmp_path / "spark-new.aot"):
        pass
    assert set(tmp_path.iterdir()) == set(older)
