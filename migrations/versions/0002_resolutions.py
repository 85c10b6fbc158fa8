"""Decisions about epochs in doubt, for the next start of a job.

Revision 0002.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the column."""
    op.add_column("jobs", sa.Column("resolutions", JSON, nullable=True))


def downgrade() -> None:
    """Remove the column."""
    op.drop_column("jobs", "resolutions")
