"""Indexes for the queries of each round of the reconciler, which history must not slow down.

Revision 0014.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Add the indexes of standbys, and of runs that have not ended."""
    op.create_index("ix_standbys_job", "standbys", ["job", "since"])
    op.create_index("ix_standbys_state", "standbys", ["state", "since"])
    open_runs = sa.text("ended_at IS NULL")
    op.create_index("ix_runs_open", "runs", ["host"], sqlite_where=open_runs, postgresql_where=open_runs)


def downgrade() -> None:
    """Remove the indexes."""
    op.drop_index("ix_runs_open", "runs")
    op.drop_index("ix_standbys_state", "standbys")
    op.drop_index("ix_standbys_job", "standbys")
