"""References to secrets, ``${secret:NAME}``, in a job's parameters and Spark configuration.

Only the reference is stored, sent and shown. The agent of the host reads the secret from its own files before it starts
the driver. The secret never leaves the host.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

from clonos.errors import SpecError

# The agent writes this label into the specification of the driver, which has the secrets instead of the references:
# ``params.NAME`` and ``spark_conf.NAME``, separated by commas.
RESOLVED_LABEL: Final = "clonos/resolved"
# A name is a plain file name: no slash, and no dot at the start.
_REFERENCE: Final = re.compile(r"\$\{secret:([^}]*)\}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def references(texts: Iterable[str]) -> frozenset[str]:
    """Return the names of the secrets that `texts` refer to; `SpecError` for an invalid name."""
    return frozenset(_checked(name) for text in texts for name in _REFERENCE.findall(text))


def resolve(text: str, read: Callable[[str], str]) -> str:
    """Replace each reference in `text` by the secret that `read` returns; `SpecError` for an invalid name."""
    return _REFERENCE.sub(lambda match: read(_checked(match[1])), text)


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise SpecError(
            f"{name[:40]!r} is not a valid name of a secret.",
            hint="use 1 to 100 of a-z, A-Z, 0-9, dot, _ and -, starting with a letter or digit.",
        )
    return name
