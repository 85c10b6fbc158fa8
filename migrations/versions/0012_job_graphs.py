"""The graphs of jobs, as their drivers report them.

Revision 0012.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0012"
down_revision = "0011"

_JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    """Add the table of graphs."""
    op.create_table(
        "job_graphs",
        sa.Column("job", sa.String(36), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("reported_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("body", _JSON, nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name="fk_job_graphs_job", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job", name="pk_job_graphs"),
    )


def downgrade() -> None:
    """Remove the graphs."""
    op.drop_table("job_graphs")
