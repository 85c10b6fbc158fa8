"""Settings, from the environment (`CLONOS_…`, nested with `__`) over defaults.

``CLONOS_KAFKA__BOOTSTRAP_SERVERS=broker:9092`` points everything at an external Kafka;
``CLONOS_HOME`` is where jobs keep checkpoints and the embedded broker its data.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
_ADDRESS: Final = r"^(https?://.+)?$"
SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


class KafkaSettings(BaseModel):
    """How to reach Kafka: the brokers and, where they ask for it, who we are.

    Attributes:
        bootstrap_servers: Comma-separated ``host:port``. Empty: the embedded broker of `home`.
        ssl_ca_location: PEM file with the authorities to trust.
        ssl_certificate_location: PEM file with our certificate, for mutual TLS.
        ssl_key_location: PEM file with our key, for mutual TLS.
    """

    bootstrap_servers: str = ""
    security_protocol: SecurityProtocol = "PLAINTEXT"
    sasl_mechanism: SaslMechanism | None = None
    sasl_username: str | None = None
    sasl_password: SecretStr | None = None
    ssl_ca_location: Path | None = None
    ssl_certificate_location: Path | None = None
    ssl_key_location: Path | None = None
    ssl_key_password: SecretStr | None = None


class RegistrySettings(BaseModel):
    """How to reach a Schema Registry.

    Attributes:
        url: Its address, without credentials; comma-separated for several.
        username: For basic authentication, with `password`.
        ssl_ca_location: PEM file with the authorities to trust; default those of this machine.
        ssl_certificate_location: PEM file with our certificate, for mutual TLS.
        ssl_key_location: PEM file with our key, for mutual TLS.
        timeout_s: Seconds for one request.
    """

    url: str = ""
    username: str | None = None
    password: SecretStr | None = None
    ssl_ca_location: Path | None = None
    ssl_certificate_location: Path | None = None
    ssl_key_location: Path | None = None
    ssl_key_password: SecretStr | None = None
    timeout_s: float = Field(5.0, gt=0)


class TraceSettings(BaseModel):
    """Where OpenTelemetry traces go.

    Attributes:
        endpoint: OTLP over HTTP, with its path, such as ``http://collector:4318/v1/traces``; empty: there are none.
        headers: Sent with each request, for who asks for a key.
        timeout_s: Seconds for one request.
        kept: Spans that wait to be sent; more are lost.
    """

    endpoint: str = Field("", pattern=_ADDRESS)
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    timeout_s: float = Field(5.0, gt=0)
    kept: int = Field(2048, ge=1)


class LineageSettings(BaseModel):
    """Where OpenLineage events go.

    Attributes:
        url: Of the backend; empty: they go nowhere.
        namespace: Of the jobs.
        timeout_s: Seconds for one request.
    """

    url: str = Field("", pattern=_ADDRESS)
    namespace: str = "clonos"
    api_key: SecretStr | None = None
    timeout_s: float = Field(5.0, gt=0)


def _default_home() -> Path:
    return Path.home() / ".clonos"


def _default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "clonos"


class Settings(BaseSettings):
    """All settings of one process.

    Attributes:
        home: Everything Clonos writes for its user: checkpoints, the embedded broker, logs.
        cache: What can be fetched again: the jars.
        ivy_settings: An Ivy settings file, for users behind a mirror of Maven Central.
        log_format: Log lines for people (``console``) or for machines (``json``).
        log_level: Log lines of less than this are left out.
    """

    model_config = SettingsConfigDict(env_prefix="CLONOS_", env_nested_delimiter="__", extra="ignore")

    home: Path = Field(default_factory=_default_home)
    cache: Path = Field(default_factory=_default_cache)
    ivy_settings: Path | None = None
    log_format: Literal["console", "json"] = "console"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    kafka: KafkaSettings = Field(default_factory=KafkaSettings)
    registry: RegistrySettings = Field(default_factory=RegistrySettings)
    traces: TraceSettings = Field(default_factory=TraceSettings)
    lineage: LineageSettings = Field(default_factory=LineageSettings)
