"""What hosts have and what drivers cost there, as agents measure it.

Revision 0013.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0013"
down_revision = "0012"

_JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    """Add the column of the newest measurement."""
    op.add_column("hosts", sa.Column("capacity", _JSON, nullable=True))


def downgrade() -> None:
    """Remove the measurements."""
    op.drop_column("hosts", "capacity")
