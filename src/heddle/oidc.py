"""Signing in at a provider of OpenID Connect: authorization code with PKCE (RFC 7636), state and nonce.

What a sign-in needs to remember lies in a cookie of the browser that began it, so that any server can end it.
"""

import asyncio
import base64
import hashlib
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus, urlencode

from heddle.certificates import ssl_context
from heddle.errors import ExtraMissing, NotAuthenticated, Unavailable
from heddle.extras import install_command
from heddle.setting_kinds import read_group_roles
from heddle.settings import Settings
from heddle.wire.jsontypes import Json
from heddle.wire.keys import Grant, merge_grants

EVERYBODY = "*"
_BELIEVED_SECONDS = 600.0
_TIMEOUT_SECONDS = 10.0
_LEEWAY_SECONDS = 60
_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Signatures with public keys: with a shared secret every holder of it could be anybody."""
_FAILURES = "The sign-in failed; try again"


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody whom the provider knows: the identity never changes, the rest may."""

    identity: str
    user: str
    grants: tuple[Grant, ...]


class Attempt:
    """One attempt to sign in; everything that must not be guessed follows from the secret in the browser's cookie."""

    def __init__(self, secret: str | None = None) -> None:
        self.secret = secret or secrets.token_urlsafe(32)

    def derive(self, purpose: str) -> str:
        """The state, the nonce or the PKCE verifier: 43 characters."""
        digest = hashlib.sha256(f"{purpose} {self.secret}".encode()).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")


class Provider:
    """The provider of the settings; raises ExtraMissing without the library."""

    def __init__(self, settings: Settings) -> None:
        try:
            import authlib.oidc.core  # noqa: F401
        except ImportError as error:
            raise ExtraMissing(f"sign-in is not installed: {install_command('oidc')}") from error
        self._settings = settings
        self._roles = read_group_roles(settings.oidc_roles)
        self._found: dict[str, tuple[float, Json]] = {}
        self._asking = asyncio.Lock()

    async def address(self, attempt: Attempt, redirect_uri: str) -> str:
        """Where the browser goes to sign in; raises Unavailable when the provider does not answer."""
        from authlib.oauth2.rfc7636 import create_s256_code_challenge

        asked = {
            "response_type": "code",
            "client_id": self._settings.oidc_client_id,
            "redirect_uri": redirect_uri,
            "scope": self._settings.oidc_scopes,
            "state": attempt.derive("state"),
            "nonce": attempt.derive("nonce"),
            "code_challenge": create_s256_code_challenge(attempt.derive("verifier")),
            "code_challenge_method": "S256",
        }
        return _add_query((await self._metadata())["authorization_endpoint"], asked)

    async def sign_out_address(self, back: str) -> str | None:
        """Where the browser goes to sign out there, too (RP-initiated logout); None where that is not offered."""
        endpoint = (await self._metadata()).get("end_session_endpoint")
        given = {"client_id": self._settings.oidc_client_id, "post_logout_redirect_uri": back}
        return _add_query(endpoint, given) if endpoint else None

    async def finish(self, attempt: Attempt, given: Mapping[str, str], redirect_uri: str) -> Person:
        """Who has signed in, by what the provider sent the browser back with.

        Raises NotAuthenticated for a sign-in that is not this browser's, or not the provider's; Unavailable.
        """
        if not secrets.compare_digest(
            given.get("state", "").encode("utf-8", "replace"), attempt.derive("state").encode()
        ):
            raise NotAuthenticated("The sign-in took too long, or was started in another browser; try again")
        if "error" in given or "code" not in given:
            told = given.get("error_description") or given.get("error", "it returned no code")
            raise NotAuthenticated(f"The provider rejected the sign-in: {told[:200]}")
        claims = await self._claims(attempt, given["code"], redirect_uri)
        user = claims.get(self._settings.oidc_user)
        if not isinstance(user, str) or (self._settings.oidc_user == "email" and claims.get("email_verified") is False):
            user = claims["sub"]
        groups = claims.get(self._settings.oidc_groups)
        named = {group for group in groups if isinstance(group, str)} if isinstance(groups, list) else {groups}
        found = [grant for group in (*named, EVERYBODY) for grant in self._roles.get(str(group), ())]
        return Person(f"{self._settings.oidc_issuer} {claims['sub']}", user[:256], merge_grants(found))

    async def _claims(self, attempt: Attempt, code: str, redirect_uri: str) -> Json:
        """What the provider says of somebody; the token is checked, what it lacks is asked for."""
        from httpx import USE_CLIENT_DEFAULT, AsyncClient, HTTPError

        metadata, settings = await self._metadata(), self._settings
        asked = {"grant_type": "authorization_code", "code": code, "redirect_uri": redirect_uri}
        asked |= {"client_id": settings.oidc_client_id, "code_verifier": attempt.derive("verifier")}
        # RFC 6749, 2.3.1: both are encoded as in a form before they become a user and a password.
        own = quote_plus(settings.oidc_client_id), quote_plus(settings.oidc_client_secret)
        try:
            async with AsyncClient(timeout=_TIMEOUT_SECONDS, verify=await ssl_context()) as client:
                is_public = settings.oidc_client_secret == "none"
                who = USE_CLIENT_DEFAULT if is_public else own
                answered = await client.post(metadata["token_endpoint"], data=asked, auth=who)
                token = answered.json()
                if answered.is_error:
                    told = str(token.get("error_description") or token.get("error"))[:200]
                    raise NotAuthenticated(f"{_FAILURES} (the provider returned: {told})")
                claims = await self._check(token, attempt.derive("nonce"))
                if not {settings.oidc_user, settings.oidc_groups} <= claims.keys() and "userinfo_endpoint" in metadata:
                    bearer = {"authorization": f"Bearer {token['access_token']}"}
                    told = (await client.get(metadata["userinfo_endpoint"], headers=bearer)).raise_for_status().json()
                    if told.get("sub") != claims["sub"]:
                        raise NotAuthenticated(_FAILURES)
                    claims = {**told, **claims}
        except (ValueError, KeyError, AttributeError) as error:
            raise NotAuthenticated(f"{_FAILURES} (the provider's answer is not valid)") from error
        except HTTPError as error:
            raise _unavailable(error) from error
        return claims

    async def _check(self, token: Json, nonce: str) -> Json:
        """The claims of an ID token (OpenID Connect Core, 3.1.3.7); raises NotAuthenticated."""
        from authlib.oidc.core import CodeIDToken
        from joserfc import jwt
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet

        own = self._settings.oidc_client_id
        options = {
            "iss": {"essential": True, "value": (await self._metadata())["issuer"]},
            "aud": {"essential": True, "value": own},
        }
        given = {"nonce": nonce, "client_id": own, "access_token": token.get("access_token")}
        for is_again in (False, True):
            try:
                told: Any = await self._keys(is_again)
                keys = KeySet.import_key_set(told)
                found = jwt.decode(token["id_token"], keys, algorithms=_ALGORITHMS)
                break
            except (JoseError, ValueError) as error:
                # The provider may have changed its keys.
                if is_again:
                    raise NotAuthenticated(f"{_FAILURES} ({error})") from error
        try:
            CodeIDToken(found.claims, found.header, options, given).validate(leeway=_LEEWAY_SECONDS)
        except JoseError as error:
            raise NotAuthenticated(f"{_FAILURES} ({error})") from error
        return dict(found.claims)

    async def _metadata(self) -> Json:
        """What the provider publishes about itself (OpenID Connect Discovery)."""
        issuer = self._settings.oidc_issuer
        found = await self._get(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        if str(found.get("issuer", "")).rstrip("/") != issuer.rstrip("/"):
            raise Unavailable(f"The provider of oidc_issuer has another issuer: {str(found.get('issuer'))[:200]!r}")
        return found

    async def _keys(self, is_again: bool) -> Json:
        return await self._get((await self._metadata())["jwks_uri"], is_again)

    async def _get(self, url: str, is_again: bool = False) -> Json:
        """A JSON object of the provider, believed for a while."""
        from httpx import AsyncClient, HTTPError

        async with self._asking:
            known = self._found.get(url)
            if known is not None and known[0] > time.monotonic() and not is_again:
                return known[1]
            try:
                async with AsyncClient(timeout=_TIMEOUT_SECONDS, verify=await ssl_context()) as client:
                    found = (await client.get(url)).raise_for_status().json()
            except (HTTPError, ValueError) as error:
                raise _unavailable(error) from error
            if not isinstance(found, dict):
                raise Unavailable("The sign-in provider returned an unexpected answer")
            self._found[url] = (time.monotonic() + _BELIEVED_SECONDS, found)
            return found


def _add_query(endpoint: str, given: Mapping[str, str]) -> str:
    return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(given)}"


def _unavailable(error: Exception) -> Unavailable:
    return Unavailable(f"The sign-in provider is not reachable: {type(error).__name__}")
