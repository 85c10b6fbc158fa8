"""Settings of the control plane, from the environment (``CLONOS_API__…``, nested with ``__``) over defaults."""

from __future__ import annotations

import ipaddress
import secrets
import socket
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from clonos.errors import SpecError
from clonos.settings import Settings as ClonosSettings

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")


class Limits(BaseModel):
    """What one caller may ask for.

    Attributes:
        body_bytes: Largest body of a request, except uploads.
        artifact_bytes: Largest upload.
        requests_per_s: Requests a second of one token, on average.
        burst: Requests of one token at once.
        failures_per_s: Requests a second of one address without a valid token that hear 401, and not 429.
        failures_burst: The same, at once.
        streams: Server-sent event streams at once, of all callers.
        stream_s: Longest stream; the client comes back then, and its token is looked at again.
        wait_s: Longest long-poll.
    """

    body_bytes: int = Field(1_000_000, gt=0)
    artifact_bytes: int = Field(50_000_000, gt=0)
    requests_per_s: float = Field(50.0, gt=0)
    burst: int = Field(200, gt=0)
    failures_per_s: float = Field(1.0, gt=0)
    failures_burst: int = Field(30, gt=0)
    streams: int = Field(2_000, gt=0)
    stream_s: float = Field(600.0, gt=0)
    wait_s: float = Field(30.0, gt=0, le=60)


def _made_up() -> str:
    return f"{socket.gethostname()[:30]}-{secrets.token_hex(4)}"


class ApiSettings(BaseSettings):
    """All settings of one replica.

    Attributes:
        home: ``CLONOS_HOME``; where the embedded database is.
        host: Address to listen on.
        port: Port to listen on; 0: a free one.
        database_url: SQLAlchemy's, with an asynchronous driver (``postgresql+psycopg://…``); default SQLite below
            `home`. Secret, for it may hold a password.
        savepoints: Folder (path or URI) of savepoints that name none; default below `home`.
        shared_checkpoints: Folder that all hosts see: jobs whose checkpoint is below it can move at once.
        tls_cert: PEM file with our certificate; with `tls_key`, connections are TLS.
        tls_key: PEM file with our key.
        auth: Whether callers need a token. Off is for one person's own machine.
        allowed_hosts: Names that callers may call us by (``Host``), besides the loopback ones and `host`.
        allowed_origins: Origins whose pages may call us (``Origin``), besides our own.
        replica: Our name in the leader's lease; default made up.
        heartbeat_s: How often an event stream shows that it lives.
        ready_file: Where to write our address as JSON once we answer.
        reconcile: Whether this replica stands for leader.
        agent_heartbeat_s: How often agents tell that they live.
        agent_guarded_heartbeat_s: The same where a driver has a standby that is ready: one takes over when four are
            missing, without its host being lost yet.
        agent_lease_s: An agent that was not heard of for so long has lost its host. More than three heartbeats, so
            that it takes three in a row that fail.
    """

    model_config = SettingsConfigDict(env_prefix="CLONOS_API__", env_nested_delimiter="__", extra="ignore")

    home: Path = Field(default_factory=lambda: ClonosSettings().home)
    host: str = "127.0.0.1"
    port: int = Field(8484, ge=0, le=65_535)
    database_url: SecretStr | None = None
    savepoints: str | None = None
    shared_checkpoints: str | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    auth: bool = True
    allowed_hosts: list[str] = Field(default_factory=list)
    allowed_origins: list[str] = Field(default_factory=list)
    replica: str = Field(default_factory=_made_up, min_length=1, max_length=40)
    heartbeat_s: float = Field(15.0, gt=0)
    ready_file: Path | None = None
    reconcile: bool = True
    agent_heartbeat_s: float = Field(1.0, gt=0)
    agent_guarded_heartbeat_s: float = Field(0.3, gt=0)
    agent_lease_s: float = Field(4.0, gt=0)
    limits: Limits = Limits()

    @model_validator(mode="after")
    def _lease_covers_heartbeats(self) -> Self:
        if self.agent_lease_s <= 3 * self.agent_heartbeat_s:
            raise ValueError("agent_lease_s must be more than three times agent_heartbeat_s")
        return self

    @property
    def database(self) -> str:
        """The database's URL, with its secrets: not for logs."""
        if self.database_url is not None:
            return self.database_url.get_secret_value()
        return f"sqlite+aiosqlite:///{self.home / 'control-plane.db'}"

    @property
    def savepoint_location(self) -> str:
        """Where savepoints go that name no folder."""
        return self.savepoints or str(self.home / "savepoints")

    @property
    def admin_token_file(self) -> Path:
        """Where the first token is written, for nobody else to read."""
        return self.home / "admin.token"

    @property
    def scheme(self) -> Literal["http", "https"]:
        """How we are called."""
        return "https" if self.tls_cert else "http"

    def check_exposure(self) -> None:
        """Refuse to be reached from other machines without tokens and TLS.

        Raises:
            SpecError: Naming what is missing.
        """
        if (self.tls_cert is None) != (self.tls_key is None):
            raise SpecError(
                "TLS needs a certificate and its key.",
                hint="set both CLONOS_API__TLS_CERT and CLONOS_API__TLS_KEY, or neither.",
            )
        if is_loopback(self.host):
            return
        missing = [
            what
            for what, there in (
                ("tokens (CLONOS_API__AUTH=true)", self.auth),
                ("TLS (CLONOS_API__TLS_CERT, CLONOS_API__TLS_KEY)", self.tls_cert is not None),
            )
            if not there
        ]
        if missing:
            raise SpecError(
                f"{self.host} can be reached from other machines, and that needs {' and '.join(missing)}.",
                hint="set it, or listen on 127.0.0.1.",
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`. Of names that is known of ``localhost`` only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
