"""Older events contain the id of an agent's process, with which another process could replace it.

Revision 0006.
"""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Remove the ids."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute("UPDATE events SET data = data - 'instance' WHERE type = 'host.registered'")
    else:
        op.execute("UPDATE events SET data = json_remove(data, '$.instance') WHERE type = 'host.registered'")


def downgrade() -> None:
    """Nothing to do: older versions of the service do not read the ids."""
