"""The promotion of a standby: its agent sends one message to the standby's mailbox."""

from __future__ import annotations

from pathlib import Path

from clonos.standby.mailbox import Mailbox, Sender

PROMOTE = b"promote\n"
# Precedes `PROMOTE`: the standby also replays epochs that another version of the job left in doubt.
ACCEPT_NEW_CODE = b"accept-new-code\n"


def promote(pipe: Path, *, accept_new_code: bool = False) -> bool:
    """Send the request to take over to the standby that reads `pipe`.

    Args:
        pipe: Named pipe of the standby's `PromotionMailbox`.
        accept_new_code: Replay epochs that another version of the job left in doubt.

    Returns:
        Whether a standby received the request.
    """
    sender = Sender.open(pipe)
    return sender is not None and sender.send((ACCEPT_NEW_CODE if accept_new_code else b"") + PROMOTE)


class PromotionMailbox:
    """The mailbox in which a standby receives its promotion; `pipe` is the path of the named pipe to create."""

    def __init__(self, pipe: Path) -> None:
        self._mailbox = Mailbox(pipe)
        self._promoted = False
        # Whether to replay epochs that another version of the job left in doubt; valid once promoted.
        self.accept_new_code = False

    def promoted(self, timeout_s: float) -> bool:
        """Wait for a promotion, for at most `timeout_s` seconds; returns whether one has arrived."""
        if not self._promoted:
            message = self._mailbox.receive(timeout_s)
            self._promoted, self.accept_new_code = PROMOTE in message, ACCEPT_NEW_CODE in message
        return self._promoted

    def close(self) -> None:
        """Close the mailbox: later promotions are refused."""
        self._mailbox.close()
