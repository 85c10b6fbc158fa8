"""Numbers of owners, for the users of their drivers; work revisions are times in milliseconds.

Revision 0004.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Assign a number to each subject that owns jobs."""
    op.create_table(
        "owners",
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("subject", sa.String(100), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_owners"),
        sa.UniqueConstraint("subject", name="uq_owners_subject"),
    )
    op.execute(
        "INSERT INTO owners (number, subject) "
        "SELECT row_number() OVER (ORDER BY min(created_at), created_by), created_by FROM jobs GROUP BY created_by"
    )
    for table in ("jobs", "tasks"):
        op.add_column(table, sa.Column("owner_number", sa.Integer(), nullable=False, server_default="0"))
    op.execute("UPDATE jobs SET owner_number = (SELECT number FROM owners WHERE subject = created_by)")
    if op.get_bind().dialect.name == "postgresql":  # integers of SQLite have 64 bits
        op.alter_column("hosts", "revision", type_=sa.BigInteger())


def downgrade() -> None:
    """Remove the numbers of owners."""
    for table in ("tasks", "jobs"):
        op.drop_column(table, "owner_number")
    op.drop_table("owners")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("UPDATE hosts SET revision = revision % 1000000000")
        op.alter_column("hosts", "revision", type_=sa.Integer())
