"""The local platform of ``clonos up``: Kafka, the control plane and agents on one machine.

One supervisor process (`Stack`) starts the processes in this order, and stops them in reverse order::

    Kafka (embedded or configured) -> Spark's master and workers (if requested) -> control plane
        -> one agent per host -> drivers (started by the agents)

- `plan` describes what to start, and how much fits; `state` records what runs, in ``CLONOS_HOME/local/state.json``.
- `stack` supervises: it restarts a process that exits, after a pause of 0.5 s to 30 s.
- `spark_cluster` chooses the ports of the Spark cluster, and registers it as ``local``.
- `background` starts a supervisor that outlives its command (``python -m clonos.local``).
- `access` creates the API tokens.

Status of the platform::

    starting -> ready -> stopping -> (no state file)
        |
        +-> failed (the state file holds the error until the next start)

Invariants: a file lock allows one supervisor per ``CLONOS_HOME``. The state file names every process that was started,
so that any process can stop them, even after the supervisor was killed. Only their user can read tokens.

The package must not import `clonos.cli`.
"""
