"""A mailbox: a named pipe through which an agent sends one message to a driver that waits on the same host.

The receiver creates the pipe, in its own directory. A pipe is used instead of a socket because the path of a socket is
limited to 107 characters, and because opening a pipe shows the sender at once whether a process reads it.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
from dataclasses import dataclass
from pathlib import Path


class Mailbox:
    """The receiving end of a mailbox.

    Args:
        pipe: Path of the named pipe to create. A pipe that an earlier process left there is replaced.
    """

    def __init__(self, pipe: Path) -> None:
        self._pipe = pipe
        # Opened before it has its name: a sender that sees the pipe finds a receiver.
        unnamed = pipe.with_name(f"{pipe.name}.new")
        unnamed.unlink(missing_ok=True)
        os.mkfifo(unnamed, 0o600)
        # Also open for writing, so that the pipe does not reach its end when a sender closes it.
        self._fd = os.open(unnamed, os.O_RDWR | os.O_NONBLOCK)
        unnamed.replace(pipe)

    def receive(self, timeout_s: float) -> bytes:
        """Wait for a message for at most `timeout_s` seconds; empty if none arrived."""
        if not select.select([self._fd], [], [], timeout_s)[0]:
            return b""
        return os.read(self._fd, select.PIPE_BUF)

    def close(self) -> None:
        """Remove the pipe; later senders find no receiver."""
        self._pipe.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            os.close(self._fd)


@dataclass(frozen=True)
class Sender:
    """The sending end of a mailbox, for one message."""

    fd: int  # file descriptor of the pipe

    @classmethod
    def open(cls, pipe: Path) -> Sender | None:
        """Open the pipe of a process that waits for a message.

        Returns:
            None if no process reads it, or if it is not a pipe, such as a link of another user.
        """
        try:
            fd = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError:
            return None
        if stat.S_ISFIFO(os.fstat(fd).st_mode):
            return cls(fd)
        os.close(fd)
        return None

    def send(self, message: bytes) -> bool:
        """Send `message` and close the pipe.

        Returns:
            Whether the message was delivered. A message above the atomic size of a pipe is not sent.
        """
        try:
            return len(message) <= select.PIPE_BUF and os.write(self.fd, message) == len(message)
        except OSError:
            return False
        finally:
            self.close()

    def close(self) -> None:
        """Close the pipe; without `send`, the receiver keeps waiting."""
        with contextlib.suppress(OSError):
            os.close(self.fd)
