"""Sign-in through an OpenID Connect provider: authorization code flow with PKCE, state and nonce.

Authlib and joserfc do the protocol. Nothing of the provider's tokens is stored: the verified claims give a subject and
a role: the browser gets a session of Clonos with it.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import ssl
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import httpx
import msgspec
from authlib.common.errors import AuthlibBaseError
from authlib.oauth2.rfc6749.parameters import prepare_grant_uri
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet
from pydantic import ValidationError

from clonos.errors import Forbidden, IdentityProviderUnavailable, Unauthenticated
from clonos.resources.service import Role, TokenCreate
from clonos_api.settings import Oidc

_TIMEOUT_S: Final = 10.0
_METADATA_S: Final = 3600.0
_KEYS_S: Final = 600.0
_KEYS_AGAIN_S: Final = 10.0  # a provider that has new keys is asked again, but not by each wrong token
_LEEWAY_S: Final = 60
# No symmetric ones: with these, a key of the provider could be taken for a shared secret.
_ALGORITHMS: Final = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
_ENDPOINTS: Final = ("authorization_endpoint", "token_endpoint", "jwks_uri")
_ROLES: Final = (Role.ADMIN, Role.OPERATOR, Role.VIEWER)


class ProviderMetadata(msgspec.Struct):
    """The fields of a provider's metadata that a sign-in needs (OpenID Connect Discovery 1.0, section 3)."""

    issuer: str  # identity of the provider
    authorization_endpoint: str  # address to which browsers are sent
    token_endpoint: str  # address that exchanges a code for tokens
    jwks_uri: str  # address of the keys of signatures


@dataclass(frozen=True)
class Attempt:
    """One sign-in in progress. The browser keeps it in a cookie that scripts and other sites cannot read.

    `clonos_api.store.sign_in_codes` knows the cookies that are valid.
    """

    next: str  # the page that the user wanted to see
    # Repeated by the provider in its redirect, which other sites could forge otherwise.
    state: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    # Repeated in the ID token, so that a token of another sign-in is refused.
    nonce: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    # PKCE's secret, without which the code of the redirect is worthless.
    verifier: str = field(default_factory=lambda: secrets.token_urlsafe(48))

    def encode(self) -> str:
        """Return the attempt as the value of a cookie."""
        return urlsafe_b64encode(json.dumps(asdict(self)).encode()).decode()

    @classmethod
    def decode(cls, cookie: str, state: str) -> Attempt:
        """Return the attempt of a cookie; `Unauthenticated` if it is none, or has another state than the redirect."""
        try:
            attempt = cls(**json.loads(urlsafe_b64decode(cookie)))
            if hmac.compare_digest(attempt.state.encode(), state.encode()):
                return attempt
        except (ValueError, TypeError, AttributeError):
            pass
        raise not_begun()


def not_begun() -> Unauthenticated:
    """Return the error of a redirect without a valid cookie."""
    return Unauthenticated(
        "This sign-in was not begun in this browser, is over, or was begun more than ten minutes ago.",
        hint="sign in again.",
    )


@dataclass(frozen=True)
class Identity:
    """Who signed in: the subject, and the highest role of its groups."""

    subject: str
    role: Role


class IdentityProvider:
    """The provider of the settings. Its metadata and keys are cached."""

    def __init__(self, settings: Oidc) -> None:
        self.settings = settings
        self._tls = ssl.create_default_context(cafile=settings.ca)
        self._metadata: ProviderMetadata | None = None
        self._metadata_until = 0.0
        self._keys: KeySet | None = None
        self._keys_at = 0.0
        self._reading = asyncio.Lock()

    async def authorization_url(self, attempt: Attempt, redirect_uri: str) -> str:
        """Return the address of the provider to which the browser is sent."""
        metadata = await self._read_metadata()
        address = prepare_grant_uri(
            metadata.authorization_endpoint,
            self.settings.client_id,
            "code",
            redirect_uri=redirect_uri,
            scope=self.settings.scopes,
            state=attempt.state,
            nonce=attempt.nonce,
            code_challenge=create_s256_code_challenge(attempt.verifier),
            code_challenge_method="S256",
        )
        return str(address)

    async def identify(self, attempt: Attempt, code: str, redirect_uri: str) -> Identity:
        """Exchange the code of a redirect for an ID token, verify it, and return who signed in.

        Raises:
            Unauthenticated: The provider refuses the code, or the token is not valid for this sign-in.
            Forbidden: The user has no role here.
            IdentityProviderUnavailable: The provider does not answer.
        """
        metadata = await self._read_metadata()
        client_id, secret = self.settings.client_id, self.settings.secret()
        auth = httpx.BasicAuth(client_id, secret) if secret else httpx.USE_CLIENT_DEFAULT
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "code_verifier": attempt.verifier,
            "redirect_uri": redirect_uri,
            **({} if secret else {"client_id": client_id}),
        }
        try:
            async with self._client() as client:
                response = await client.post(metadata.token_endpoint, data=form, auth=auth)
            if response.is_server_error:
                response.raise_for_status()
            tokens = response.json()
        except httpx.HTTPError as error:
            raise _unavailable(error) from error
        except ValueError as error:
            raise Unauthenticated("The identity provider refused the sign-in.", hint="sign in again.") from error
        if not response.is_success or not isinstance(tokens, dict):
            raise Unauthenticated("The identity provider refused the sign-in.", hint="sign in again.")
        return self._identity(await self._verified(tokens, attempt, metadata))

    async def _verified(
        self, tokens: Mapping[str, Any], attempt: Attempt, metadata: ProviderMetadata
    ) -> dict[str, Any]:
        text = str(tokens.get("id_token", ""))
        try:
            try:
                decoded = jwt.decode(text, await self._read_keys(metadata, _KEYS_S), algorithms=_ALGORITHMS)
            except (JoseError, ValueError):  # perhaps of a new key
                decoded = jwt.decode(text, await self._read_keys(metadata, _KEYS_AGAIN_S), algorithms=_ALGORITHMS)
            claims = CodeIDToken(
                decoded.claims,
                decoded.header,
                options={
                    "iss": {"essential": True, "value": self.settings.issuer},
                    "aud": {"essential": True, "value": self.settings.client_id},
                },
                params={
                    "nonce": attempt.nonce,
                    "client_id": self.settings.client_id,
                    "access_token": tokens.get("access_token"),
                },
            )
            claims.validate(leeway=_LEEWAY_S)
        except (JoseError, AuthlibBaseError, ValueError) as error:
            raise Unauthenticated("The identity provider's token is not valid.", hint="sign in again.") from error
        return dict(claims)

    def _identity(self, claims: Mapping[str, Any]) -> Identity:
        settings = self.settings
        subject = claims.get(settings.subject_claim)
        unverified = settings.subject_claim == "email" and claims.get("email_verified") is not True
        if not isinstance(subject, str) or unverified:
            raise Forbidden(
                f"The identity provider names no {'verified ' if unverified else ''}{settings.subject_claim} of this "
                "user.",
                hint="an admin can choose another claim (CLONOS_API__OIDC__SUBJECT_CLAIM).",
            )
        groups = claims.get(settings.roles_claim)
        names = {groups} if isinstance(groups, str) else {str(name) for name in groups or []}
        granted = {settings.roles[name] for name in names & settings.roles.keys()}
        role = next((role for role in _ROLES if role in granted), None)
        if role is None:
            raise Forbidden(f"{subject} has no role here.", hint="ask an admin for a group of CLONOS_API__OIDC__ROLES.")
        try:
            TokenCreate(name="oidc", role=role, subject=subject)
        except ValidationError as error:
            raise Forbidden("The name of this user cannot be a subject: it is too long or not printable.") from error
        return Identity(subject, role)

    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(timeout=_TIMEOUT_S, verify=self._tls, trust_env=False)

    async def _read_metadata(self) -> ProviderMetadata:
        async with self._reading:
            if self._metadata is None or time.monotonic() >= self._metadata_until:
                address = f"{self.settings.issuer.rstrip('/')}/.well-known/openid-configuration"
                try:
                    metadata = msgspec.convert(await self._get(address), ProviderMetadata)
                except msgspec.ValidationError as error:
                    raise IdentityProviderUnavailable(
                        f"The identity provider's metadata is not valid: {error}"
                    ) from error
                if metadata.issuer != self.settings.issuer:
                    raise IdentityProviderUnavailable("The identity provider is not the issuer of the settings.")
                for name in _ENDPOINTS:
                    if not self.settings.accepts(getattr(metadata, name)):
                        raise IdentityProviderUnavailable(f"The identity provider's {name} is not an https address.")
                self._metadata, self._metadata_until = metadata, time.monotonic() + _METADATA_S
            return self._metadata

    async def _read_keys(self, metadata: ProviderMetadata, oldest_s: float) -> KeySet:
        async with self._reading:
            if self._keys is None or time.monotonic() - self._keys_at >= oldest_s:
                try:
                    self._keys = KeySet.import_key_set(await self._get(metadata.jwks_uri))  # type: ignore[arg-type]
                except (JoseError, KeyError) as error:
                    raise _unavailable(error) from error
                self._keys_at = time.monotonic()
            return self._keys

    async def _get(self, address: str) -> dict[str, Any]:
        try:
            async with self._client() as client:
                answer = (await client.get(address)).raise_for_status().json()
        except (httpx.HTTPError, ValueError) as error:
            raise _unavailable(error) from error
        if not isinstance(answer, dict):
            raise IdentityProviderUnavailable("The identity provider's answer is not a JSON object.")
        return answer


def _unavailable(error: Exception) -> IdentityProviderUnavailable:
    return IdentityProviderUnavailable(f"The identity provider does not answer as it should ({type(error).__name__}).")
