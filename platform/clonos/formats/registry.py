"""The Schema Registry, as the driver and as tasks use it.

A schema *by id* never changes, so tasks look it up and keep it. "The latest version of a subject" does change:
only the driver asks for it, once, and the answer is *pinned* in the epochs' plans, so that a replay by another
process decodes and encodes what the first attempt did.
"""

from __future__ import annotations

import functools
import os
import ssl
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from urllib.parse import urlparse

import xxhash

from clonos.errors import RegistryUnavailable, SpecError
from clonos.settings import RegistrySettings, Settings

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import RegisteredSchema, Schema, SchemaRegistryClient

T = TypeVar("T")

_UNKNOWN_SCHEMA: Final = {40400, 40403}  # the second is the protocol's, the first that of Confluent's mock
_NO_SUBJECT: Final = {40400, 40401, 40402}
_REFUSED: Final = {409, 422}
MAGIC: Final = 0
HEADER: Final = 5


class UnknownSchema(Exception):
    """The registry knows no schema with this id."""


class SchemaSource(Protocol):
    """Where a task gets the schema with an id from."""

    def __call__(self, number: int, *, serialized: bool = False) -> Schema:
        """The schema with the id `number`.

        Raises:
            UnknownSchema: There is none.
        """


class Pins:
    """What the driver asked of registries, so that a replay need not ask again.

    Args:
        registry: The registry of formats that name none.
        pinned: The answers to repeat: those of the plan of an epoch in doubt.
    """

    def __init__(self, registry: str, pinned: Mapping[str, int]) -> None:
        self.registry = registry
        self.answers: dict[str, int] = {}
        self._pinned = pinned

    def ask(self, question: str, registry: str, answer: Callable[[], int], *, text: str = "") -> int:
        """The id of a schema: pinned, or `answer` and from now on pinned; `text` is part of the question."""
        key = f"{registry} {question}" + (f" {xxhash.xxh3_64_hexdigest(text.encode())}" if text else "")
        if key not in self.answers:
            self.answers[key] = self._pinned[key] if key in self._pinned else answer()
        return self.answers[key]

    def url(self, own: str | None, *, format_name: str) -> str:
        """The address of a format's registry.

        Raises:
            SpecError: There is none, or it holds a password.
        """
        url = own or self.registry
        if not url:
            raise SpecError(
                f"{format_name} needs a Schema Registry.", hint="pass registry=…, or set CLONOS_REGISTRY__URL."
            )
        if urlparse(url).username:
            raise SpecError(
                "The registry's address holds credentials.",
                hint="set CLONOS_REGISTRY__USERNAME and CLONOS_REGISTRY__PASSWORD: an address is part of the plan.",
            )
        return url


class Registry:
    """One Schema Registry.

    Args:
        url: Its address.
        settings: Who we are, whom we trust, how long we wait.
    """

    def __init__(self, url: str, settings: RegistrySettings) -> None:
        self._url = url
        self._client = _client(url, settings)

    def schema(self, number: int, *, serialized: bool = False) -> Schema:
        """The schema with an id (Protobuf: as text, or `serialized` as a descriptor in base64).

        Raises:
            UnknownSchema: The registry has none.
            RegistryUnavailable: It did not answer, or refused us.
        """
        fmt = "serialized" if serialized else None
        schema: Schema = self._ask(
            lambda: self._client.get_schema(number, fmt=fmt), _UNKNOWN_SCHEMA, f"The id {number}"
        )
        return schema

    def version(self, subject: str, version: int | None) -> RegisteredSchema:
        """A version of a subject; None: the latest.

        Raises:
            UnknownSchema: No such subject or version.
            RegistryUnavailable: It did not answer, or refused us.
        """
        if version is None:
            self._client.clear_latest_caches()  # type: ignore[no-untyped-call]  # the client would remember it for as long as the process lives
        found: RegisteredSchema = self._ask(
            lambda: (
                self._client.get_latest_version(subject)
                if version is None
                else self._client.get_version(subject, version)
            ),
            _NO_SUBJECT,
            f"The subject {subject!r}, version {version or 'latest'},",
        )
        return found

    def register(self, subject: str, schema: Schema) -> RegisteredSchema:
        """Register `schema`; where it is registered already this only looks it up.

        Raises:
            SpecError: The registry refuses it: not valid, or not compatible.
            RegistryUnavailable: It did not answer, or refused us.
        """
        self._ask(lambda: self._client.register_schema(subject, schema), set(), f"The subject {subject!r}")
        return self.lookup(subject, schema)

    def lookup(self, subject: str, schema: Schema) -> RegisteredSchema:
        """The version of `subject` that `schema` is.

        Raises:
            UnknownSchema: It is not registered there.
            RegistryUnavailable: It did not answer, or refused us.
        """
        found: RegisteredSchema = self._ask(
            lambda: self._client.lookup_schema(subject, schema),
            _NO_SUBJECT | _UNKNOWN_SCHEMA,
            f"The schema in the subject {subject!r}",
        )
        return found

    def _ask(self, call: Callable[[], T], unknown: set[int], what: str) -> T:
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            return call()
        except SchemaRegistryError as error:
            if error.error_code in unknown:
                raise UnknownSchema(f"{what} is not in the registry {self._url}.") from error
            if error.http_status_code in _REFUSED:
                raise SpecError(f"The registry refuses: {what}: {error.error_message}") from error
            hint = (
                "set CLONOS_REGISTRY__USERNAME and CLONOS_REGISTRY__PASSWORD."
                if error.http_status_code in {401, 403}
                else ""
            )
            raise RegistryUnavailable(
                f"The Schema Registry {self._url} answered {error.http_status_code}: {error.error_message}.", hint=hint
            ) from error
        except Exception as error:
            # Its HTTP library is the client's own choice; whatever it raises, no answer came.
            raise RegistryUnavailable(
                f"The Schema Registry {self._url} did not answer: {type(error).__name__}: {error}."
            ) from error


@functools.cache
def registry_at(url: str) -> Registry:
    """This process's client of the registry at `url`; credentials come from the environment."""
    return Registry(url, Settings().registry)


def registry_environment() -> dict[str, str]:
    """What Python workers on other hosts must have in their environment to reach a registry."""
    return {name: value for name, value in os.environ.items() if name.startswith("CLONOS_REGISTRY__")}


def new_schema(text: str, kind: str, references: list[Any] | None = None) -> Schema:
    """A schema as the registry's protocol has it; `kind` is ``AVRO``, ``PROTOBUF`` or ``JSON``."""
    with needed("a Schema Registry"):
        from confluent_kafka.schema_registry import Schema
    return Schema(text, kind, references or [])


def header(number: int) -> bytes:
    """The start of a record in the registry's wire format."""
    return bytes([MAGIC]) + number.to_bytes(4, "big")


def split(value: bytes) -> tuple[int, bytes]:
    """A record in the registry's wire format: the schema's id, and the rest.

    Raises:
        ValueError: It is none.
    """
    if len(value) < HEADER or value[0] != MAGIC:
        raise ValueError("does not start with the registry's magic byte and a schema id")
    return int.from_bytes(value[1:HEADER], "big"), value[HEADER:]


class needed:  # noqa: N801  # used as a context manager only
    """Says which extra to install where an import fails."""

    def __init__(self, for_what: str) -> None:
        self._for_what = for_what

    def __enter__(self) -> None:
        """Nothing to do before."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        """Turn a failed import into a typed error."""
        if isinstance(error, ImportError):
            raise SpecError(f"{self._for_what} needs more packages: {error}.", hint="install clonos[formats].")


def _client(url: str, settings: RegistrySettings) -> SchemaRegistryClient:
    with needed("A Schema Registry"):
        from confluent_kafka.schema_registry import SchemaRegistryClient
    config: dict[str, Any] = {
        "url": url,
        "timeout": settings.timeout_s,
        # A short outage passes here; a longer one fails the epoch, which is replayed with growing pauses.
        "max.retries": 2,
        "retries.wait.ms": 50,
        "retries.max.wait.ms": 500,
    }
    if settings.username:
        password = settings.password.get_secret_value() if settings.password else ""
        config["basic.auth.user.info"] = f"{settings.username}:{password}"
    trusted = _trusted(settings)
    if trusted:
        config["ssl.ca.location"] = trusted
    elif any(one.strip().startswith("https") for one in url.split(",")):
        raise RegistryUnavailable(
            "This machine names no authorities to trust.",
            hint="set CLONOS_REGISTRY__SSL_CA_LOCATION to a PEM file.",
        )
    if settings.ssl_certificate_location:
        config["ssl.certificate.location"] = str(settings.ssl_certificate_location)
    if settings.ssl_key_location:
        config["ssl.key.location"] = str(settings.ssl_key_location)
    if settings.ssl_key_password:
        config["ssl.key.password"] = settings.ssl_key_password.get_secret_value()
    return SchemaRegistryClient.new_client(config)


def _trusted(settings: RegistrySettings) -> str | None:
    """The authorities to trust: the settings', else this machine's, never those that a Python package brings.

    The client would fall back to the package certifi, of which releases before 2026.10.19 trust a compromised
    root (docs/adr/0013).
    """
    if settings.ssl_ca_location:
        return str(settings.ssl_ca_location)
    machine = ssl.get_default_verify_paths()  # heeds SSL_CERT_FILE and SSL_CERT_DIR
    return machine.cafile or machine.capath
