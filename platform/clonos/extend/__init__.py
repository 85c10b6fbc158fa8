"""The interfaces for authors of connectors: `Source`, `Sink`, and helpers that run a sink's lanes as Spark tasks.

- `source`: a repeatable source. An epoch is a range of offsets; a replay reads the same records in the same order.
- `sink`: a sink publishes each lane (one sink partition's part of an epoch) at most once, and reports the outcome.
- `lanes`: the parts that most sinks share: tasks, replay audit, the owner check, and the digest.

A connector registers its class in the entry point group ``clonos.sources`` or ``clonos.sinks``. Every sink must pass
the contract suite `clonos.testing.sink_contract`.

The states of a lane::

    assigned -> published    by this attempt
             -> skipped      an earlier attempt published it
             -> audited      an earlier attempt published it, and this replay compared its rows
             -> empty        it has no rows

Invariants: the newest claim or marker of the lane's log partition decides the owner; a sink publishes nothing for
another owner. A published lane is never published again; if a replay computes other rows, the job stops.

The package must not import `clonos.jobs`, `clonos.formats` or anything above them. See ``docs/sinks.md``.
"""
