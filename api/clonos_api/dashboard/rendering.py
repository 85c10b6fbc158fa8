"""Templates, and the answers that are made of them."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from fastapi import Request, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from clonos.resources.figures import age, clock, duration, number, size
from clonos.resources.service import Role
from clonos_api.auth import Principal
from clonos_api.dashboard import assets
from clonos_api.services import services_of

# Nothing is loaded, run or framed from anywhere but here.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
# Charts set styles of single elements.
_CHARTS: Final = f"{_POLICY}; style-src-attr 'unsafe-inline'"
_SMALL: Final = 2_000
_NONE: Final = "–"


@dataclass(frozen=True)
class Page:
    """A page.

    Attributes:
        template: Its file.
        title: In the browser's tab.
        charts: It draws some.
    """

    template: str
    title: str
    charts: bool = False


def render(request: Request, page: Page, values: dict[str, Any], *, status: int = 200) -> Response:
    """A page; or only its part ``main`` for a script that brings one up to date (header ``HX-Request``)."""
    principal = request.scope.get("clonos.principal")
    caller = principal if isinstance(principal, Principal) else None
    seq = services_of(request).feed.newest  # what is read from here on is not older
    context = {
        "page": page,
        "caller": caller,
        "path": request.url.path,
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
    policy = _CHARTS if page.charts else _POLICY
    headers = {"Content-Security-Policy": policy, "Vary": "Accept-Encoding, HX-Request"}
    if len(content) > _SMALL and assets.accepts_gzip(request):
        content, headers["Content-Encoding"] = gzip.compress(content, 1), "gzip"
    return Response(content, status, headers, "text/html; charset=utf-8")


def part(template: str, **values: Any) -> Markup:
    """A piece of a page."""
    return Markup(_TEMPLATES.get_template(template).render(values))  # noqa: S704 - a template has escaped it


def _rights(caller: Principal | None) -> dict[str, bool]:
    """What buttons there are; the API decides what is allowed."""
    if caller is None:
        return {"operate": False, "administer": False}
    return {"operate": caller.may(Role.OPERATOR), "administer": caller.may(Role.ADMIN)}


def _time(moment: datetime | None) -> Markup:
    """A time in UTC, which a script turns into the viewer's zone."""
    if moment is None:
        return escape(_NONE)
    iso = moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(iso, clock(moment), clock(moment))


def _since(moment: datetime | None, length: str = "") -> Markup:
    """How long ago, which a script keeps up to date; ``short``: in one unit."""
    if moment is None:
        return escape(_NONE)
    iso = moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    text = age(moment) or _NONE
    text = " ".join(text.split()[:2]) if length else text
    return Markup('<time datetime="{}" data-since="{}" title="{}">{}</time>').format(iso, length, clock(moment), text)


def _or_none(text: str | None) -> Markup:
    return escape(text) if text is not None else escape(_NONE)


def rate(per_s: float | None) -> str | None:
    """Records a second."""
    if per_s is None:
        return None
    return f"{per_s:.1f} /s" if 0 < per_s < 10 else f"{number(per_s)} /s"


_TEMPLATES: Final = Environment(
    loader=PackageLoader("clonos_api.dashboard"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)
_TEMPLATES.globals["asset"] = assets.address
_TEMPLATES.filters.update(
    time=_time,
    since=_since,
    duration=lambda ms: _or_none(duration(ms)),
    size=lambda count: _or_none(size(count)),
    number=lambda count: _or_none(number(count)),
    rate=lambda per_s: _or_none(rate(per_s)),
)
