"""Tokens that were rotated have the token that replaced them.

Revision 0011.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Add the column."""
    op.add_column("tokens", sa.Column("replaced_by", sa.String(16), nullable=True))


def downgrade() -> None:
    """Remove the column."""
    op.drop_column("tokens", "replaced_by")
