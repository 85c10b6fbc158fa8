"""The API tokens of the local platform: the administrator's, which the user works with, and one for each agent."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from clonos.client import Client
from clonos.errors import LocalPlatformFailed
from clonos.private_folders import write_private
from clonos.resources.service import Role, TokenCreate


def read_token(file: Path) -> str:
    """Read the token in a file."""
    try:
        return file.read_text().strip()
    except OSError as error:
        raise LocalPlatformFailed(
            f"The token of this machine's control plane cannot be read: {error}.",
            hint="remove control-plane.db in CLONOS_HOME to start with an empty control plane and a new token; "
            "checkpoints and output of jobs stay; the jobs continue with `clonos submit PATH --adopt`.",
        ) from error


def agent_token(client: Client, name: str, file: Path) -> None:
    """Ensure that `file` holds a valid token for the agent `name`; `client` is an administrator's."""
    _token(client, TokenCreate(name=name, role=Role.AGENT, subject=name, host=name, expires_in_s=None), file)


def viewer_token(client: Client, name: str, file: Path) -> None:
    """Ensure that `file` holds a valid read-only token for the subject `name`; `client` is an administrator's."""
    _token(client, TokenCreate(name=name, role=Role.VIEWER, subject=name, expires_in_s=None), file)


def _token(client: Client, request: TokenCreate, file: Path) -> None:
    now = datetime.now(UTC)
    valid = {
        token.id
        for token in client.tokens.list().data
        if (token.role, token.host, token.subject) == (request.role, request.host, request.subject)
        and token.revoked_at is None
        and (token.expires_at is None or token.expires_at > now)
    }
    if not file.is_file() or _id(file.read_text()) not in valid:
        write_private(file, client.tokens.create(request).token)


def _id(token: str) -> str:
    parts = token.strip().split("_")
    return parts[1] if len(parts) == 3 else ""
