"""Rolling files: one file for each lane of an epoch, exactly once by their names."""

from clonos_sinks.files.sink import FilesSink

__all__ = ["FilesSink"]
