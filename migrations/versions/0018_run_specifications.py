"""The specification of a run has the name that it has everywhere else.

Revision 0018.
"""

from __future__ import annotations

from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    """Rename the column."""
    op.execute('ALTER TABLE runs RENAME COLUMN "order" TO spec')


def downgrade() -> None:
    """Restore the old name."""
    op.execute('ALTER TABLE runs RENAME COLUMN spec TO "order"')
