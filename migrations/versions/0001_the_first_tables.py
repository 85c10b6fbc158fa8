"""The first tables.

Revision 0001, the first.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
TIME = sa.DateTime(timezone=True)
SEQUENCE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables of this revision."""
    op.create_table(
        "hosts",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("row_version", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("instance", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("drained", sa.Boolean(), nullable=False),
        sa.Column("failure_domain", sa.String(length=100), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("versions", JSON, nullable=False),
        sa.Column("labels", JSON, nullable=False),
        sa.Column("limits", JSON, nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("registered_at", TIME, nullable=False),
        sa.Column("heartbeat_at", TIME, nullable=False),
        sa.Column("heartbeat_interval_s", sa.Double(), nullable=False),
        sa.Column("pool_available", sa.Integer(), nullable=False),
        sa.Column("lease_until", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_hosts")),
        sa.UniqueConstraint("name", name=op.f("uq_hosts_name")),
    )
    op.create_table(
        "artifacts",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("size_bytes", sa.Integer(), nullable=False),
        sa.Column("files", sa.Integer(), nullable=False),
        sa.Column("main", sa.String(length=255), nullable=True),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("created_by", sa.String(length=100), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_artifacts")),
    )
    op.create_table(
        "audit",
        sa.Column("seq", SEQUENCE, autoincrement=True, nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("subject", sa.String(length=100), nullable=False),
        sa.Column("token", sa.String(length=16), nullable=True),
        sa.Column("action", sa.String(length=100), nullable=False),
        sa.Column("target", sa.String(length=255), nullable=True),
        sa.Column("outcome", sa.String(length=8), nullable=False),
        sa.Column("detail", JSON, nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_audit")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "events",
        sa.Column("seq", SEQUENCE, autoincrement=True, nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("type", sa.String(length=64), nullable=False),
        sa.Column("job", sa.String(length=36), nullable=True),
        sa.Column("host", sa.String(length=36), nullable=True),
        sa.Column("data", JSON, nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_events")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_job_seq", "events", ["job", "seq"], unique=False)
    op.create_table(
        "idempotency",
        sa.Column("subject", sa.String(length=100), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("request", sa.String(length=64), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("headers", JSON, nullable=False),
        sa.Column("body", sa.Text(), nullable=True),
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("subject", "key", name=op.f("pk_idempotency")),
    )
    op.create_table(
        "job_names",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("subject", sa.String(length=100), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_job_names")),
    )
    op.create_table(
        "leases",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("holder", sa.String(length=64), nullable=False),
        sa.Column("fencing_token", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leases")),
    )
    op.create_table(
        "operations",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("row_version", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("job", sa.String(length=36), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("arguments", JSON, nullable=False),
        sa.Column("result", JSON, nullable=False),
        sa.Column("failure", JSON, nullable=True),
        sa.Column("created_by", sa.String(length=100), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("deadline", TIME, nullable=False),
        sa.Column("ended_at", TIME, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_operations")),
    )
    op.create_index("ix_operations_created_at", "operations", ["created_at", "id"], unique=False)
    op.create_index("ix_operations_job_created_at", "operations", ["job", "created_at"], unique=False)
    op.create_index("ix_operations_state_deadline", "operations", ["state", "deadline"], unique=False)
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("digest", sa.LargeBinary(length=32), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("subject", sa.String(length=100), nullable=False),
        sa.Column("host", sa.String(length=100), nullable=True),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("expires_at", TIME, nullable=True),
        sa.Column("revoked_at", TIME, nullable=True),
        sa.Column("last_used_at", TIME, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("row_version", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("labels", JSON, nullable=False),
        sa.Column("spec", JSON, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("observed_version", sa.Integer(), nullable=False),
        sa.Column("artifact", sa.String(length=64), nullable=False),
        sa.Column("desired_state", sa.String(length=16), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("state_since", TIME, nullable=False),
        sa.Column("state_deadline", TIME, nullable=True),
        sa.Column("stop", JSON, nullable=True),
        sa.Column("start_from", JSON, nullable=True),
        sa.Column("restart_nonce", sa.Integer(), nullable=False),
        sa.Column("observed_nonce", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("run", sa.String(length=36), nullable=True),
        sa.Column("home", sa.String(length=36), nullable=True),
        sa.Column("restarts", sa.Integer(), nullable=False),
        sa.Column("moving", JSON, nullable=True),
        sa.Column("failure", JSON, nullable=True),
        sa.Column("metrics", JSON, nullable=True),
        sa.Column("created_by", sa.String(length=100), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("updated_at", TIME, nullable=False),
        sa.Column("deleted_at", TIME, nullable=True),
        sa.ForeignKeyConstraint(["artifact"], ["artifacts.id"], name=op.f("fk_jobs_artifact")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    op.create_index("ix_jobs_created_at", "jobs", ["created_at", "id"], unique=False)
    op.create_index("ix_jobs_state_deadline", "jobs", ["state", "state_deadline"], unique=False)
    op.create_index(
        "uq_jobs_name_live",
        "jobs",
        ["name"],
        unique=True,
        sqlite_where=sa.text("deleted_at IS NULL"),
        postgresql_where=sa.text("deleted_at IS NULL"),
    )
    op.create_table(
        "tasks",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("host", sa.String(length=36), nullable=False),
        sa.Column("operation", sa.String(length=36), nullable=True),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("arguments", JSON, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("ended_at", TIME, nullable=True),
        sa.ForeignKeyConstraint(["host"], ["hosts.id"], name=op.f("fk_tasks_host")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tasks")),
    )
    op.create_index("ix_tasks_host_ended_at", "tasks", ["host", "ended_at"], unique=False)
    op.create_index("ix_tasks_operation", "tasks", ["operation"], unique=False)
    op.create_table(
        "counters",
        sa.Column("job", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_counters_job"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job", "name", name=op.f("pk_counters")),
    )
    op.create_table(
        "epochs",
        sa.Column("job", sa.String(length=36), nullable=False),
        sa.Column("lineage", sa.Integer(), nullable=False),
        sa.Column("query", sa.String(length=100), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("completed_at", TIME, nullable=False),
        sa.Column("body", JSON, nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_epochs_job"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job", "lineage", "query", "epoch", name=op.f("pk_epochs")),
    )
    op.create_index("ix_epochs_job_completed_at", "epochs", ["job", "completed_at"], unique=False)
    op.create_table(
        "exceptions",
        sa.Column("seq", SEQUENCE, autoincrement=True, nullable=False),
        sa.Column("job", sa.String(length=36), nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("failure", JSON, nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_exceptions_job"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_exceptions")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_exceptions_job_seq", "exceptions", ["job", "seq"], unique=False)
    op.create_table(
        "generations",
        sa.Column("job", sa.String(length=36), nullable=False),
        sa.Column("lineage", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("claim_id", sa.String(length=64), nullable=False),
        sa.Column("run", sa.String(length=36), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("cause", sa.String(length=32), nullable=False),
        sa.Column("claimed_at", TIME, nullable=False),
        sa.Column("ended_at", TIME, nullable=True),
        sa.Column("epochs", sa.BigInteger(), nullable=False),
        sa.Column("records", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_generations_job"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job", "lineage", "generation", name=op.f("pk_generations")),
    )
    op.create_table(
        "job_versions",
        sa.Column("job", sa.String(length=36), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("spec", JSON, nullable=False),
        sa.Column("artifact", sa.String(length=64), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("created_by", sa.String(length=100), nullable=False),
        sa.ForeignKeyConstraint(["artifact"], ["artifacts.id"], name=op.f("fk_job_versions_artifact")),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_job_versions_job"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job", "version", name=op.f("pk_job_versions")),
    )
    op.create_table(
        "log_chunks",
        sa.Column("seq", SEQUENCE, autoincrement=True, nullable=False),
        sa.Column("job", sa.String(length=36), nullable=False),
        sa.Column("run", sa.String(length=36), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_log_chunks_job"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_log_chunks")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_log_chunks_job_seq", "log_chunks", ["job", "seq"], unique=False)
    op.create_table(
        "recoveries",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("job", sa.String(length=36), nullable=False),
        sa.Column("started_at", TIME, nullable=False),
        sa.Column("ended_at", TIME, nullable=True),
        sa.Column("body", JSON, nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_recoveries_job"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_recoveries")),
    )
    op.create_index("ix_recoveries_job", "recoveries", ["job", "started_at"], unique=False)
    op.create_index(
        "ix_recoveries_open",
        "recoveries",
        ["job"],
        unique=False,
        sqlite_where=sa.text("ended_at IS NULL"),
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.create_table(
        "runs",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("row_version", sa.Integer(), nullable=False),
        sa.Column("job", sa.String(length=36), nullable=False),
        sa.Column("host", sa.String(length=36), nullable=False),
        sa.Column("order", JSON, nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("consecutive_failures", sa.Integer(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("failure", JSON, nullable=True),
        sa.Column("driver_state", sa.String(length=16), nullable=True),
        sa.Column("checkpoint_bytes", JSON, nullable=True),
        sa.Column("ingest_state", JSON, nullable=False),
        sa.Column("events_offset", sa.BigInteger(), nullable=False),
        sa.Column("log_offset", sa.BigInteger(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("started_at", TIME, nullable=True),
        sa.Column("ended_at", TIME, nullable=True),
        sa.ForeignKeyConstraint(["host"], ["hosts.id"], name=op.f("fk_runs_host")),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_runs_job"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
    )
    op.create_index("ix_runs_host_ended_at", "runs", ["host", "ended_at"], unique=False)
    op.create_index("ix_runs_job", "runs", ["job", "created_at"], unique=False)
    op.create_table(
        "savepoints",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("row_version", sa.Integer(), nullable=False),
        sa.Column("job", sa.String(length=36), nullable=False),
        sa.Column("job_name", sa.String(length=100), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("location", sa.Text(), nullable=False),
        sa.Column("epochs", JSON, nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=True),
        sa.Column("failure", JSON, nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("artifact", sa.String(length=64), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("completed_at", TIME, nullable=True),
        sa.ForeignKeyConstraint(["artifact"], ["artifacts.id"], name=op.f("fk_savepoints_artifact")),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_savepoints_job")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_savepoints")),
        sa.UniqueConstraint("job", "name", name=op.f("uq_savepoints_job_name")),
    )
    op.create_table(
        "standbys",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("row_version", sa.Integer(), nullable=False),
        sa.Column("job", sa.String(length=36), nullable=True),
        sa.Column("host", sa.String(length=36), nullable=False),
        sa.Column("mode", sa.String(length=16), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("since", TIME, nullable=False),
        sa.Column("body", JSON, nullable=False),
        sa.ForeignKeyConstraint(["host"], ["hosts.id"], name=op.f("fk_standbys_host")),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_standbys_job"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_standbys")),
    )


def downgrade() -> None:
    """Take it back."""
    op.drop_table("standbys")
    op.drop_table("savepoints")
    op.drop_index("ix_runs_job", table_name="runs")
    op.drop_index("ix_runs_host_ended_at", table_name="runs")
    op.drop_table("runs")
    op.drop_index(
        "ix_recoveries_open",
        table_name="recoveries",
        sqlite_where=sa.text("ended_at IS NULL"),
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.drop_index("ix_recoveries_job", table_name="recoveries")
    op.drop_table("recoveries")
    op.drop_index("ix_log_chunks_job_seq", table_name="log_chunks")
    op.drop_table("log_chunks")
    op.drop_table("job_versions")
    op.drop_table("generations")
    op.drop_index("ix_exceptions_job_seq", table_name="exceptions")
    op.drop_table("exceptions")
    op.drop_index("ix_epochs_job_completed_at", table_name="epochs")
    op.drop_table("epochs")
    op.drop_table("counters")
    op.drop_index("ix_tasks_operation", table_name="tasks")
    op.drop_index("ix_tasks_host_ended_at", table_name="tasks")
    op.drop_table("tasks")
    op.drop_index(
        "uq_jobs_name_live",
        table_name="jobs",
        sqlite_where=sa.text("deleted_at IS NULL"),
        postgresql_where=sa.text("deleted_at IS NULL"),
    )
    op.drop_index("ix_jobs_state_deadline", table_name="jobs")
    op.drop_index("ix_jobs_created_at", table_name="jobs")
    op.drop_table("jobs")
    op.drop_table("tokens")
    op.drop_index("ix_operations_state_deadline", table_name="operations")
    op.drop_index("ix_operations_job_created_at", table_name="operations")
    op.drop_index("ix_operations_created_at", table_name="operations")
    op.drop_table("operations")
    op.drop_table("leases")
    op.drop_table("job_names")
    op.drop_table("idempotency")
    op.drop_index("ix_events_job_seq", table_name="events")
    op.drop_table("events")
    op.drop_table("audit")
    op.drop_table("artifacts")
    op.drop_table("hosts")
