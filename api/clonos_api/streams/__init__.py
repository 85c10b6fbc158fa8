"""Requests that stay open: event streams, log followers and long polls.

- `feed`: the newest events in memory, read once for all streams; wakes the followers of job logs.
- `open_requests`: ends requests whose token expires or is revoked.
- `push_interval`: the interval of agents' pushes, which limits the load of this replica.

All objects belong to one replica and its event loop. The package must not import routes.
"""
