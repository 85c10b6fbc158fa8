"""An OpenID Connect provider as a process: ``oidc-provider-mock``, which signs tokens, and a check of PKCE around it.

``python tests/support/oidc_provider.py USERS`` prints its address; USERS is JSON: subject → claims. It ends with its
standard input.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from io import BytesIO
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Any]


@contextmanager
def provider(users: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The address of a provider with these users."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", __file__, json.dumps(users)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        assert address, "the provider did not start"
        yield address
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


def sign_in(address: str, user: str) -> str:
    """Sign a user in at the provider's page `address`; the address to which the browser is then sent."""
    answer = httpx.post(address, data={"sub": user}, trust_env=False, timeout=20.0)
    assert answer.status_code in (302, 303), answer.text
    return answer.headers["location"]


class RequirePkce:
    """Refuses a code without the verifier whose challenge the authorization request had."""

    def __init__(self, app: Wsgi) -> None:
        self._app = app
        self._challenges: dict[str, str] = {}

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        if environ["PATH_INFO"] == "/oauth2/token":
            body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            environ["wsgi.input"] = BytesIO(body)
            form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
            digest = sha256(form.get("code_verifier", "").encode()).digest()
            if urlsafe_b64encode(digest).decode().rstrip("=") != self._challenges.pop(form.get("code", ""), None):
                start_response("400 Bad Request", [("Content-Type", "application/json")])
                return [b'{"error": "invalid_grant"}']
            return self._app(environ, start_response)
        query = parse_qs(environ.get("QUERY_STRING", ""))

        def remember(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            location = parse_qs(urlsplit(dict(headers).get("Location", "")).query)
            if "code" in location:
                assert query["code_challenge_method"] == ["S256"]
                self._challenges[location["code"][0]] = query["code_challenge"][0]
            return start_response(status, headers, *more)

        return self._app(environ, remember)


def main(users: Mapping[str, Mapping[str, Any]]) -> None:
    import werkzeug.serving
    from oidc_provider_mock import User, app

    known = [User(sub=sub, claims=dict(claims)) for sub, claims in users.items()]
    wrapped = RequirePkce(app(require_nonce=True, user_claims=known))
    server = werkzeug.serving.make_server("127.0.0.1", 0, wrapped, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
