"""Settings of the control plane, from the environment (``CLONOS_API__…``, nested with ``__``) over defaults."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    HttpUrl,
    IPvAnyNetwork,
    SecretStr,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

from clonos.errors import SpecError
from clonos.settings import Settings as ClonosSettings
from clonos.units import parse_duration, parse_size


def _with_unit(parse: Callable[[str], float]) -> Callable[[object], object]:
    """Accept text with a unit besides a plain number in the unit of the field's name."""

    def read(value: object) -> object:
        return parse(value) if isinstance(value, str) and not value.strip().replace(".", "", 1).isdigit() else value

    return read


Duration = Annotated[float, BeforeValidator(_with_unit(parse_duration))]
# The path of `public_url`: it becomes a part of addresses, headers and pages.
PREFIX: Final = re.compile(r"(/[A-Za-z0-9._~-]+)*")
# The first parts of own paths: a prefix that begins like one of them would be ambiguous.
_OWN: Final = frozenset(
    {"api", "assets", "clusters", "docs", "events", "health", "hosts", "jobs", "live", "metrics", "recoveries"}
    | {"session", "signin", "signout", "submit"}
)
Size = Annotated[int, BeforeValidator(_with_unit(parse_size))]


class Limits(BaseModel):
    """Limits of requests. Durations and sizes have a unit (``10s``, ``50m``), or are in seconds and bytes."""

    body_bytes: Size = Field(1_000_000, gt=0)
    """Largest body of a request, except uploads."""
    artifact_bytes: Size = Field(50_000_000, gt=0)
    """Largest upload."""
    artifact_bytes_per_subject: Size = Field(1_000_000_000, gt=0)
    """Largest sum of the artifacts that a subject uploaded, of all replicas."""
    requests_per_s: float = Field(50.0, gt=0)
    """Requests a second of one token, on average."""
    burst: int = Field(200, gt=0)
    """Requests of one token at once."""
    requests_at_once: int = Field(4, gt=0)
    """Requests of one token in progress at once; further ones wait."""
    slow_at_once: int = Field(1, gt=0)
    """Uploads, and analyses of code, of one token in progress at once; further ones wait."""
    failures_per_s: float = Field(1.0, gt=0)
    """Requests without a valid token from one address, a second on average; more get 429, not 401."""
    failures_burst: int = Field(30, gt=0)
    """Requests without a valid token from one address at once."""
    streams: int = Field(2_000, gt=0)
    """Open event streams of one replica, of all callers; the last twentieth is reserved for admins."""
    streams_per_token: int = Field(20, gt=0)
    """Open event streams of one token on one replica."""
    stream_s: Duration = Field(600.0, gt=0)
    """Maximum duration of a stream; the client then reconnects, and its token is checked again."""
    wait_s: Duration = Field(30.0, gt=0, le=60)
    """Maximum duration of a long poll."""


class Webhook(BaseModel):
    """A receiver of alerts."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")
    """Its name in logs and metrics."""
    url: SecretStr
    """Where alerts are posted; secret, because many receivers put a token into it. No link-local address, and https,
    except for this machine.
    """
    allow_http: bool = False
    """Whether `url` may be http although it is on another machine."""
    secret: SecretStr | None = None
    """Key of the signature, ``whsec_`` and 24 to 64 bytes in Base64."""
    secret_file: Path | None = None
    """File with the key, instead of `secret`."""
    severity: Literal["warning", "critical"] = "warning"
    """``critical``: no warnings are sent."""
    ca: Path | None = None
    """PEM file with the authorities to trust; default: this machine's."""

    @model_validator(mode="after")
    def _usable(self) -> Self:
        try:
            url = HttpUrl(self.url.get_secret_value())
        except ValueError:
            raise ValueError("url must be an http or https address") from None
        if url.host is None:
            raise ValueError("url must have a host")
        if serves_metadata(url.host):
            raise ValueError("url must not have a link-local address, or one where clouds serve credentials")
        if url.scheme == "http" and not (self.allow_http or is_loopback(url.host)):
            raise ValueError("url must be https, because its host is not this machine; allow_http permits http")
        if (self.secret is None) == (self.secret_file is None):
            raise ValueError("a webhook needs either secret or secret_file")
        if self.secret is not None:
            self.key()
        return self

    def key(self) -> bytes:
        """Return the key of the signature. A file is read each time, so that it may be replaced.

        Raises:
            ValueError: The secret has another form.
            OSError: The file cannot be read.
        """
        if self.secret_file is not None:
            text = self.secret_file.read_text().strip()
        else:
            text = self.secret.get_secret_value() if self.secret is not None else ""
        prefix, _, encoded = text.partition("_")
        try:
            key = base64.b64decode(encoded, validate=True) if prefix == "whsec" else b""
        except binascii.Error:
            key = b""
        if not 24 <= len(key) <= 64:
            raise ValueError("a webhook's secret is whsec_ and 24 to 64 bytes in Base64")
        return key


class Oidc(BaseModel):
    """The OpenID Connect provider that users sign in to the dashboard with."""

    model_config = ConfigDict(extra="forbid")

    issuer: str
    """Address of the provider, exactly as in its metadata; https, or http on this machine."""
    client_id: str = Field(min_length=1)
    """Id of this service at the provider; its redirect URI there is ``https://HOST/signin/oidc/callback``."""
    client_secret: SecretStr | None = None
    """Secret of this service; None, and no `client_secret_file`: a public client."""
    client_secret_file: Path | None = None
    """File with the secret, instead of `client_secret`."""
    name: str = Field("single sign-on", min_length=1, max_length=60)
    """Text of the link on the sign-in page."""
    scopes: str = Field("openid email profile", pattern=r"(^| )openid( |$)")
    """Scopes to ask for."""
    subject_claim: str = Field("email", min_length=1)
    """Claim that becomes the subject, which owns jobs. ``email`` has to be verified. Choose no claim that users may
    change.
    """
    roles_claim: str = Field("groups", min_length=1)
    """Claim with the groups of the user: a list, or one text."""
    roles: dict[str, Literal["viewer", "operator", "admin"]] = Field(min_length=1)
    """Group → role. The highest one counts; users without a role are refused."""
    session_s: Duration = Field(8 * 3600.0, gt=0, le=86_400)
    """Lifetime of a session, which is not renewed."""
    ca: Path | None = None
    """PEM file with the authorities to trust; default: this machine's."""

    @model_validator(mode="after")
    def _usable(self) -> Self:
        if not self.accepts(self.issuer):
            raise ValueError("issuer must be an https address, or an http one on this machine")
        if self.client_secret is not None and self.client_secret_file is not None:
            raise ValueError("use either client_secret or client_secret_file")
        return self

    def accepts(self, address: str) -> bool:
        """Whether codes and tokens may be sent to an address: by https, or to this machine."""
        try:
            url = HttpUrl(address)
        except ValueError:
            return False
        return url.host is not None and (url.scheme == "https" or is_loopback(url.host))

    def secret(self) -> str | None:
        """Return the secret of this service. A file is read each time, so that it may be replaced."""
        if self.client_secret_file is not None:
            return self.client_secret_file.read_text().strip()
        return self.client_secret.get_secret_value() if self.client_secret is not None else None


def _documentation() -> Path:
    """Return the documentation site of an installed wheel, else the clone's."""
    installed = Path(__file__).parent / "documentation"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "build" / "docs"


def _random_name() -> str:
    return f"{socket.gethostname()[:30]}-{secrets.token_hex(4)}"


class ApiSettings(BaseSettings):
    """All settings of one replica. Durations take a unit: ``10s``, ``500ms``; a plain number is in seconds."""

    model_config = SettingsConfigDict(
        env_prefix="CLONOS_API__",
        env_nested_delimiter="__",
        extra="ignore",
        hide_input_in_errors=True,  # it may have secrets
    )

    home: Path = Field(default_factory=lambda: ClonosSettings().home)
    """``CLONOS_HOME``; directory of the embedded database."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(8484, ge=0, le=65_535)
    """Port to listen on; 0: a free one."""
    database_url: SecretStr | None = None
    """URL for SQLAlchemy with an asynchronous driver (``postgresql+psycopg://…``); default: SQLite below `home`.
    Secret, because it may contain a password.
    """
    savepoints: str | None = None
    """Directory (path or URI) of savepoints whose request names none; default: below `home`."""
    shared_checkpoints: str | None = None
    """Directory that all hosts can access; jobs with a checkpoint below it can change hosts."""
    checkpoint_roots: list[str] = Field(default_factory=list)
    """Directories below which jobs may keep checkpoints and savepoints that their requests locate; default: any. Admins
    are not restricted.
    """
    tls_cert: Path | None = None
    """PEM file with the certificate; with `tls_key`, connections use TLS. Changed files are loaded within seconds."""
    tls_key: Path | None = None
    """PEM file with the key."""
    auth: bool = True
    """Whether requests need a token. Turn it off only on a single-user machine."""
    allowed_hosts: list[str] = Field(default_factory=list)
    """Accepted values of ``Host``, besides the loopback names and `host`."""
    allowed_origins: list[str] = Field(default_factory=list)
    """Accepted values of ``Origin``, besides the service's own."""
    public_url: str = ""
    """Address of the service in browsers, such as ``https://tools.example.org/clonos`` behind a proxy; its path is the
    prefix of all links, cookies and redirects, and alerts link to the runbook there. Default: the address of each
    request, without a prefix.
    """
    trusted_proxies: list[IPvAnyNetwork] = Field(default_factory=list)
    """Addresses and networks of proxies. For requests from them, the client's address and the scheme are those of
    ``X-Forwarded-For`` and ``X-Forwarded-Proto``; default: none, the headers are ignored.
    """
    replica: str = Field(default_factory=_random_name, min_length=1, max_length=40)
    """Name of this replica in the leader's lease; default: random."""
    heartbeat_s: Duration = Field(15.0, gt=0)
    """Interval of keep-alive messages in event streams."""
    docs: Path = Field(default_factory=_documentation)
    """Directory of the documentation site, which the service serves below ``/docs``. Default: the site in the installed
    wheel, or ``build/docs`` of a clone.
    """
    ready_file: Path | None = None
    """File to which the service writes its address, as JSON, once it accepts requests."""
    reconcile: bool = True
    """Whether this replica can become the leader."""
    host_heartbeat_s: Duration = Field(1.0, gt=0)
    """Interval of agents' heartbeats."""
    standby_heartbeat_s: Duration = Field(0.25, gt=0)
    """Interval of heartbeats of hosts with a standby, or with a driver that has a ready standby. A standby takes over
    after four missing heartbeats, before the host counts as lost.
    """
    host_lease_s: Duration = Field(4.0, gt=0)
    """A host without heartbeats for this time is lost. It is more than three heartbeats, so that three in a row have to
    fail.
    """
    limits: Limits = Limits()
    oidc: Oidc | None = None
    """Provider of the dashboard's sign-in, besides API tokens; default: none."""
    webhooks: list[Webhook] = Field(default_factory=list, max_length=20)
    """Receivers of alerts; only the environment sets them, no request does."""

    @field_validator("public_url")
    @classmethod
    def _without_end(cls, value: str) -> str:
        if not value:
            return value
        url = HttpUrl(value)
        if url.query or url.fragment or url.username or not PREFIX.fullmatch((url.path or "/").rstrip("/")):
            raise ValueError("public_url is http(s)://HOST[:PORT][/PATH], with plain characters in its path")
        if (url.path or "/").split("/")[1] in _OWN:
            raise ValueError(
                f"the path of public_url must not begin with a path of the service ({', '.join(sorted(_OWN))})"
            )
        return value.rstrip("/")

    @model_validator(mode="after")
    def _webhooks_differ(self) -> Self:
        if len({webhook.name for webhook in self.webhooks}) < len(self.webhooks):
            raise ValueError("two webhooks have the same name")
        return self

    @model_validator(mode="after")
    def _lease_covers_heartbeats(self) -> Self:
        if self.host_lease_s <= 3 * self.host_heartbeat_s:
            raise ValueError("host_lease_s must be more than three times host_heartbeat_s")
        return self

    @property
    def prefix(self) -> str:
        """The path below which a proxy publishes the service, such as ``/clonos``; empty: at the root."""
        return (HttpUrl(self.public_url).path or "").rstrip("/") if self.public_url else ""

    @property
    def database(self) -> str:
        """The database's URL, with its secrets: not for logs."""
        if self.database_url is not None:
            return self.database_url.get_secret_value()
        return f"sqlite+aiosqlite:///{self.home / 'control-plane.db'}"

    @property
    def savepoint_location(self) -> str:
        """Directory of savepoints whose request names none."""
        return self.savepoints or str(self.home / "savepoints")

    @property
    def admin_token_file(self) -> Path:
        """File to which the service writes its first admin token; only the file's owner can read it."""
        return self.home / "admin.token"

    @property
    def scheme(self) -> Literal["http", "https"]:
        """Scheme of the service's URL."""
        return "https" if self.tls_cert else "http"

    def check_exposure(self) -> None:
        """Raise `SpecError` if the service listens on an address other than loopback and tokens or TLS are off."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise SpecError(
                "TLS needs a certificate and its key.",
                hint="set both CLONOS_API__TLS_CERT and CLONOS_API__TLS_KEY, or neither.",
            )
        if is_loopback(self.host):
            return
        missing = [
            name
            for name, configured in (
                ("tokens (CLONOS_API__AUTH=true)", self.auth),
                ("TLS (CLONOS_API__TLS_CERT, CLONOS_API__TLS_KEY)", self.tls_cert is not None),
            )
            if not configured
        ]
        if missing:
            raise SpecError(
                f"{self.host} is reachable from other machines; this requires {' and '.join(missing)}.",
                hint="configure the missing part, or listen on 127.0.0.1.",
            )


_TRANSLATED: Final = ipaddress.ip_network("64:ff9b::/96")  # NAT64: the last four bytes are an IPv4 address
_METADATA: Final = frozenset(
    map(ipaddress.ip_address, ("fd00:ec2::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"))
)


def serves_metadata(host: str) -> bool:
    """Whether clouds serve the credentials of their machines at the address `host`; False for names.

    These are the link-local addresses, such as 169.254.169.254, also within IPv6, and a few others.
    """
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        elif address in _TRANSLATED or address.sixtofour is not None:
            address = address.sixtofour or ipaddress.IPv4Address(address.packed[-4:])
    return address.is_link_local or address in _METADATA


def is_loopback(host: str) -> bool:
    """Whether the address `host` is reachable from this machine only; False for all names except ``localhost``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
