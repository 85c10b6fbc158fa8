"""Reconciles the actual state of jobs with their desired state.

One replica leads (`store.lease`); its `loop` repeats, on each event and every second, unless `quiet` shows that nothing
has changed since a round without work:

1. `load` reads the jobs that may need a decision, and all hosts, into a `Snapshot`.
2. `decide` and `standbys` return one `Decision` about each job (`decisions`). They are pure functions of facts
   (`facts`): no I/O, no clock.
3. `applying` writes each part of it once, in one transaction, with the leader's fencing token checked and
   compare-and-set on each row.

Modules: `transitions` is the table of job states with guards and effects, and draws it; `states` has the decisions by
state; `placement` selects hosts; `deadlines` limits transient states; `run_specs` builds what agents
receive; `ending` ends REST operations; `saving` copies checkpoints; `tidying` ends leftovers.

Invariants:

- Apart from standbys, a job has at most one run that is to drive it; two only while a standby takes over from a
  running driver.
- `transitions.RULES` has each state change, with the user's request that it requires.
- Each transient state has a deadline, or waits for a host and shows that as its failure.
- Decisions depend on the database alone, so that a new leader continues at any point.
- Writes of a replica that has lost the lease fail.

The package must not import routes, the dashboard, admission or streams.
"""
