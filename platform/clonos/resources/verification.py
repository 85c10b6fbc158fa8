"""Bodies of the verification of a job's output (`clonos.audit.output_audit`)."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from clonos.resources.base import Moment, Resource

VERIFY: Final = "verify"  # kind of the operations and host tasks
READING_S: Final = 900.0  # for the records that exist already; then the agent ends the host task
MOST_FAULTS: Final = 100  # that a verification names

TopicName = Annotated[str, Field(min_length=1, max_length=249)]


class VerifyRequest(Resource):
    """The request to verify a job's output."""

    topics: list[TopicName] = Field(default_factory=list, max_length=16)
    """All topics to which the job publishes; default: those that the causal log names."""
    seconds: float = Field(10.0, ge=0.1, le=300)
    """How long to observe a running job."""


class VerifyTask(VerifyRequest):
    """The arguments of the host task that verifies the output of `job` (its name)."""

    job: str


class Verification(Resource):
    """What readers saw of a job's output, compared with the markers in its causal log."""

    at: Moment
    """End of the observation."""
    clean: bool
    """Whether epochs are proved up to the newest one, and nothing contradicts the log."""
    contradicted: bool = False
    """Whether the output contradicts the log. Neither: not enough was proved."""
    verified: dict[str, tuple[int, int]] = Field(default_factory=dict)
    """Query → first and last epoch that is proved."""
    records: int = 0
    """Number of records that these epochs published."""
    repeated: list[str] = Field(default_factory=list, max_length=MOST_FAULTS)
    """Lanes that were published twice, at most `MOST_FAULTS`."""
    incomplete: list[str] = Field(default_factory=list, max_length=MOST_FAULTS)
    """Committed epochs with missing markers, at most `MOST_FAULTS`."""
    distance: int | None = None
    """Number of records that were published more (above 0) or less than the markers say; 0: as many, with other
    content. None: no contradiction was found.
    """
    reason: str = ""
    """Why nothing was proved, or not the newest epochs. Empty: everything observed was."""
