"""Renders the dashboard's templates as responses."""

from __future__ import annotations

import gzip
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from fastapi import Request, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from clonos.errors import BY_SLUG
from clonos.resources import figures
from clonos.resources.figures import age, clock, duration, number, size
from clonos.resources.incidents import downtime_of
from clonos.resources.service import Role
from clonos_api.auth import Principal
from clonos_api.dashboard import assets
from clonos_api.fleet.banner import NAMED, banner_of, trouble_of
from clonos_api.fleet.lead import clause
from clonos_api.http.sub_path import prefix_of
from clonos_api.replica import replica_of

# Pages load scripts, styles and data only from this service, and cannot be framed.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'self'; frame-ancestors 'none'"
)
_SMALL: Final = 2_000
_NONE: Final = "–"
_CODE: Final = re.compile(r"`([^`]+)`")
# A command that can be executed as it stands: no word of it is left open.
_COMMAND: Final = re.compile(r"clonos [^…]+")
_OPEN: Final = re.compile(r"\b[A-Z]{3,}\b")


@dataclass(frozen=True)
class Page:
    """A page of the dashboard: its template and title."""

    template: str
    title: str


def render(request: Request, page: Page, values: dict[str, Any], *, status: int = 200) -> Response:
    """Render a page with the template's variables `values`.

    A request with the header ``HX-Request``, from a script that updates the page, gets only the block ``main``.
    """
    principal = request.scope.get("clonos.principal")
    caller = principal if isinstance(principal, Principal) else None
    seq = replica_of(request).feed.newest  # the page is at least as new as this event
    context = {
        "page": page,
        "caller": caller,
        "path": request.url.path,
        "prefix": prefix_of(request),
        "may": _rights(caller),
        "seq": values.get("seq", seq),
        **values,
    }
    template = _TEMPLATES.get_template(page.template)
    if "hx-request" in request.headers:
        text = "".join(template.blocks["main"](template.new_context(context)))
    else:
        text = template.render(context)
    content = text.encode()
    headers = {"Content-Security-Policy": _POLICY, "Vary": "Accept-Encoding, HX-Request"}
    if len(content) > _SMALL and assets.accepts_gzip(request):
        content, headers["Content-Encoding"] = gzip.compress(content, 1), "gzip"
    return Response(content, status, headers, "text/html; charset=utf-8")


def part(template: str, **values: Any) -> Markup:
    """Render a template that is a part of a page."""
    return Markup(_TEMPLATES.get_template(template).render(values))  # noqa: S704 - the template escapes its values


def _rights(caller: Principal | None) -> dict[str, bool]:
    """Return the buttons to show; the API checks every request."""
    if caller is None:
        return {"operate": False, "administer": False}
    return {"operate": caller.may(Role.OPERATOR), "administer": caller.may(Role.ADMIN)}


def _time(moment: datetime | None) -> Markup:
    """Return a time in UTC; a script converts it to the viewer's time zone."""
    if moment is None:
        return escape(_NONE)
    iso = moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(iso, clock(moment), clock(moment))


def _since(moment: datetime | None, length: str = "") -> Markup:
    """Return the age of a moment, updated by a script; ``short``: in one unit."""
    if moment is None:
        return escape(_NONE)
    iso = moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    text = age(moment) or _NONE
    text = " ".join(text.split()[:2]) if length else text
    return Markup('<time datetime="{}" data-since="{}" title="{}">{}</time>').format(iso, length, clock(moment), text)


def _or_none(text: str | None) -> Markup:
    return escape(text) if text is not None else escape(_NONE)


def _hint(text: str, job: str = "") -> Markup:
    """Return a hint of an error: its commands as code, each with a button that copies it. `job` takes the place of
    ``JOB``.
    """
    shown, at = Markup(), 0
    for match in _CODE.finditer(text):
        code = match[1].replace("JOB", job) if job else match[1]
        shown += escape(text[at : match.start()]) + Markup("<code>{}</code>").format(code)
        if _COMMAND.fullmatch(code) and not _OPEN.search(code):
            label = Markup(' <button type="button" class="copy" data-copy aria-label="Copy {}">Copy</button>')
            shown += label.format(code)
        at = match.end()
    return shown + escape(text[at:])


def _error_page(slug: str) -> str:
    """Return the link to an error's page in the documentation; empty for a slug of another version."""
    return f"docs/errors/{slug}" if slug in BY_SLUG else ""


def rate(per_s: float | None) -> str | None:
    """Return a number of records per second as text; None stays None."""
    return f"{figures.rate(per_s)} /s" if per_s is not None else None


_TEMPLATES: Final = Environment(
    loader=PackageLoader("clonos_api.dashboard"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)
_TEMPLATES.globals.update(asset=lambda name: assets.address(name)[1:], named=NAMED)
_TEMPLATES.filters.update(
    banner=banner_of,
    clause=clause,
    downtime_of=downtime_of,
    trouble=trouble_of,
    hint=_hint,
    error_page=_error_page,
    time=_time,
    since=_since,
    duration=lambda ms: _or_none(duration(ms)),
    size=lambda count: _or_none(size(count)),
    number=lambda count: _or_none(number(count)),
    rate=lambda per_s: _or_none(rate(per_s)),
)
