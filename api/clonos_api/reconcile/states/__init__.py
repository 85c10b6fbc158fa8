"""Decisions by job state: pure functions ``(job, run, fleet, now) -> decision``, without I/O and without a clock.

- `active`: STARTING, RUNNING, RECOVERING. The job needs a working driver: place, wait, fail over, give up.
- `stopping`: STOPPING, CANCELLING, and the stop and cancel requests that lead there.
- `moving`: planned moves, which take precedence over the state of the job while they are in progress.
- `failures`: the failures that the reconciler itself reports.

The invariants of `clonos_api.reconcile` hold after each decision.

These modules must not import the store (except the type of a planned move), the loop, or anything with I/O.
"""
