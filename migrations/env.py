"""How Alembic runs the migrations: in the transaction that `clonos_api.store.db.schema` hands over."""

from __future__ import annotations

from alembic import context

from clonos_api.store.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    transactional_ddl=True,
)
context.run_migrations()
