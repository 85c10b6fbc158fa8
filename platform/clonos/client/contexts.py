"""Contexts: the control planes that the user has logged in to, and the choice between them.

They are in ``clonos/contexts.json`` below ``XDG_CONFIG_HOME``, which only the user can read. The name `LOCAL` stands
for the platform of ``clonos up``, whose credentials are below ``CLONOS_HOME``.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ValidationError

from clonos.client.credentials import DEFAULT_API, Credentials
from clonos.documents import explain
from clonos.errors import SpecError
from clonos.private_folders import create_private, read_private, write_private
from clonos.settings import Settings

LOCAL: Final = "local"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class _File(BaseModel):
    """The content of the user's file."""

    current: str
    contexts: dict[str, Credentials]


@dataclass
class Contexts:
    """The contexts of a user."""

    current: str = LOCAL
    """Name of the context that commands use; `LOCAL`: the platform of ``clonos up``."""
    stored: dict[str, Credentials] = field(default_factory=dict)
    """Credentials by the name of their context."""

    @staticmethod
    def file() -> Path:
        """Path of the user's file, which need not exist."""
        base = os.environ.get("XDG_CONFIG_HOME")
        return (Path(base) if base else Path.home() / ".config") / "clonos" / "contexts.json"

    @classmethod
    def read(cls) -> Contexts:
        """Read the user's file, if there is one; `SpecError` if others may read it, or its format is invalid."""
        file = cls.file()
        text = read_private(file)
        if text is None:
            return cls()
        try:
            read = _File.model_validate_json(text)
        except ValidationError as error:
            raise SpecError(
                f"{file} is not readable: {explain(error)}.",
                hint="remove it, and log in again with `clonos login URL`.",
            ) from error
        return cls(read.current, read.contexts)

    @classmethod
    @contextmanager
    def changing(cls) -> Iterator[Contexts]:
        """Yield the contexts of the user's file, and write them at the end unless an exception is raised; others wait.

        Example:
            >>> with Contexts.changing() as contexts:  # doctest: +SKIP
            ...     contexts.current = "prod"
        """
        file = cls.file()
        create_private(file.parent)
        # The file itself is replaced by each write, so it cannot hold the lock.
        with os.fdopen(os.open(file.with_suffix(".lock"), os.O_WRONLY | os.O_CREAT, 0o600)) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            contexts = cls.read()
            yield contexts
            contexts.write()

    def write(self) -> None:
        """Write the user's file with mode 0600."""
        file = self.file()
        create_private(file.parent)
        contexts = _File(current=self.current, contexts=dict(sorted(self.stored.items())))
        write_private(file, contexts.model_dump_json(indent=2))

    def get(self, name: str) -> Credentials:
        """Return the credentials of a context; raises `SpecError` for an unknown one."""
        try:
            return self.stored[name]
        except KeyError:
            known = ", ".join(sorted(self.stored)) or "none"
            raise SpecError(
                f"There is no context {name!r}; there are: {known}.",
                kept="nothing was sent.",
                hint="log in with `clonos login URL`, or choose one of `clonos context ls`.",
            ) from None


def check_name(name: str) -> str:
    """Return `name` if it can be the name of a new context; raise `SpecError` if not."""
    if name == LOCAL:
        raise SpecError(
            f"The context {LOCAL!r} is the platform of `clonos up`.",
            kept="nothing was stored.",
            hint="choose another name with --context.",
        )
    if not _NAME.fullmatch(name):
        raise SpecError(
            f"{name!r} cannot be the name of a context.",
            kept="nothing was stored.",
            hint="use up to 64 letters, digits, dots, underscores and hyphens.",
        )
    return name


def resolve(
    settings: Settings, *, api: str | None = None, token: str | None = None, context: str | None = None
) -> Credentials:
    """Choose the control plane and the token that a command uses.

    `api` and `token` come first. Then: the context `context`; the credentials file of a ``CLONOS_HOME`` that is set;
    the current context; the credentials file of the default ``CLONOS_HOME``; port 8484 of this machine. A stored token
    is sent to its own address only. ``CLONOS_API_CA`` comes before a stored file.

    Raises:
        SpecError: There is no such context, it has another address than `api`, or a file with tokens is unusable.
    """
    address = api.rstrip("/") if api is not None else None
    if context is not None:
        chosen = _named(settings, context)
        _require_same(address, context, chosen)
    elif address is not None:
        chosen = Credentials(address) if token is not None else _at(settings, address)
    else:
        chosen = _default(settings)
    authorities = os.environ.get("CLONOS_API_CA")
    return replace(
        chosen, token=token if token is not None else chosen.token, ca=Path(authorities) if authorities else chosen.ca
    )


def _named(settings: Settings, context: str) -> Credentials:
    """Return the credentials of a context; `LOCAL` need not have any."""
    if context != LOCAL:
        return Contexts.read().get(context)
    return Credentials.read(settings.home) or Credentials(DEFAULT_API)


def _require_same(address: str | None, context: str, chosen: Credentials) -> None:
    """Refuse two control planes: a command for one of them must not silently reach the other."""
    if address not in (None, chosen.api):
        raise SpecError(
            f"The address is {address} (--api or CLONOS_API), and the context {context} has {chosen.api}.",
            kept="nothing was sent.",
            hint="leave out one of both, or unset CLONOS_API or CLONOS_CONTEXT.",
        )


def _at(settings: Settings, address: str) -> Credentials:
    """Return the stored credentials of an address; without such, none."""
    contexts = Contexts.read()
    # The current context first: two contexts may have the same address and different tokens.
    names = sorted(contexts.stored, key=lambda name: name != contexts.current)
    entries = [Credentials.read(settings.home), *(contexts.stored[name] for name in names)]
    return next((entry for entry in entries if entry is not None and entry.api == address), Credentials(address))


def _default(settings: Settings) -> Credentials:
    contexts, local = Contexts.read(), Credentials.read(settings.home)
    home_is_set = "home" in settings.model_fields_set
    if contexts.current == LOCAL or (local is not None and home_is_set):
        return local or Credentials(DEFAULT_API)
    return contexts.get(contexts.current)
