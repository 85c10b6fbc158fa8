"""Hides secrets in responses, logs and Spark configuration.

Secrets reach a job by reference (`clonos.jobs.secret_refs`), so this module is the second line of defence. It detects
secrets by name (a value under `password`) and by shape (a Clonos token, a private key, a password in a URL).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

HIDDEN: Final = "[redacted]"

_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SECRET_WORDS: Final = frozenset(
    {
        "password", "passwd", "pwd", "passphrase", "passcode", "secret", "secrets", "token",
        "credential", "credentials", "jaas", "authorization", "cookie", "apikey", "accesskey",
        "secretkey", "privatekey", "signature", "sas",
    }
)  # fmt: skip
_SECRET_SUFFIXES: Final = ("password", "passwd", "passphrase")  # PGPASSWORD, keypassphrase
_KEY_QUALIFIERS: Final = frozenset(
    {"api", "access", "private", "secret", "signing", "encryption", "account", "shared", "master", "ssh", "ssl"}
)
# Names with these last words describe the use of a secret and do not hold it.
_DESCRIPTIVE_WORDS: Final = frozenset(
    {
        "enabled", "mechanism", "type", "provider", "timeout", "ms", "interval", "length", "count", "max", "min", "ttl",
        "expiry", "id",
    }
)  # fmt: skip

_REFERENCE: Final = r"\$\{secret:[A-Za-z0-9][A-Za-z0-9._-]*\}"
_SECRET_PATTERNS: Final[Sequence[tuple[re.Pattern[str], str]]] = (
    (re.compile(r"\b(clonos_[A-Za-z0-9]{1,32}_)[A-Za-z0-9_-]{16,}"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9+/=._~-]{8,}"), rf"\1 {HIDDEN}"),
    (re.compile(r"-----BEGIN ([A-Z ]*PRIVATE KEY)-----.*?(?:-----END \1-----|\Z)", re.DOTALL), HIDDEN),
    (re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]{0,31}://[^\s/:@]{0,256}:)[^\s/@]{1,512}@"), rf"\1{HIDDEN}@"),
    (re.compile(r"\bAKIA[0-9A-Z]{16}\b"), HIDDEN),
)
# `password=…`, `"api_key": "…"`: a name and its sign; then a value, in quotes or up to the next space. A name
# matches whole and never from its middle; otherwise long words (a digest, base64) would take quadratic time.
_NAME_AND_SIGN: Final = re.compile(r"""(?<![A-Za-z0-9_.-])(?P<name>[A-Za-z0-9_.-]++)["']?\s{0,3}[=:]\s{0,3}""")
# Values have a maximum length, so that the time for a line of names and signs stays proportional to its length.
_VALUE: Final = re.compile(
    r"""(?P<quote>["'])(?:\\.|(?!(?P=quote))[^\\]){0,16384}(?P=quote)?|[^\s,;&"'}\]]{1,16384}""", re.DOTALL
)


@lru_cache(maxsize=4096)  # log lines repeat the same few names
def looks_secret(name: str) -> bool:
    """Whether a field with this name holds a secret, such as ``sasl.password`` or ``AWS_SECRET_ACCESS_KEY``."""
    words = [word.lower() for word in _WORDS.findall(name)]
    if not words or (words[-1] in _DESCRIPTIVE_WORDS and len(words) > 1):
        return False
    if not _SECRET_WORDS.isdisjoint(words) or any(word.endswith(_SECRET_SUFFIXES) for word in words):
        return True
    return any(before in _KEY_QUALIFIERS and word in ("key", "keys") for before, word in itertools.pairwise(words))


def is_reference(text: str) -> bool:
    """Whether a value is only a reference to a secret (``${secret:NAME}``), which may be shown."""
    return re.fullmatch(_REFERENCE, text) is not None


def redact(value: Any) -> Any:
    """Return a copy of `value` without secrets: fields with a secret's name, and texts that look like one."""
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, Mapping):
        return {name: _redact_under(str(name), item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [redact(item) for item in value]
    return value


def redact_text(text: str) -> str:
    """`text` in which everything that looks like a secret is hidden."""
    for pattern, replacement in _SECRET_PATTERNS:
        text = pattern.sub(replacement, text)
    parts: list[str] = []
    done = 0
    for match in _NAME_AND_SIGN.finditer(text):
        if match.start() < done or text.startswith("${", match.start() - 2) or not looks_secret(match["name"]):
            continue
        value = _VALUE.match(text, match.end())
        if value is None:
            continue
        quote = value["quote"] or ""
        bare = value[0].strip(quote) if quote else value[0]
        fencing_token = len(bare) < 10 and bare.isdigit() and "pass" not in match["name"].lower()
        if bare and not fencing_token and not bare.startswith(("${secret:", HIDDEN)):
            parts += [text[done : match.end()], quote, HIDDEN, quote]
            done = value.end()
    return "".join([*parts, text[done:]])


def _redact_under(name: str, value: Any) -> Any:
    # Only texts: a number is a fencing token, and a mapping or list has names of its own (`token: {"id": …}`).
    if not isinstance(value, str) or not looks_secret(name):
        return redact(value)
    return value if not value or is_reference(value) else HIDDEN
