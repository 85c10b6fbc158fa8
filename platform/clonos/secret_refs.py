"""Secrets by reference: ``${secret:NAME}`` in a job's parameters and Spark configuration.

The reference is what is stored, sent and shown. The agent of the host reads the secret from its own files right before
it starts the driver; it never travels.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

from clonos.errors import SpecError

# No slash and no dot in front: a name is a file's name and nothing more.
_REFERENCE: Final = re.compile(r"\$\{secret:([^}]*)\}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def references(texts: Iterable[str]) -> frozenset[str]:
    """Names of the secrets that these texts refer to.

    Raises:
        SpecError: A reference has no usable name.
    """
    return frozenset(_checked(name) for text in texts for name in _REFERENCE.findall(text))


def resolve(text: str, read: Callable[[str], str]) -> str:
    """The text with each reference replaced by what `read` gives for its name.

    Raises:
        SpecError: A reference has no usable name.
    """
    return _REFERENCE.sub(lambda match: read(_checked(match[1])), text)


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise SpecError(
            f"{name[:40]!r} is no name of a secret.",
            hint="use 1 to 100 of a-z, A-Z, 0-9, dot, _ and -, with a letter or digit in front.",
        )
    return name
