"""What all resources share."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Generic, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

T = TypeVar("T")


def _utc(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError("a time needs its zone")
    try:
        moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("there is no such time in UTC") from error
    return moment


Moment = Annotated[datetime, AfterValidator(_utc)]


class Resource(BaseModel):
    """A body that the API takes or gives."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Page(Resource, Generic[T]):
    """One page of a list.

    Attributes:
        data: Newest first, unless the route says otherwise.
        has_more: Whether there is another page.
        next: Pass it as ``starting_after`` to get that page.
    """

    data: list[T]
    has_more: bool = False
    next: str | None = None


class Problem(BaseModel):
    """An error, as RFC 9457 has it (``application/problem+json``).

    Attributes:
        type: ``https://clonos.dev/problems/<slug>``, the same slug as the command line's.
        kept: What was kept safe.
        hint: What to do next.
        errors: For each wrong field where it is and what is wrong.
    """

    model_config = ConfigDict(extra="allow")

    type: str = "about:blank"
    title: str = ""
    status: int
    detail: str = ""
    instance: str | None = None
    kept: str = ""
    hint: str = ""
    errors: list[dict[str, str]] = Field(default_factory=list)
