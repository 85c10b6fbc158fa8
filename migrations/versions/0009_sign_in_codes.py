"""Codes with which a browser signs in once (`clonos open`).

Revision 0009.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "sign_in_codes",
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("token", sa.String(16), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_sign_in_codes"),
    )


def downgrade() -> None:
    """Remove the table."""
    op.drop_table("sign_in_codes")
