"""The owner file of a checkpoint or savepoint: it names the job, and the subject that the job belongs to. That of a
checkpoint also has the platform.

The control plane compares locations as text, but a link, a mount or another file system may lead to the same
directory. So each process that opens a checkpoint or savepoint reads the owner files of its directory and of the
directories above: drivers, and processes that restore, rewind, copy or delete it. The process that creates a directory
writes its owner file; a copy does not contain the file.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace
from pyspark.sql import SparkSession

from clonos.driver.checkpoint import CheckpointDirectory
from clonos.errors import CheckpointForeign, CheckpointUnwritable, EpochFailed, JobForeign
from clonos.log.platform_identity import Platform, adopting

OWNER_FILE: Final = "owner.json"


class JobOwner(NamedTuple):
    """A job, and the subjects whose folders it may open."""

    job: str  # name of the job
    # The subject that the job belongs to, then those of folders that it takes over, such as of a savepoint that an
    # admin starts from. Empty without a control plane.
    subjects: tuple[str, ...] = ()
    # The platform of the job; None if it is unknown, which may open the checkpoints of all platforms.
    platform: Platform | None = None
    adopt: bool = False  # whether the job may open a checkpoint of another platform


class OwnerFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of an owner file."""

    job: str  # name of the job whose checkpoint or savepoint this is
    subject: str = ""  # the subject that the job belongs to; empty if it was not known
    lineage: int = 0  # the newest lineage that worked in a checkpoint; 0 before the first claim, and in a savepoint
    savepoint: bool = False  # whether the folder is a savepoint, in which no job may work
    # The platform whose driver works in a checkpoint; None if it is unknown, and in a savepoint.
    platform: Platform | None = None

    def of_other_platform(self, owner: JobOwner) -> bool:
        """Whether the platform of the folder is known, and another than `owner`'s.

        Without a control plane a job is where its checkpoint is: a copy of the program on another machine, with the
        same checkpoint, is the same job.
        """
        if self.platform is None or owner.platform is None or self.platform.id == owner.platform.id:
            return False
        return self.platform.control_plane or owner.platform.control_plane

    @property
    def described(self) -> str:
        """What the folder is, for messages."""
        kind = "a savepoint" if self.savepoint else "the checkpoint"
        return f"{kind} of {self.job}{f' ({self.subject})' if self.subject else ''}"

    def belongs_to(self, owner: JobOwner) -> bool:
        """Whether the subject of the folder is one of the job's; True if either is not known."""
        return not self.subject or not owner.subjects or self.subject in owner.subjects


class CheckpointOwner:
    """The owner file of one checkpoint, through Spark's file systems.

    Args:
        spark: The session; its Hadoop configuration defines the file systems.
        location: Path or URI of the checkpoint, in which each query has its directory.
        owner: The job that works in it.
    """

    def __init__(self, spark: SparkSession, location: str, owner: JobOwner) -> None:
        self._location = location
        self._owner = owner
        self._directory = CheckpointDirectory(spark, location)
        self._text: str | None = None  # as read before the claim: a takeover does not read the file again

    def check(self) -> None:
        """Refuse the checkpoint of another job or subject, a savepoint, and what is inside of one.

        Raises:
            CheckpointForeign: The file names another job or subject.
            JobForeign: The file names another platform.
            CheckpointUnavailable: The file system does not answer.
            CheckpointUnwritable: The file in the checkpoint cannot be read. Above it, a file that the file system
                refuses to read counts as missing.
        """
        try:
            self._text = self._directory.read_text(OWNER_FILE)
            above = self._directory.texts_above(OWNER_FILE)
        except EpochFailed as error:
            raise CheckpointUnwritable(error.what) from error
        check_checkpoint(self._text, self._owner, self._location)
        check_above(above, self._owner, self._location)

    @property
    def platform(self) -> Platform | None:
        """The platform of the job. Without a control plane, the owner file names it, once `check` has read that."""
        own, earlier = self._owner.platform, read_owner(self._text)
        stored = earlier.platform if earlier is not None else None
        if own is None or stored is None or own.control_plane or stored.control_plane:
            return own
        return replace(own, id=stored.id)

    def write(self, lineage: int) -> None:
        """Write the file, unless `check` has read the same content."""
        earlier = read_owner(self._text)
        subject = self._owner.subjects[0] if self._owner.subjects else earlier.subject if earlier else ""
        platform, stored = self.platform, earlier.platform if earlier is not None else None
        if stored is not None and (platform is None or platform.id == stored.id):
            platform = stored  # the name may differ on each host; a takeover writes nothing
        text = encode(OwnerFile(self._owner.job, subject, lineage, platform=platform))
        if self._text != text:
            self._directory.write_text(OWNER_FILE, text)
            self._text = text


def encode(file: OwnerFile) -> str:
    """Return the text of an owner file."""
    return msgspec.json.encode(file).decode()


def owner_text(owner: JobOwner, *, savepoint: bool = False) -> str:
    """Return the text of the owner file of a new folder of `owner`. Any platform may start from a savepoint."""
    platform = None if savepoint else owner.platform
    subject = owner.subjects[0] if owner.subjects else ""
    return encode(OwnerFile(owner.job, subject, savepoint=savepoint, platform=platform))


def read_owner(text: str | None) -> OwnerFile | None:
    """Decode an owner file; None if there is none, or an empty one, which a crash may have left."""
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=OwnerFile)
    except msgspec.DecodeError:
        return OwnerFile("an unknown job")


def check_checkpoint(text: str | None, owner: JobOwner, location: str) -> None:
    """Refuse a folder to work in whose owner file has the content `text`; None: there is no such file.

    Raises:
        CheckpointForeign: The file names another job or subject, or the folder is a savepoint.
        JobForeign: The file names another platform.
    """
    file = read_owner(text)
    if file is None:
        return
    if file.job != owner.job or not file.belongs_to(owner) or file.savepoint:
        raise CheckpointForeign(f"The directory {location} is {file.described}, not the checkpoint of {_named(owner)}.")
    if file.of_other_platform(owner) and not owner.adopt and file.platform is not None and owner.platform is not None:
        raise JobForeign(
            f"The directory {location} is the checkpoint of {owner.job} of {file.platform.name}; this is "
            f"{owner.platform.name}.",
            kept="the directory is unchanged.",
            hint="name another directory. To take over the job, stop it there, then: "
            f"{adopting(owner.job, owner.platform)}.",
        )


def check_savepoint(text: str | None, owner: JobOwner, location: str) -> None:
    """Refuse a folder to start from, or to delete, whose owner file has the content `text`.

    Any job of a savepoint's owner may start from it. One of an older version has no owner file.

    Raises:
        CheckpointForeign: The folder is not a savepoint, or belongs to another subject.
    """
    file = read_owner(text)
    if file is not None and not (file.savepoint and file.belongs_to(owner)):
        raise CheckpointForeign(f"The directory {location} is {file.described}, not a savepoint of {_named(owner)}.")


def check_above(texts: Iterable[str | None], owner: JobOwner, location: str) -> None:
    """Refuse a folder below one whose owner file is among `texts`, unless that is a checkpoint of the same subject.

    Raises:
        CheckpointForeign: The folder is inside of a savepoint, or of another subject's checkpoint.
    """
    for file in filter(None, map(read_owner, texts)):
        if file.savepoint or not file.belongs_to(owner):
            raise CheckpointForeign(f"The directory {location} is inside of {file.described}.")


def _named(owner: JobOwner) -> str:
    return f"{owner.job} ({owner.subjects[0]})" if owner.subjects else owner.job
