"""Standbys and pool drivers: driver processes that are started before they are needed.

A *standby* (`standby_driver`) belongs to one job. It has defined the job, rehearses the job's queries on no rows
(`warming`, `rehearsal`, `scratch`), has started its live queries up to their first epoch (`clonos.driver.parked`) and
follows the causal log. A *pool driver* (`pool_driver`) belongs to a host and has no job. Both wait at a mailbox
(`mailbox`): a standby for a promotion (`promotion`), a pool driver for a run (`launch_request`).

::

    STARTING ──> WARMING ──> READY <──> STALE
                    │          │          │
                    └──────────┴──────────┴──> PROMOTING ──> PROMOTED
    (each state but PROMOTED) ──> FAILED, RETIRED

Invariants:

* A standby claims nothing before its promotion: it opens no transaction, publishes nothing and commits nothing.
* Safety never depends on which standby is promoted, or on how many are: the causal log has one owner, which is the
  driver with the newest claim. A wrong promotion costs a takeover and nothing else.
* A rehearsal never passes a row to a user's function, and never writes into the job's own checkpoint.

The package uses `clonos.driver` and `clonos.spark`. It must not import `clonos.agent` or the control plane.
"""
