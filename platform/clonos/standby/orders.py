"""How a standby is told to take over: one line in a named pipe.

A pipe and not a socket, whose paths are short; and whoever writes knows at once whether somebody listens.
"""

from __future__ import annotations

import contextlib
import os
import select
from pathlib import Path

from clonos.standby.pipes import opened

PROMOTE = b"promote\n"
# And replay what another version of the job left in doubt.
ACCEPTING = b"accepting new code\n"


def promote(pipe: Path, *, accept_new_code: bool = False) -> bool:
    """Tell the standby that listens at `pipe` to take over; whether there is one."""
    told = opened(pipe)
    if told is None:
        return False
    try:
        os.write(told, (ACCEPTING if accept_new_code else b"") + PROMOTE)
    except OSError:
        return False
    finally:
        os.close(told)
    return True


class Orders:
    """The standby's end.

    Args:
        pipe: Where; made anew.

    Attributes:
        accept_new_code: Replay what another version of the job left in doubt; known once it is promoted.
    """

    def __init__(self, pipe: Path) -> None:
        self._pipe = pipe
        pipe.unlink(missing_ok=True)
        os.mkfifo(pipe, 0o600)
        # For writing too, so that it does not end whenever a writer closes it.
        self._fd = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
        self._promoted = False
        self.accept_new_code = False

    def promoted(self, timeout_s: float) -> bool:
        """Whether it is to take over; waits for so long."""
        if not self._promoted and select.select([self._fd], [], [], timeout_s)[0]:
            told = os.read(self._fd, 4096)
            self._promoted, self.accept_new_code = PROMOTE in told, ACCEPTING in told
        return self._promoted

    def close(self) -> None:
        """Listen no more."""
        with contextlib.suppress(OSError):
            os.close(self._fd)
        self._pipe.unlink(missing_ok=True)
