"""Responses of the control plane: their errors, which of them to retry, and how long to wait before a retry.

Shared by the blocking transport (`clonos.client.transport`) and the agent's (`clonos.client.agent_api`).
"""

from __future__ import annotations

import ipaddress
import random
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx
from pydantic import TypeAdapter, ValidationError

from clonos.errors import BY_SLUG, ApiError, ClonosError, SpecError
from clonos.resources.base import Problem
from clonos.resources.jobs import Failure
from clonos.settings import Settings

T = TypeVar("T")

# The control plane is overloaded, restarting, or behind a proxy that cannot reach it: the same request may succeed.
RETRYABLE: Final = frozenset({408, 425, 429, 502, 503, 504})

_adapters: dict[Any, TypeAdapter[Any]] = {}


@dataclass
class Backoff:
    """Delays between retries: their upper bound doubles from `first_s` up to `longest_s`.

    Each delay is a random time between half of the bound and the bound, so that clients do not retry simultaneously.
    """

    first_s: float
    longest_s: float
    _current_s: float = field(default=0.0, init=False)

    def reset(self) -> None:
        """Begin again with `first_s`, after a success."""
        self._current_s = 0.0

    def next_s(self, at_least_s: float | None = None) -> float:
        """Return the next delay in seconds; it is added to `at_least_s`, such as the ``Retry-After`` of a response."""
        self._current_s = min(2 * self._current_s, self.longest_s) or self.first_s
        return (at_least_s or 0.0) + self._current_s * random.uniform(0.5, 1.0)


def refuse_plain_http(api: str) -> None:
    """Raise `SpecError` for `http` on another machine, unless ``CLONOS_API_ALLOW_HTTP`` is set: it shows the token."""
    if httpx.URL(api).scheme != "http" or on_this_machine(api) or Settings().api_allow_http:
        return
    raise SpecError(
        f"{api} would send the token unencrypted.",
        kept="nothing was sent.",
        hint="use https; a control plane on other machines needs TLS. In a network that nobody else reads, "
        "CLONOS_API_ALLOW_HTTP=true permits it.",
    )


def on_this_machine(api: str) -> bool:
    """Whether an address is on loopback."""
    host = httpx.URL(api).host
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def tls_context(ca: Path | None) -> ssl.SSLContext:
    """Return a TLS context that trusts the PEM file `ca` (None: this machine); `SpecError` if it is not usable."""
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise SpecError(
            f"{ca} is not a readable PEM file with certificates: {error.strerror or error}.",
            kept="nothing was sent.",
            hint="name the file with the certificate of the control plane's authority.",
        ) from error


def retry_after_s(response: httpx.Response) -> float | None:
    """Seconds in ``Retry-After``; None without the header, or if it holds a date."""
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isdecimal() else None


def reason_of(error: Exception) -> str:
    """Return the text of a connection error; its class name if httpx left the text empty."""
    return str(error) or type(error).__name__


def decode(kind: type[T], content: bytes | str) -> T:
    """Parse a response body as `kind`, without the fields of newer versions; `ApiError` for another format."""
    try:
        adapter = _adapters.get(kind) or _adapters.setdefault(kind, TypeAdapter(kind))
        resource: T = adapter.validate_json(content, extra="ignore")
    except ValidationError as error:
        raise ApiError(
            f"The response does not have the format of the API: {error.errors()[0]['msg']}.",
            hint="check that a Clonos control plane of this client's version has this address.",
        ) from error
    return resource


def error_of_slug(slug: str, what: str, *, kept: str = "", hint: str = "") -> ClonosError:
    """Return the exception of the class in `clonos.errors` with this slug; without one, an `ApiError` that names the
    slug.

    `what` is what happened, `kept` what was kept safe, `hint` what to do next.
    """
    cls = BY_SLUG.get(slug)
    if cls is None or cls is ClonosError:
        text = f"{slug}: {what}" if slug not in ("", ClonosError.slug) else what
        return ApiError(text, kept=kept, hint=hint)
    return cls(what, kept=kept, hint=hint)


def error_of_response(response: httpx.Response) -> ClonosError:
    """Convert an error response (a problem document, RFC 9457, already read) to the exception that it describes."""
    request = f"{response.request.method} {response.request.url.path}"
    try:
        problem = Problem.model_validate_json(response.content)
    except ValidationError:
        return ApiError(f"{request} returned {response.status_code} {response.reason_phrase}.")
    slug = problem.type.rpartition("/")[2] if problem.type != "about:blank" else ""
    what = problem.detail or problem.title or f"{request} returned {problem.status}."
    details = "; ".join(": ".join(filter(None, (_location(error), _message(error)))) for error in problem.errors)
    if details and details not in what:
        what = f"{what.rstrip('.')}: {details}."
    return error_of_slug(slug, what, kept=problem.kept, hint=problem.hint)


def error_of_failure(failure: Failure) -> ClonosError:
    """Convert the REST `failure` of a job or operation to the exception that it describes."""
    return error_of_slug(failure.error, failure.what, kept=failure.kept, hint=failure.hint)


def _location(error: dict[str, str]) -> str:
    return next((error[name] for name in ("field", "pointer", "loc", "where") if error.get(name)), "")


def _message(error: dict[str, str]) -> str:
    return next((error[name] for name in ("what", "detail", "msg", "message") if error.get(name)), "")
