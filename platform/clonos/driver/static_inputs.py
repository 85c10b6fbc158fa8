"""The static inputs of a query: files and tables that a stream is joined with.

A replay reads a static input again. A plan therefore has a fingerprint of each static input that consists of files: a
replay that would read other files is refused. Other static inputs, such as tables over JDBC, have no fingerprint.
"""

from __future__ import annotations

import time
from typing import Any, Final

from pyspark.sql import DataFrame

from clonos.spark.internals import analyzed_leaves, jvm_of

# Data that is part of the query itself.
_CONSTANT: Final = frozenset({"LocalRelation", "LogicalRDD", "OneRowRelation", "Range"})
_MAX_AGE_S: Final = 1.0


class StaticInputs:
    """The static inputs of one query.

    Args:
        frame: The query's streaming DataFrame.
    """

    def __init__(self, frame: DataFrame) -> None:
        self._jvm = jvm_of(frame.sparkSession)
        self._configuration = frame.sparkSession.sparkContext._jsc.hadoopConfiguration()
        self._files: dict[str, list[Any]] = {}
        self._fingerprints: dict[str, str] = {}
        self._read_at = float("-inf")
        self.unpinned: list[str] = []  # names of the static inputs that have no fingerprint
        for leaf in analyzed_leaves(frame):
            kind = leaf.getClass().getSimpleName()
            if leaf.isStreaming() or kind in _CONSTANT:
                continue
            files = self._jvm.clonos.StaticFiles.of(leaf)
            if files is None:
                self.unpinned.append(leaf.simpleString(5))
            else:
                self._files.setdefault(_name(leaf), []).append(files)

    def fingerprints(self) -> dict[str, str]:
        """Location → fingerprint of its files: paths, lengths and times of modification; at most one second old.

        An older fingerprint is safe: a replay of an epoch that read newer files is refused.
        """
        if self._files and time.monotonic() - self._read_at > _MAX_AGE_S:
            self._read_at = time.monotonic()
            fingerprint = self._jvm.clonos.StaticFiles.fingerprint
            self._fingerprints = {
                name: "+".join(fingerprint(files, self._configuration) for files in all_files)
                for name, all_files in self._files.items()
            }
        return self._fingerprints


def _name(leaf: Any) -> str:
    """Return the locations that a relation of files reads."""
    roots = leaf.relation().location().rootPaths()
    return ", ".join(str(roots.apply(index)) for index in range(roots.size()))
