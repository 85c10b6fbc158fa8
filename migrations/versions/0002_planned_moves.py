"""Standbys and planned moves.

Revision 0002, after 0001: a job has one move under way, or none; hosts say how often they are heard of,
and how many spares they have; drivers that end too early are counted from run to run.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add what is new."""
    op.add_column("jobs", sa.Column("moving", JSON, nullable=True))
    op.add_column("agents", sa.Column("beat_s", sa.Double(), nullable=False, server_default="1.0"))
    op.add_column("agents", sa.Column("spares", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("runs", sa.Column("in_row", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    """Take it back."""
    op.drop_column("runs", "in_row")
    op.drop_column("agents", "spares")
    op.drop_column("agents", "beat_s")
    op.drop_column("jobs", "moving")
