"""Checks of requests before they change anything: specifications, options, locations, start points, planned moves.

- `spec_checks`, `allowed_options`: the contents of a submitted specification; unknown options are refused.
- `clusters`: descriptions of Spark clusters, and jobs that name one.
- `connectors`: the installed sources and sinks, with the schema of their options.
- `inspection`: the linter's findings about uploaded code.
- `checkpoint_owners`, `start_points`: access to checkpoints and savepoints of other users, and repeated publication.
- `planned_moves`: moves and upgrades of running jobs.

Each check either returns problems or raises an error with a hint; none starts work. The package must not import routes
or the dashboard.
"""
