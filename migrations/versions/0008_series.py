"""Figures of jobs over time.

Revision 0008.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0008"
down_revision = "0007"

_JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    """Add the table of rolled-up figures."""
    op.create_table(
        "series",
        sa.Column("job", sa.String(36), nullable=False),
        sa.Column("query", sa.String(100), nullable=False),
        sa.Column("width_s", sa.Integer(), nullable=False),
        sa.Column("start", sa.DateTime(timezone=True), nullable=False),
        sa.Column("body", _JSON, nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name="fk_series_job", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job", "query", "width_s", "start", name="pk_series"),
    )
    op.create_index("ix_series_width_s_start", "series", ["width_s", "start"])


def downgrade() -> None:
    """Remove the figures."""
    op.drop_table("series")
