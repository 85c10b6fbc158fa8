"""Tokens that an agent made to replace its own are marked.

Revision 0016.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    """Add the column. Tokens of before count as made by persons: an agent revokes none of them."""
    op.add_column("tokens", sa.Column("renewed", sa.Boolean(), nullable=False, server_default=sa.false()))


def downgrade() -> None:
    """Remove the column."""
    op.drop_column("tokens", "renewed")
