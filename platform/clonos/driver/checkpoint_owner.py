"""The owner file of a job's checkpoint: it names the job whose driver works in the directory.

The control plane compares the spelling of locations, but a link, a mount or another file system may lead to the same
directory. So a driver, and each process that restores, rewinds or copies a checkpoint, reads the file in the directory
itself.
A savepoint has no owner file: any job of its owner may start from it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from clonos.driver.checkpoint import CheckpointDirectory
from clonos.errors import CheckpointForeign, CheckpointUnwritable, EpochFailed

OWNER_FILE: Final = "owner.json"


class CheckpointOwner:
    """The owner file of one checkpoint, through Spark's file systems.

    Args:
        spark: The session; its Hadoop configuration defines the file systems.
        location: Path or URI of the checkpoint, in which each query has its directory.
    """

    def __init__(self, spark: SparkSession, location: str) -> None:
        self._location = location
        self._directory = CheckpointDirectory(spark, location)
        self._text: str | None = None  # as read before the claim: a takeover does not read the file again

    def check(self, job: str) -> None:
        """Refuse the checkpoint of another job.

        Raises:
            CheckpointForeign: The file names another job.
            CheckpointUnavailable: The file system does not answer.
            CheckpointUnwritable: The file cannot be read.
        """
        try:
            self._text = self._directory.read_text(OWNER_FILE)
        except EpochFailed as error:
            raise CheckpointUnwritable(error.what) from error
        check_owner_text(self._text, job, self._location)

    def write(self, job: str, lineage: int) -> None:
        """Write the file, unless `check` has read the same job and lineage."""
        text = json.dumps({"job": job, "lineage": lineage})
        if self._text != text:
            self._directory.write_text(OWNER_FILE, text)
            self._text = text


def check_owner(checkpoint: Path, job: str) -> None:
    """Refuse a directory that is the checkpoint of another job; one without an owner file is accepted.

    Raises:
        CheckpointForeign: The file names another job.
    """
    try:
        text = (checkpoint / OWNER_FILE).read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return
    check_owner_text(text, job, str(checkpoint))


def check_owner_text(text: str | None, job: str, location: str) -> None:
    """Refuse a directory whose owner file has the content `text` and names another job; None: there is no such file.

    Raises:
        CheckpointForeign: The file names another job.
    """
    if not text:
        return  # a crash may have left an empty file
    try:
        owner = json.loads(text)["job"]
    except (ValueError, KeyError, TypeError):
        owner = "an unknown job"
    if owner != job:
        raise CheckpointForeign(f"The directory {location} is the checkpoint of {owner}, not of {job}.")
