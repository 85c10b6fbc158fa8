"""The sink for tables of databases. The rows of a lane and the lane's row in `clonos_lanes` are one transaction."""

from clonos_sinks.sql.sink import SqlSink

__all__ = ["SqlSink"]
