"""The driver: one process that claims a job's causal log and runs its epochs.

`process` starts the JVM, the session and the driver. `driver` claims the log, prepares the job's queries
(`preparation`), starts one Spark query for each (`running`) and restarts all of them after a failure
(`restart_budget`). `epochs` is the commit protocol of one epoch. `positions` reads how far the queries have come.
`checkpoint`, `planned` and `repeatable` read Spark's checkpoint and plans for it. `lag`, `open_transactions` and
`status` observe the job; no epoch waits for them. `savepoint` copies checkpoints. `exactly_once` attaches a driver to
the session of a user's own program.

::

    STARTING ──> CLAIMING ──> RECONCILING ──> RUNNING ──> STOPPING ──> STOPPED
                    ^              │             │
                    └── RESTARTING <─────────────┤
                                                 └──> FINISHED
    STARTING, CLAIMING, RECONCILING, RUNNING ──> WAITING, while Kafka, a registry, a service or the file system is away
    WAITING ──> STARTING before the first claim; CLAIMING; RUNNING if the queries outlast the outage, else RESTARTING;
                STOPPING, STOPPED, FINISHED
    (each state that is not final) ──> FAILED; after a claim by another driver ──> SUPERSEDED

`states.TRANSITIONS` is the exact table. Invariants of the package, with the numbers of docs/protocol.md:

* An epoch's tasks start only after its plan is in the log (5), and a replay follows that plan (6).
* The checkpoint is made to agree with the log before a query starts, never the other way round (6).
* Each restart is a new claim, so that an older attempt cannot publish (3, 5).

Epochs follow Spark's micro-batches. The log of plans and determinants is from Clonos (Silvestre, Fragkoulis,
Spinellis, Katsifodimos, "Clonos: Consistent Causal Recovery for Highly-Available Streaming Dataflows", SIGMOD 2021,
doi 10.1145/3448016.3457320).

The package must not import `clonos.standby`, `clonos.agent` or the control plane.
"""
