"""How an agent has a spare (`clonos.standby.spare`) run a job: one line in a named pipe."""

from __future__ import annotations

import contextlib
import os
import select
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict

from clonos.spec import Spec
from clonos.standby.pipes import opened

# In a spare's folder.
PIPE: Final = "given"
LOG: Final = "driver.log"


class Given(BaseModel):
    """What a spare is to do.

    Attributes:
        arguments: Of ``clonos``.
        environment: The driver's; what it does not name stays as it is.
        directory: Where it works from now on.
        log: Where its output goes, and what its JVM writes.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    arguments: tuple[str, ...]
    environment: dict[str, str]
    directory: Path
    log: Path


def fits(spec: Spec) -> bool:
    """Whether a job is to have a spare, and can, as far as its specification says: its code may say more."""
    return spec.standby.mode == "pool" and spec.any_jvm


@dataclass(frozen=True)
class Offer:
    """A spare that listens; its agent holds the other end of the pipe.

    Attributes:
        fd: Of the pipe.
    """

    fd: int

    @classmethod
    def of(cls, folder: Path) -> Offer | None:
        """The spare in this folder; None: it does not listen yet, or any more."""
        fd = opened(folder / PIPE)
        return None if fd is None else cls(fd)

    def give(self, given: Given) -> bool:
        """Have it run this; whether it heard. Only once."""
        line = given.model_dump_json().encode() + b"\n"
        try:
            # Less than a pipe takes in one piece.
            return len(line) <= select.PIPE_BUF and os.write(self.fd, line) == len(line)
        except OSError:
            return False
        finally:
            self.drop()

    def drop(self) -> None:
        """Give it nothing."""
        with contextlib.suppress(OSError):
            os.close(self.fd)
