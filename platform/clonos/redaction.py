"""Nothing secret in what is shown: answers, logs, command lines, Spark configuration.

Secrets reach a job by reference (`clonos.secret_refs`), so there should be none to hide; this is the second line. It
goes by names (a value under `password` is hidden) and by shapes (a token of ours, a private key, a password in an
address).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
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
_GLUED: Final = ("password", "passwd", "passphrase")  # PGPASSWORD, keypassphrase
_KEY_OF: Final = frozenset(
    {"api", "access", "private", "secret", "signing", "encryption", "account", "shared", "master", "ssh", "ssl"}
)
# Names that end like this say how a secret is used, not what it is.
_ABOUT: Final = frozenset(
    {
        "enabled", "mechanism", "type", "provider", "timeout", "ms", "interval", "length", "count", "max", "min", "ttl",
        "expiry", "id",
    }
)  # fmt: skip

_REFERENCE: Final = r"\$\{secret:[A-Za-z0-9][A-Za-z0-9._-]*\}"
_SHAPES: Final[Sequence[tuple[re.Pattern[str], str]]] = (
    (re.compile(r"\b(clonos_[A-Za-z0-9]{1,32}_)[A-Za-z0-9_-]{16,}"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9+/=._~-]{8,}"), rf"\1 {HIDDEN}"),
    (re.compile(r"-----BEGIN ([A-Z ]*PRIVATE KEY)-----.*?(?:-----END \1-----|\Z)", re.DOTALL), HIDDEN),
    (re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]{0,31}://[^\s/:@]{0,256}:)[^\s/@]{1,512}@"), rf"\1{HIDDEN}@"),
    (re.compile(r"\bAKIA[0-9A-Z]{16}\b"), HIDDEN),
)
# `password=…`, `"api_key": "…"`: a name and its sign; then a value, in quotes or up to the next space. A name is taken
# whole and never tried from its middle, or long words (a digest, base64) would cost the square of their length.
_NAMED: Final = re.compile(r"""(?<![A-Za-z0-9_.-])(?P<name>[A-Za-z0-9_.-]++)["']?\s{0,3}[=:]\s{0,3}""")
# So long at the most: a line that is nothing but names and signs is looked through in proportion to its length.
_VALUE: Final = re.compile(
    r"""(?P<quote>["'])(?:\\.|(?!(?P=quote))[^\\]){0,16384}(?P=quote)?|[^\s,;&"'}\]]{1,16384}""", re.DOTALL
)


@lru_cache(maxsize=4096)  # log lines have the same few names again and again
def looks_secret(name: str) -> bool:
    """Whether a value under this name is one to hide: ``sasl.password``, ``apiKey``, ``AWS_SECRET_ACCESS_KEY``."""
    words = [word.lower() for word in _WORDS.findall(name)]
    if not words or (words[-1] in _ABOUT and len(words) > 1):
        return False
    if not _SECRET_WORDS.isdisjoint(words) or any(word.endswith(_GLUED) for word in words):
        return True
    return any(before in _KEY_OF and word in ("key", "keys") for before, word in itertools.pairwise(words))


def is_reference(text: str) -> bool:
    """Whether a value is nothing but a reference to a secret, which may be shown."""
    return re.fullmatch(_REFERENCE, text) is not None


def redact(value: Any) -> Any:
    """The same with secrets hidden: in mappings what has a secret's name, in texts what looks like one."""
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, Mapping):
        return {name: _redact_under(str(name), item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [redact(item) for item in value]
    return value


def redact_text(text: str) -> str:
    """A text with what looks like a secret hidden."""
    for shape, shown in _SHAPES:
        text = shape.sub(shown, text)
    parts: list[str] = []
    done = 0
    for match in _NAMED.finditer(text):
        if match.start() < done or text.startswith("${", match.start() - 2) or not looks_secret(match["name"]):
            continue
        value = _VALUE.match(text, match.end())
        if value is None:
            continue
        quote = value["quote"] or ""
        bare = value[0].strip(quote) if quote else value[0]
        fencing = len(bare) < 10 and bare.isdigit() and "pass" not in match["name"].lower()
        if bare and not fencing and not bare.startswith(("${secret:", HIDDEN)):
            parts += [text[done : match.end()], quote, HIDDEN, quote]
            done = value.end()
    return "".join([*parts, text[done:]])


def redact_argv(argv: Iterable[str]) -> list[str]:
    """A command line with the secrets hidden that follow an option or an equals sign."""
    shown: list[str] = []
    hide_next = False
    for word in argv:
        if hide_next and not word.startswith("-"):
            shown.append(word if is_reference(word) else HIDDEN)
        else:
            shown.append(redact_text(word))
        hide_next = word.startswith("-") and "=" not in word and looks_secret(word)
    return shown


def _redact_under(name: str, value: Any) -> Any:
    # Only texts: a number is a fencing token, and a mapping or list has names of its own (`token: {"id": …}`).
    if not isinstance(value, str) or not looks_secret(name):
        return redact(value)
    return value if not value or is_reference(value) else HIDDEN
