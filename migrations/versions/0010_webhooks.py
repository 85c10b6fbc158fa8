"""Alerts that have not ended, and messages to webhooks that are not delivered.

Revision 0010.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0010"
down_revision = "0009"

_JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
_SEQUENCE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the tables of alerts and deliveries."""
    op.create_table(
        "alerts",
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("body", _JSON, nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_alerts"),
    )
    op.create_table(
        "deliveries",
        sa.Column("seq", _SEQUENCE, autoincrement=True, nullable=False),
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("webhook", sa.String(64), nullable=False),
        sa.Column("body", _JSON, nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_deliveries"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_deliveries_webhook_seq", "deliveries", ["webhook", "seq"])


def downgrade() -> None:
    """Remove the tables. Messages that are not delivered are lost."""
    op.drop_table("deliveries")
    op.drop_table("alerts")
