"""Sessions of browsers: tokens of some hours that belong to an API token.

Revision 0003.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the column."""
    op.add_column("tokens", sa.Column("session_of", sa.String(16), nullable=True))
    op.create_index("ix_tokens_session_of", "tokens", ["session_of"])


def downgrade() -> None:
    """Remove the sessions and the column."""
    op.execute("DELETE FROM tokens WHERE session_of IS NOT NULL")
    op.drop_index("ix_tokens_session_of", "tokens")
    op.drop_column("tokens", "session_of")
