"""Clients of the Schema Registry, for the driver and for tasks.

The schema of an *id* never changes, so tasks look it up and cache it. The latest version of a subject changes: only the
driver requests it, once, and *pins* the answer in the epochs' plans. So a replay in another process decodes and encodes
as the first attempt did.
"""

from __future__ import annotations

import contextlib
import functools
import os
import ssl
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from urllib.parse import urlparse

import xxhash

from clonos.errors import RegistryRefused, RegistryUnavailable, SpecError
from clonos.settings import RegistrySettings, Settings

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import RegisteredSchema, Schema, SchemaRegistryClient

T = TypeVar("T")

_UNKNOWN_SCHEMA: Final = {40400, 40403}  # the second is the protocol's, the first is Confluent's mock's
_NO_SUBJECT: Final = {40400, 40401, 40402}
_REFUSED: Final = {409, 422}
MAGIC: Final = 0
HEADER: Final = 5
_MAGIC_OF_GUID: Final = 1
_GUID_HEADER: Final = 17
SchemaKey = int | uuid.UUID
"""What identifies a schema in the registry: its id, or its GUID."""


class UnknownSchema(Exception):
    """The registry has no schema with this id."""


def named(number: SchemaKey) -> str:
    """How messages name a schema; a replay must name it in the same way."""
    return f"The {'GUID' if isinstance(number, uuid.UUID) else 'id'} {number}"


class SchemaSource(Protocol):
    """A function that looks up the schema of an id, for a task."""

    def __call__(self, number: SchemaKey, *, serialized: bool = False) -> Schema:
        """Return the schema with the id or GUID `number`; `serialized` as in `Registry.schema`."""


class Pins:
    """The pinned answers of the Schema Registry. A replay uses them instead of new requests.

    Args:
        registry: URL of the registry for formats without an own URL.
        pinned: The answers in the plan of an epoch in doubt.
    """

    def __init__(self, registry: str, pinned: Mapping[str, int]) -> None:
        self.registry = registry
        self.answers: dict[str, int] = {}  # request → schema id, of all requests so far
        self._pinned = pinned

    def ask(self, question: str, registry: str, answer: Callable[[], int], *, text: str = "") -> int:
        """Return the id of a schema: the pinned answer to `question`, or the result of `answer`, which is then pinned.

        The question is such as ``register orders-value``; `text` is a schema that is part of it.
        """
        key = f"{registry} {question}" + (f" {xxhash.xxh3_64_hexdigest(text.encode())}" if text else "")
        if key not in self.answers:
            self.answers[key] = self._pinned[key] if key in self._pinned else answer()
        return self.answers[key]

    def register(self, subject: str, registry: str, kind: str, text: str) -> int:
        """Return the pinned or registered id of the schema `text` in `subject`.

        A new schema is registered; `kind` is ``AVRO``, ``PROTOBUF`` or ``JSON``.
        """

        def register() -> int:
            return int(registry_at(registry).register(subject, new_schema(text, kind)).schema_id or 0)

        return self.ask(f"register {subject}", registry, register, text=text)

    def url(self, own: str | None, *, format_name: str) -> str:
        """Return a format's `own` URL, or the job's; `SpecError` if there is none, or it holds credentials."""
        url = own or self.registry
        if not url:
            raise SpecError(
                f"{format_name} needs a Schema Registry.", hint="pass registry=…, or set CLONOS_REGISTRY__URL."
            )
        if urlparse(url).username:
            raise SpecError(
                "The registry's URL holds credentials.",
                hint="set CLONOS_REGISTRY__USERNAME and CLONOS_REGISTRY__PASSWORD: the URL is part of the plan.",
            )
        return url


class Registry:
    """A client of one Schema Registry.

    A call raises `UnknownSchema` if the registry lacks the schema, `SpecError` if it refuses the schema (invalid or
    incompatible), `RegistryRefused` if it refuses the client, and `RegistryUnavailable` if it does not answer.
    """

    def __init__(self, url: str, settings: RegistrySettings) -> None:
        self._url = url
        self._client = _client(url, settings)

    def schema(self, number: SchemaKey, *, serialized: bool = False) -> Schema:
        """Return the schema with an id or GUID; of Protobuf as text, or `serialized` as base64."""
        fmt = "serialized" if serialized else None

        def look_up() -> Schema:
            if isinstance(number, uuid.UUID):
                return self._client.get_schema_by_guid(str(number), fmt=fmt)
            return self._client.get_schema(number, fmt=fmt)

        schema: Schema = self._ask(look_up, _UNKNOWN_SCHEMA, named(number))
        return schema

    def version(self, subject: str, version: int | None) -> RegisteredSchema:
        """Return the registered schema of a version of `subject`; None: the latest version."""
        if version is None:
            self._client.clear_latest_caches()  # type: ignore[no-untyped-call]  # the client caches it until the process exits
        registered: RegisteredSchema = self._ask(
            lambda: (
                self._client.get_latest_version(subject)
                if version is None
                else self._client.get_version(subject, version)
            ),
            _NO_SUBJECT,
            f"The subject {subject!r}, version {version or 'latest'},",
        )
        return registered

    def register(self, subject: str, schema: Schema) -> RegisteredSchema:
        """Register `schema`, or look it up if it is registered already."""
        self._ask(lambda: self._client.register_schema(subject, schema), set(), f"The subject {subject!r}")
        return self.lookup(subject, schema)

    def lookup(self, subject: str, schema: Schema) -> RegisteredSchema:
        """Return the version and id under which `schema` is registered in `subject`."""
        registered: RegisteredSchema = self._ask(
            lambda: self._client.lookup_schema(subject, schema),
            _NO_SUBJECT | _UNKNOWN_SCHEMA,
            f"The schema in the subject {subject!r}",
        )
        return registered

    def _ask(self, call: Callable[[], T], unknown: set[int], subject: str) -> T:
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            return call()
        except SchemaRegistryError as error:
            if error.error_code in unknown:
                raise UnknownSchema(f"{subject} is not in the registry {self._url}.") from error
            if error.http_status_code in _REFUSED:
                raise SpecError(f"The registry refuses the request: {subject}: {error.error_message}") from error
            answer = f"The Schema Registry {self._url} answered {error.http_status_code}: {error.error_message}."
            if error.http_status_code in {401, 403}:
                raise RegistryRefused(answer) from error
            raise RegistryUnavailable(answer) from error
        except Exception as error:
            # The client chooses its HTTP library: any other exception means that no response came.
            raise RegistryUnavailable(
                f"The Schema Registry {self._url} did not answer: {type(error).__name__}: {error}."
            ) from error


@functools.cache
def registry_at(url: str) -> Registry:
    """Return this process's client of the registry at `url`. The credentials come from the environment."""
    return Registry(url, Settings().registry)


def registry_environment() -> dict[str, str]:
    """Return the variables ``CLONOS_REGISTRY__…``, which Python workers on other hosts need for a registry."""
    return {name: value for name, value in os.environ.items() if name.startswith("CLONOS_REGISTRY__")}


def new_schema(text: str, kind: str, references: list[Any] | None = None) -> Schema:
    """Create a schema object for the registry's client: of the kind ``AVRO``, ``PROTOBUF`` or ``JSON``."""
    with needed("a Schema Registry"):
        from confluent_kafka.schema_registry import Schema
    return Schema(text, kind, references or [])


def header(number: int) -> bytes:
    """Return the first bytes of a record in the registry's wire format: magic byte and schema id."""
    return bytes([MAGIC]) + number.to_bytes(4, "big")


def split(value: bytes) -> tuple[SchemaKey, bytes]:
    """Split a record in the registry's wire format into schema id or GUID, and the rest; else `ValueError`."""
    if len(value) >= HEADER and value[0] == MAGIC:
        return int.from_bytes(value[1:HEADER], "big"), value[HEADER:]
    if len(value) >= _GUID_HEADER and value[0] == _MAGIC_OF_GUID:
        return uuid.UUID(bytes=value[1:_GUID_HEADER]), value[_GUID_HEADER:]
    raise ValueError("does not start with the registry's magic byte and a schema id, and has no header with one")


@contextlib.contextmanager
def needed(feature: str) -> Iterator[None]:
    """Turn a failed import of the block into a `SpecError`: `feature` needs the extra ``clonos[formats]``."""
    try:
        yield
    except ImportError as error:
        raise SpecError(
            f"{feature} needs more packages: {error}.", hint="run pip install '/path/to/clone[formats]'."
        ) from error


def _client(url: str, settings: RegistrySettings) -> SchemaRegistryClient:
    with needed("A Schema Registry"):
        from confluent_kafka.schema_registry import SchemaRegistryClient
    config: dict[str, Any] = {
        "url": url,
        "timeout": settings.timeout_s,
        # The client retries during a short outage. A longer one fails the epoch, which is replayed with backoff.
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
    elif any(address.strip().startswith("https") for address in url.split(",")):
        raise RegistryRefused(
            "This machine has no trusted certificate authorities.",
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
    """Return the trusted certificate authorities: from the settings, otherwise from the machine.

    The client would fall back to the package certifi, whose releases before 2026.10.19 trust a compromised root
    (docs/adr/0013).
    """
    if settings.ssl_ca_location:
        return str(settings.ssl_ca_location)
    machine = ssl.get_default_verify_paths()  # reads SSL_CERT_FILE and SSL_CERT_DIR
    return machine.cafile or machine.capath
