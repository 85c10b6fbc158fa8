"""80-99: the control plane does not allow or rejects the request."""

from __future__ import annotations

from clonos.errors.base import ClonosError


class ControlPlaneError(ClonosError):
    """The control plane's state does not allow the request. Base class of exit codes 81-89."""

    slug = "control-plane-error"
    exit_code = 80
    kept_default = "nothing was changed."


class ConcurrentUpdate(ControlPlaneError):
    """Another request changed the resource first, or another replica is the leader now."""

    slug = "concurrent-update"
    exit_code = 81
    hint_default = "read the resource again and repeat the change if it still applies."


class NotFound(ControlPlaneError):
    """The resource does not exist."""

    slug = "not-found"
    exit_code = 82
    hint_default = "list the existing resources and check the name."


class NameTaken(ControlPlaneError):
    """The name is in use."""

    slug = "name-taken"
    exit_code = 83
    hint_default = "choose another name, or delete the resource that has it."


class StateConflict(ControlPlaneError):
    """The current state of the resource does not allow the request."""

    slug = "state-conflict"
    exit_code = 84
    hint_default = "check its state; wait until it changes, or change it first."


class VersionStale(ControlPlaneError):
    """`If-Match` names an outdated version."""

    slug = "version-stale"
    exit_code = 85
    hint_default = "get the resource again, and send the change with its current version."


class IdempotencyKeyReused(ControlPlaneError):
    """The idempotency key belongs to another request."""

    slug = "idempotency-key-reused"
    exit_code = 86
    hint_default = "use a new key for each new request."


class RequestInProgress(ControlPlaneError):
    """A request with the same idempotency key is in progress."""

    slug = "request-in-progress"
    exit_code = 87
    hint_default = "wait a moment and send the request again."


class WaitTimeout(ControlPlaneError):
    """The operation did not finish within the requested waiting time."""

    slug = "wait-timeout"
    exit_code = 88
    kept_default = "the operation continues on the control plane."
    hint_default = "wait longer, or check the operation later."


class ApiError(ControlPlaneError):
    """The control plane returned an error that this client does not recognise."""

    slug = "api-error"
    exit_code = 89
    kept_default = ""
    hint_default = "read the control plane's log; a newer client may recognise the error."


class RequestRejected(ClonosError):
    """The control plane rejects the request. Base class of exit codes 91-99."""

    slug = "request-rejected"
    exit_code = 90
    kept_default = "nothing was changed."


class Unauthenticated(RequestRejected):
    """The token is missing, unknown, expired or revoked; the response does not distinguish these."""

    slug = "unauthenticated"
    exit_code = 91
    hint_default = (
        "send the header `Authorization` with `Bearer clonos_…`, a token that is neither expired nor revoked."
    )


class Forbidden(RequestRejected):
    """The token's role, subject or host does not allow the request."""

    slug = "forbidden"
    exit_code = 92
    hint_default = "use a token with the role that the message names, or a token of the owner."


class OriginNotAllowed(RequestRejected):
    """The request used a host name, or came from a web page, that the control plane does not allow."""

    slug = "origin-not-allowed"
    exit_code = 93
    hint_default = "use the address that the service prints, or add the name to its allowed hosts or origins."


class VersionMissing(RequestRejected):
    """The change lacks the `If-Match` header."""

    slug = "version-missing"
    exit_code = 94
    hint_default = "get the resource, and send its `ETag` as `If-Match`."


class RequestTooLarge(RequestRejected):
    """The request exceeds the size limit."""

    slug = "request-too-large"
    exit_code = 95
    hint_default = "send less, or split it into several requests."


class TooManyRequests(RequestRejected):
    """The client exceeds the request rate limit."""

    slug = "too-many-requests"
    exit_code = 96
    retry = True
    hint_default = "wait the number of seconds in `Retry-After`."


class Overtaken(RequestRejected):
    """A newer request replaced this one. Reported by an operation."""

    slug = "overtaken"
    exit_code = 97
    kept_default = "the newest request counts."
    hint_default = "nothing, if the newer request was intended; otherwise repeat this one."
