"""A token endpoint of OpenID Connect for clients (grant ``client_credentials``), with the keys of its tokens."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs

from joserfc import jwt
from joserfc.jwk import RSAKey


@dataclass
class TokenEndpoint:
    """Gives a token to the client `client` with the secret `secret`.

    Attributes:
        url: Address of the token endpoint.
        keys_url: Address of the public keys.
        scopes: The requested scopes, one for each token.
    """

    client: str
    secret: str
    url: str = ""
    keys_url: str = ""
    scopes: list[str] = field(default_factory=list)


@contextmanager
def token_endpoint(client: str, secret: str) -> Iterator[TokenEndpoint]:
    """Serve an endpoint on a free port of this machine."""
    endpoint = TokenEndpoint(client, secret)
    key = RSAKey.generate_key(2048, {"kid": "1", "alg": "RS256", "use": "sig"})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(200, {"keys": [key.as_dict(private=False)]})

        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            given = base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
            if given != f"{client}:{secret}" or form["grant_type"] != ["client_credentials"]:
                self._answer(401, {"error": "invalid_client"})
                return
            endpoint.scopes += form.get("scope", [""])
            now = int(time.time())
            claims = {"iss": "test", "sub": client, "aud": "kafka", "iat": now, "exp": now + 600, "scope": "kafka"}
            token = jwt.encode({"alg": "RS256", "kid": "1"}, claims, key)
            self._answer(200, {"access_token": token, "token_type": "Bearer", "expires_in": 600})

        def _answer(self, status: int, body: dict[str, object]) -> None:
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    base = f"http://127.0.0.1:{server.server_port}"
    endpoint.url, endpoint.keys_url = f"{base}/token", f"{base}/keys"
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()
