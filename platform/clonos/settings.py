"""Settings from environment variables (`CLONOS_…`, nested with `__`), with defaults.

``CLONOS_KAFKA__BOOTSTRAP_SERVERS=broker:9092`` selects an external Kafka. ``CLONOS_HOME`` is the directory of
checkpoints and of the embedded broker's data.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Literal, Self

from pydantic import BaseModel, Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
_ADDRESS: Final = r"^(https?://.+)?$"
SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]


class KafkaSettings(BaseModel):
    """Addresses and credentials of Kafka."""

    bootstrap_servers: str = ""
    """Comma-separated ``host:port``. Empty: the embedded broker of `Settings.home`."""
    security_protocol: SecurityProtocol = "PLAINTEXT"
    """Protocol of the connection."""
    sasl_mechanism: SaslMechanism | None = None
    """Mechanism of the login; required with a SASL protocol."""
    sasl_username: str | None = None
    """User of the login."""
    sasl_password: SecretStr | None = None
    """Password of the login."""
    sasl_oauth_token_url: str = Field("", pattern=_ADDRESS)
    """Token endpoint of the OpenID Connect provider, for OAUTHBEARER."""
    sasl_oauth_client_id: str = ""
    """Id of the client at the provider."""
    sasl_oauth_client_secret: SecretStr | None = None
    """Secret of the client."""
    sasl_oauth_scope: str = ""
    """Scope of the requested tokens."""
    sasl_oauth_extensions: dict[str, str] = Field(default_factory=dict)
    """SASL extensions that the cluster requires, such as ``logicalCluster``."""
    ssl_ca_location: Path | None = None
    """PEM file with trusted certificate authorities."""
    ssl_certificate_location: Path | None = None
    """PEM file with the client certificate, for mutual TLS."""
    ssl_key_location: Path | None = None
    """PEM file with the client key, for mutual TLS."""
    ssl_key_password: SecretStr | None = None
    """Password of the client key."""

    @model_validator(mode="after")
    def _check_oauth(self) -> Self:
        if self.sasl_mechanism == "OAUTHBEARER" and not (
            self.sasl_oauth_token_url and self.sasl_oauth_client_id and self.sasl_oauth_client_secret
        ):
            names = "…__SASL_OAUTH_TOKEN_URL, …__SASL_OAUTH_CLIENT_ID and …__SASL_OAUTH_CLIENT_SECRET"
            raise ValueError(f"the mechanism OAUTHBEARER needs {names}")
        return self

    def secrets(self) -> dict[str, str]:
        """Return the secrets that are set, in plain text: field → value."""
        fields = ((name, getattr(self, name)) for name in type(self).model_fields)
        return {name: value.get_secret_value() for name, value in fields if isinstance(value, SecretStr)}


class RegistrySettings(BaseModel):
    """Address and credentials of a Schema Registry."""

    url: str = ""
    """Address without credentials; comma-separated for several."""
    username: str | None = None
    """User of basic authentication."""
    password: SecretStr | None = None
    """Password of basic authentication."""
    ssl_ca_location: Path | None = None
    """PEM file with trusted certificate authorities; default: this machine's."""
    ssl_certificate_location: Path | None = None
    """PEM file with the client certificate, for mutual TLS."""
    ssl_key_location: Path | None = None
    """PEM file with the client key, for mutual TLS."""
    ssl_key_password: SecretStr | None = None
    """Password of the client key."""
    timeout_s: float = Field(5.0, gt=0)
    """Seconds for one request."""


class TraceSettings(BaseModel):
    """Settings for the export of OpenTelemetry traces."""

    endpoint: str = Field("", pattern=_ADDRESS)
    """OTLP/HTTP address with its path, such as ``http://collector:4318/v1/traces``; empty: disabled."""
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    """Headers of each request, such as an API key."""
    timeout_s: float = Field(5.0, gt=0)
    """Seconds for one request."""
    queue_size: int = Field(2048, ge=1)
    """Maximum number of spans that wait for export; further spans are dropped."""


class LineageSettings(BaseModel):
    """Settings for the export of OpenLineage events."""

    url: str = Field("", pattern=_ADDRESS)
    """Address of the OpenLineage backend; empty: disabled."""
    namespace: str = "clonos"
    """OpenLineage namespace of the jobs."""
    api_key: SecretStr | None = None
    """API key of the backend."""
    timeout_s: float = Field(5.0, gt=0)
    """Seconds for one request."""


def _default_home() -> Path:
    return Path.home() / ".clonos"


def _default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "clonos"


class Settings(BaseSettings):
    """All settings of one process."""

    model_config = SettingsConfigDict(env_prefix="CLONOS_", env_nested_delimiter="__", extra="ignore")

    home: Path = Field(default_factory=_default_home)
    """Directory of checkpoints, logs and the embedded broker's data."""
    scratch: Path | None = None
    """Directory of temporary files of drivers that `clonos run` starts; default ``scratch`` in `home`. It needs room
    for the rows of an epoch and Spark's blocks.
    """
    cache: Path = Field(default_factory=_default_cache)
    """Directory of downloads, such as the jars."""
    ivy_settings: Path | None = None
    """Ivy settings file, for a mirror of Maven Central."""
    log_format: Literal["console", "json"] = "console"
    """Readable log lines (``console``) or JSON lines (``json``)."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Minimum level of log lines."""
    api_allow_http: bool = False
    """Send a token to a control plane on another machine also without TLS."""
    kafka: KafkaSettings = Field(default_factory=KafkaSettings)
    """Address and credentials of Kafka."""
    registry: RegistrySettings = Field(default_factory=RegistrySettings)
    """Address and credentials of the Schema Registry."""
    traces: TraceSettings = Field(default_factory=TraceSettings)
    """Export of OpenTelemetry traces."""
    lineage: LineageSettings = Field(default_factory=LineageSettings)
    """Export of OpenLineage events."""
