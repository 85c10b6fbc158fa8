"""Causal services: the nondeterministic values of a job, recorded once and repeated in a replay.

The idea is from Clonos: log every nondeterministic value of an operator as a *determinant* before its effects become
visible, and replay the log after a failure (Silvestre, Fragkoulis, Spinellis, Katsifodimos, "Clonos: Consistent Causal
Recovery for Highly-Available Streaming Dataflows", SIGMOD 2021, doi 10.1145/3448016.3457320). Here the unit of replay
is an epoch (one micro-batch of one query), and the log is a Kafka topic.

Two kinds of services:

- *Derived* (`derived`: `now`, `epoch`, `random`, `rng`, `uuid4`, `param`): computed from the epoch's plan. They write
  nothing.
- *Recorded* (`service`: `clock`, `service`): called once per (epoch, operator, task, service, arguments). The answer is
  a determinant in the causal log.

The life of a determinant::

    call -> TaskScope.answers -> Recorder.add -> Recorder.flush -> acknowledged by the log -> output leaves the operator
                                                                        |
    replay: recorded_answers reads the partition up to the claim  <-----+

Invariants:

- An operator hands a batch to the next one only after the log has acknowledged every determinant of that batch.
- Of several determinants with the same key the first valid one counts. A determinant is valid if its owner wrote the
  newest claim or marker before it (invariant 4 of ``docs/protocol.md``).
- Draws and determinants belong to (operator, task). `shape` refuses queries in which a replay could mix them up.
- The rows of a group have a canonical order (`ordering`), because a shuffle does not repeat theirs.

Modules: `epoch_scope` (the epoch of a task), `scope` (the current operator, task and row), `determinants` (to the log
and back), `operator_task` (runs user code), `operators`, `stateful`, `udf`, `vectorised` (what jobs wrap).

The package must not import `clonos.jobs`, `clonos.extend`, `clonos.formats` or anything above them.
"""
