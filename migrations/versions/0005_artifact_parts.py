"""Large artifacts are stored in parts, so that no transaction is long.

Revision 0005.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the table of parts, and the column that refers to them."""
    op.create_table(
        "artifact_parts",
        sa.Column("upload", sa.String(32), primary_key=True),
        sa.Column("number", sa.Integer(), primary_key=True),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("stored_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.add_column("artifacts", sa.Column("upload", sa.String(32), nullable=True))
    op.create_index("ix_artifacts_created_by", "artifacts", ["created_by"])


def downgrade() -> None:
    """Remove the parts. Artifacts that are stored in parts are lost, so jobs must not use them."""
    op.execute("DELETE FROM artifacts WHERE upload IS NOT NULL")
    op.drop_index("ix_artifacts_created_by", "artifacts")
    op.drop_column("artifacts", "upload")
    op.drop_table("artifact_parts")
