"""The database below the store: connections, transactions, clock, paging and migrations.

- `database`: `Database` with `transaction()` (writes) and `reading()` (reads only); every wait has a timeout.
- `sqlite`: connections of SQLite.
- `disk`: writes commits of SQLite to the disk.
- `numbers`: the numbers that SQLite gives out to rows.
- `commit_hooks`: functions that run right before a commit, such as the check of the leader's fencing token; and what a
  commit waits for.
- `notifier`: wakes readers of events and agents that long-poll, after a commit.
- `clock`: the database's time, the only one that leases and deadlines are compared with.
- `rows`, `swap`, `bulk`, `paging`: inserts, optimistic locking, many rows at once, pages.
- `schema`: upgrades and downgrades with Alembic.

Errors of the drivers become `DatabaseUnavailable`, `StateConflict` or `SpecError` here; no other package handles them.
This package must not import other modules of `clonos_api.store` than `tables`.
"""
