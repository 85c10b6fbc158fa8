"""The causal log: one Kafka topic for each job, with its claims, plans, determinants, markers and commits.

The idea is from Clonos (Silvestre, Fragkoulis, Spinellis, Katsifodimos, "Clonos: Consistent Causal Recovery for
Highly-Available Streaming Dataflows", SIGMOD 2021, doi 10.1145/3448016.3457320): record each nondeterministic answer
before its effect is visible, and replay the answers after a failure. Clonos keeps these records in the memory of
downstream tasks; here a Kafka topic holds them. Lanes are published by Kafka transactions (KIP-98).

Partition 0 is *control*, written by the driver alone. Each other partition belongs to one sink lane. `records` is the
format, `claiming` and `control` write, `reading` reads, `truncation` removes; `history`, `survey` and `exported` show
the log to people and tools.

Invariants (docs/protocol.md has the code and the tests of each):

1. A partition has exactly one transactional id. So after ``init_transactions()`` no transaction is open there, and a
   read_committed read of the tail is complete.
2. A claim follows the newest older claim. A driver whose commit failed or is unknown reads the tail.
3. Only the owner of the newest claim or marker of a partition continues.
4. A record is void if the newest claim or marker before it has another owner.
5. An epoch is fresh only if the log held no plan for it; every restart is a new claim.
6. On replay the plan in the log has priority.
7. The markers of a lane strictly increase in epoch within a lineage.
8. Truncation renews a partition's claim first, and retains the records that a host crash could need.

The package uses only `clonos.kafka`, `clonos.settings`, `clonos.private_folders`, `clonos.faults` and `clonos.errors`.
It must not import Spark.
"""
