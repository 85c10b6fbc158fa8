"""The causal log: one Kafka topic per job that holds claims, plans, determinants, markers and ends.

Partition 0 is *control*, written by the driver alone. Every other partition belongs to one sink lane.
The invariants (design §5) that this package keeps:

1. A partition has exactly one transactional id, so after ``init_transactions()`` nothing is open there
   and a read_committed read of its tail misses nothing.
2. A claim stands on the newest older one; whoever fails or does not know reads the tail.
3. Only the owner of the newest claim or marker of a partition goes on.
4. A determinants record that does not come from the owner of the newest claim or marker before it is void.
5. An epoch is fresh only if the log held no plan for it; every restart is a new claim.
6. On replay the plan in the log rules.
7. Per lane, markers strictly increase in epoch within a lineage.
8. Truncation renews a partition's claim first and keeps what a host crash could need.
"""
