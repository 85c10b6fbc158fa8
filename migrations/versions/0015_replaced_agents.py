"""When a replaced agent of a host still sent a request: two processes have its token.

Revision 0015.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Add the column of the newest such request."""
    op.add_column("hosts", sa.Column("rival_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    """Remove the column."""
    op.drop_column("hosts", "rival_at")
