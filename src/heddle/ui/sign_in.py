"""Signing in at an OpenID Connect provider, which becomes a session like that of a key."""

import base64
import re
from typing import Annotated

from fastapi import Depends, Request, Response
from pydantic import Field

from heddle.auth import public_address, read_cookie
from heddle.errors import Forbidden, HeddleError, InvalidRequest, NotAuthenticated
from heddle.http.routing import RequestModel, Service, SettingsDep, StateDep, StoreDep, answer, group, validate_body
from heddle.oidc import Attempt, Provider
from heddle.ui.session import cookie_header, forbid_caching, require_own_page
from heddle.wire import times

router = group("Pages")
_COOKIE = "heddle_sign_in"
_PATH = "/_ui/sign_in"
_SECONDS = 600
_KEPT = re.compile(rb"[A-Za-z0-9_-]{43}\.(?:[A-Za-z0-9_-]{4}){0,700}(?:[A-Za-z0-9_-]{2,3})?")
_PLACE = re.compile(r"/(?![/\\])[!-~]{0,2000}")
ProviderDep = Annotated[Provider | None, Depends(Service("provider"))]


class _KeptOut(Forbidden):
    """An admin revoked the sign-in of somebody."""


class SignInReq(RequestModel):
    """Where to go after it: the path of a page of this server."""

    next: str = Field(default="/", max_length=2001)


@router.post("/_ui/sign_in", include_in_schema=False)
async def begin(request: Request, settings: SettingsDep, provider: ProviderDep) -> Response:
    """Where the browser goes to sign in; raises InvalidRequest where nobody signs in, Unavailable."""
    require_own_page(request)
    given = await validate_body(SignInReq, request)
    if provider is None:
        raise InvalidRequest("Sign-in is off: the setting oidc_issuer is not set")
    place = given.next if _PLACE.fullmatch(given.next) else "/"
    attempt = Attempt()
    url = await provider.address(attempt, _callback(request, settings))
    response = forbid_caching(answer({"url": url}))
    kept = f"{attempt.secret}.{base64.urlsafe_b64encode(place.encode()).decode().rstrip('=')}"
    response.headers["Set-Cookie"] = _cookie(request, settings, kept, _SECONDS)
    return response


@router.get("/_ui/sign_in/callback", include_in_schema=False)
async def finish(
    request: Request, settings: SettingsDep, state: StateDep, store: StoreDep, provider: ProviderDep
) -> Response:
    """Begin the session of whoever comes back from the provider, and lead to the page that was wanted."""
    root = settings.root_path.rstrip("/")
    kept = read_cookie(request.headers.get("cookie", "").encode("latin-1"), _COOKIE, _KEPT) or ""
    secret, _, encoded = kept.partition(".")
    place = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode("ascii", "replace") if encoded else ""
    place = place if _PLACE.fullmatch(place) else f"{root}/"
    session = None
    try:
        if provider is None or not secret:
            raise NotAuthenticated("The sign-in took too long, or was started in another browser")
        person = await provider.finish(Attempt(secret), request.query_params, _callback(request, settings))
        row = await store.keys.sign_in(person.identity, person.user, person.grants)
        if not row.grants and row.revoked_at is None:
            raise Forbidden(f"No group of {row.user} has a role on this server")
        if problem := row.problem(times.now()):
            raise _KeptOut(f"The sign-in of {row.user} {problem}")
        seconds = settings.oidc_hours * 3600
        token = await store.sessions.begin(row, times.now(), seconds * times.SECOND)
        session = cookie_header(request, settings.root_path, token, seconds)
    except HeddleError as error:
        state.tally.count("login.failed", "", error.reason)
        # A fixed word: the page must not show what a link says.
        words = ((_KeptOut, "kept_out"), (Forbidden, "no_role"), (HeddleError, "failed"))
        place = f"{root}/?sign_in={next(word for kind, word in words if isinstance(error, kind))}"
    response = forbid_caching(Response(status_code=303, headers={"Location": place}))
    response.headers.append("Set-Cookie", _cookie(request, settings, "", 0))
    if session is not None:
        response.headers.append("Set-Cookie", session)
    return response


def _callback(request: Request, settings: SettingsDep) -> str:
    return f"{public_address(settings, str(request.base_url))}_ui/sign_in/callback"


def _cookie(request: Request, settings: SettingsDep, value: str, seconds: int) -> str:
    """It must come along when the provider leads back here, so it is lax."""
    path = settings.root_path.rstrip("/") + _PATH
    return cookie_header(request, path, value, seconds, name=_COOKIE, same_site="Lax")
