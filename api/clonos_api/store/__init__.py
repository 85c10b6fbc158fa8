"""The store: the control plane's tables and the functions that read and write them.

One module for each kind of row; plain async functions that take an `AsyncSession` first (see `README.md`).

Invariants:

- Rows with several writers have a `row_version`; a write of a stale row raises `ConcurrentUpdate` (`db.swap`).
- Functions that need a row raise `NotFound`; changes that its state does not allow raise `StateConflict`.
- Every write of the leader checks its fencing token right before the commit (`lease`).
- A write appends its events and audit entries in the same transaction; `events.seq` follows the order of commits.
- Rows are locked in one order: jobs, runs (by id), hosts, lease, events. So writers never deadlock.
- Leases, deadlines and expiries are compared with the database's clock (`db.clock`).
- Ingestion (`ingest`, `epochs`, `logs`) applies each byte of a driver's event file and log once, in any number of
  pushes.

The store must not import routes, the reconciler, guards or `auth`.
"""
