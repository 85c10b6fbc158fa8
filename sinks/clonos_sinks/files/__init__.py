"""The sink for rolling files: one file for each lane of an epoch. A file's name makes its publication exactly once."""

from clonos_sinks.files.sink import FilesSink

__all__ = ["FilesSink"]
