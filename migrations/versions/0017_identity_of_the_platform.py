"""The identity of the control plane, and starts that take a job over from another platform.

Revision 0017.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    """Add the table, which gets its row with the first driver, and the column."""
    op.create_table(
        "platform",
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("identity", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_platform"),
    )
    op.add_column("jobs", sa.Column("adopt", sa.Boolean(), nullable=False, server_default=sa.false()))


def downgrade() -> None:
    """Remove both."""
    op.drop_column("jobs", "adopt")
    op.drop_table("platform")
