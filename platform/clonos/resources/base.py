"""Base classes of all bodies of the REST API: resources, pages and problems."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Final, Generic, TypeVar

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
PLAIN: Final = r"^[^\x00-\x1f\x7f-\x9f]*$"
"""Pattern of a text without control characters, which a terminal would execute; a database cannot store NUL."""
HostName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9](?:[a-zA-Z0-9._-]{0,98}[a-zA-Z0-9])?$")]


class Resource(BaseModel):
    """Base class of the request and response bodies of the REST API."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Page(Resource, Generic[T]):
    """One page of a list in the REST API.

    Attributes:
        data: Entries, newest first unless the route specifies another order.
        has_more: Whether there is another page.
        next: Value of ``starting_after`` in the request for the next page.
    """

    data: list[T]
    has_more: bool = False
    next: str | None = None


class Problem(BaseModel):
    """An error in the format of RFC 9457 (``application/problem+json``).

    Attributes:
        type: ``/docs/errors/<slug>``, the page of the error; the slug is the command line's.
        kept: Data that is safe despite the error.
        hint: Next step for the user.
        errors: Position and problem of each invalid field.
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
