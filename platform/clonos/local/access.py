"""Tokens of the local stack: the administrator's, which is the user's, and one for each agent."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from clonos.client import Client
from clonos.errors import LocalStackFailed
from clonos.resources.service import Role, TokenCreate


def read_token(file: Path) -> str:
    """The token in a file.

    Raises:
        LocalStackFailed: There is none.
    """
    try:
        return file.read_text().strip()
    except OSError as error:
        raise LocalStackFailed(
            f"The token of this machine's control plane cannot be read: {error}.",
            hint="without it nobody can steer what is there: remove control-plane.db in CLONOS_HOME to begin anew; "
            "jobs' checkpoints and output stay.",
        ) from error


def agent_token(client: Client, name: str, file: Path) -> None:
    """See that `file` holds a valid token for the agent `name`."""
    _token(client, TokenCreate(name=name, role=Role.AGENT, subject=name, agent=name, expires_in_s=None), file)


def viewer_token(client: Client, name: str, file: Path) -> None:
    """See that `file` holds a valid token for `name`, which only reads."""
    _token(client, TokenCreate(name=name, role=Role.VIEWER, subject=name, expires_in_s=None), file)


def _token(client: Client, wanted: TokenCreate, file: Path) -> None:
    now = datetime.now(UTC)
    valid = {
        one.id
        for one in client.tokens.list().data
        if (one.role, one.agent, one.subject) == (wanted.role, wanted.agent, wanted.subject)
        and one.revoked_at is None
        and (one.expires_at is None or one.expires_at > now)
    }
    if not file.is_file() or _id(file.read_text()) not in valid:
        write_private(file, client.tokens.create(wanted).token)


def _id(token: str) -> str:
    parts = token.strip().split("_")
    return parts[1] if len(parts) == 3 else ""


def write_private(file: Path, text: str) -> None:
    """Write a file that nobody else can read at any moment."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
        opened.write(text + "\n")
    draft.replace(file)
