"""The agent's end of a named pipe that another process made and reads, in a folder that is perhaps not the agent's."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def opened(pipe: Path) -> int | None:
    """A descriptor to write to; None: nobody reads, or it is no pipe: others could have put a link there."""
    try:
        fd = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return None
    if stat.S_ISFIFO(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return None
