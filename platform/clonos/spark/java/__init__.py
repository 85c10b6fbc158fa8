"""The Java classes of Clonos, which run in Spark's JVM; `clonos.spark.classes` compiles them.

`LocalFileSystem` is a local file system for Hadoop that starts no process for a file. PySpark does not ship Hadoop's
native library. Without it, Hadoop runs ``chmod`` after each file that it creates: twice for each file of a checkpoint,
four times an epoch. `docs/adr/0014-local-files.md` has the costs.

`CheckpointFiles` creates the files of checkpoints, by rename or, on stores of objects, on a condition
(`docs/adr/0032-shared-storage.md`).
"""

from __future__ import annotations

from typing import Final

LOCAL_FILE_SYSTEM: Final = "clonos.LocalFileSystem"
CHECKPOINT_FILES: Final = "clonos.CheckpointFiles"
