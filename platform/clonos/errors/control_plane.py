"""80-99: the control plane does not allow or rejects the request."""

from __future__ import annotations

from clonos.errors.base import ClonosError


class ControlPlaneError(ClonosError, exit_code=80):
    """The control plane's state does not allow the request. Base class of exit codes 81-89."""

    kept_default = "nothing was changed."


class ConcurrentUpdate(ControlPlaneError, exit_code=81):
    """Another request changed the resource first, or another replica is the leader now."""

    hint_default = "read the resource again and repeat the change if it still applies."


class NotFound(ControlPlaneError, exit_code=82):
    """The resource does not exist."""

    hint_default = "list the existing resources and check the name."


class NameTaken(ControlPlaneError, exit_code=83):
    """The name is in use."""

    hint_default = "choose another name, or delete the resource that has it."


class StateConflict(ControlPlaneError, exit_code=84):
    """The current state of the resource does not allow the request."""

    hint_default = "check its state; wait until it changes, or change it first."


class VersionStale(ControlPlaneError, exit_code=85):
    """`If-Match` names an outdated version."""

    hint_default = "get the resource again, and send the change with its current version."


class IdempotencyKeyReused(ControlPlaneError, exit_code=86):
    """The idempotency key belongs to another request."""

    hint_default = "use a new key for each new request."


class RequestInProgress(ControlPlaneError, exit_code=87):
    """A request with the same idempotency key is in progress."""

    hint_default = "wait a moment and send the request again."


class WaitTimeout(ControlPlaneError, exit_code=88):
    """The operation did not finish within the requested waiting time."""

    kept_default = "the operation continues on the control plane."
    hint_default = "wait longer, or check the operation later."


class ApiError(ControlPlaneError, exit_code=89):
    """The control plane returned an error that this client does not recognise."""

    kept_default = ""
    hint_default = "read the control plane's log; a newer client may recognise the error."


class RequestRejected(ClonosError, exit_code=90):
    """The control plane rejects the request. Base class of exit codes 91-99."""

    kept_default = "nothing was changed."


class Unauthenticated(RequestRejected, exit_code=91):
    """The token is missing, unknown, expired or revoked; the response does not distinguish these."""

    hint_default = (
        "send the header `Authorization` with `Bearer clonos_…`, a token that is neither expired nor revoked."
    )


class Forbidden(RequestRejected, exit_code=92):
    """The token's role, subject or host does not allow the request."""

    hint_default = "use a token with the role that the message names, or a token of the owner."


class OriginNotAllowed(RequestRejected, exit_code=93):
    """The request used a host name, or came from a web page, that the control plane does not allow."""

    hint_default = "use the address that the service prints, or add the name to its allowed hosts or origins."


class VersionMissing(RequestRejected, exit_code=94):
    """The change lacks the `If-Match` header."""

    hint_default = "get the resource, and send its `ETag` as `If-Match`."


class RequestTooLarge(RequestRejected, exit_code=95):
    """The request exceeds the size limit."""

    hint_default = "send less, or split it into several requests."


class TooManyRequests(RequestRejected, exit_code=96, retry=True):
    """The client exceeds the request rate limit."""

    hint_default = "wait the number of seconds in `Retry-After`."


class Overtaken(RequestRejected, exit_code=97):
    """A newer request replaced this one. Reported by an operation."""

    kept_default = "the newest request counts."
    hint_default = "nothing, if the newer request was intended; otherwise repeat this one."
