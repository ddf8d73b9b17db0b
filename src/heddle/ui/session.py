"""Logging in: a key becomes a cookie that scripts cannot read."""

import contextlib
import time
from collections import deque
from collections.abc import Callable

from fastapi import Request, Response
from pydantic import Field

from heddle.auth import (
    NOBODY,
    SESSION_COOKIE,
    Caller,
    hash_key,
    is_own_write,
    public_address,
    session_token,
    set_cookie,
)
from heddle.errors import Busy, Forbidden, HeddleError, NotAuthenticated
from heddle.http.routing import (
    AuthenticatorDep,
    RequestModel,
    SettingsDep,
    StateDep,
    StoreDep,
    answer,
    group,
    validate_body,
)
from heddle.http.state import ServerState
from heddle.store.control.keys import SESSION_SECONDS
from heddle.wire import times

router = group("Pages")

_WRONG = "This key is unknown, expired or revoked"


class LoginReq(RequestModel):
    """An API key."""

    key: str = Field(max_length=1000)


class Attempts:
    """Slows down who tries one key after the other; a key is too long to be guessed, so this saves work only."""

    MOST = 10
    SECONDS = 60.0
    MOST_ADDRESSES = 10_000

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._failed: dict[str, deque[float]] = {}

    def check(self, address: str) -> None:
        """Raise Busy while too many attempts from there have failed lately."""
        failed = self._failed.get(address)
        while failed and failed[0] <= self._now() - self.SECONDS:
            failed.popleft()
        if failed and len(failed) >= self.MOST:
            wait = max(1, round(failed[0] + self.SECONDS - self._now()))
            raise Busy(f"Too many attempts to log in; try again in {wait} seconds", retry_after=wait)

    def failed(self, address: str) -> None:
        """Note one more."""
        if len(self._failed) >= self.MOST_ADDRESSES:
            self._failed.clear()
        self._failed.setdefault(address, deque(maxlen=self.MOST)).append(self._now())


_attempts = Attempts()


@router.get("/_ui/session", include_in_schema=False)
async def session(request: Request) -> Response:
    """Who the browser acts for; also right where a link from another site kept the cookie from its first request."""
    caller = request.scope.get("heddle.caller")
    told = caller.abilities if isinstance(caller, Caller) else NOBODY
    return forbid_caching(answer(told))


@router.post("/_ui/session", include_in_schema=False)
async def log_in(
    request: Request, settings: SettingsDep, state: StateDep, store: StoreDep, authenticator: AuthenticatorDep
) -> Response:
    """A new session of a key; raises NotAuthenticated for an unusable one, Busy after too many of them."""
    require_own_page(request)
    given = await validate_body(LoginReq, request)
    if not authenticator.needs_key:
        return forbid_caching(answer(request.scope["heddle.caller"].abilities))
    # It is looked up by its hash: how long that takes says nothing about keys.
    hashed = hash_key(given.key.strip())
    row = await store.keys.find(hashed)
    if row is None or row.problem(times.now(), hashed):
        # Only wrong keys wait: nobody keeps others out, who may come from the same address by way of a proxy.
        address = request.client.host if request.client else ""
        state.tally.count("login.failed", "" if row is None else row.user, _WRONG)
        _attempts.check(address)
        _attempts.failed(address)
        raise NotAuthenticated(_WRONG)
    before = session_token(dict(request.scope["headers"]), "POST")
    if before is not None:
        await store.sessions.end(before)
        authenticator.forget()
    token = await store.sessions.begin(row, times.now())
    response = forbid_caching(answer(Caller.of(row).abilities))
    response.headers["Set-Cookie"] = cookie_header(request, settings.root_path, token, SESSION_SECONDS)
    return response


@router.delete("/_ui/session", include_in_schema=False)
async def log_out(
    request: Request, settings: SettingsDep, state: StateDep, store: StoreDep, authenticator: AuthenticatorDep
) -> Response:
    """End the browser's session; where else to sign out, for who signed in there."""
    require_own_page(request)
    sign_out = None
    token, caller = session_token(dict(request.scope["headers"]), "DELETE"), request.scope.get("heddle.caller")
    if token is not None:
        await store.sessions.end(token)
        authenticator.forget()
        if isinstance(caller, Caller) and caller.key_id is not None:
            await store.audit_log.note(caller.user, "logout", None, {"key": caller.key_id})
            sign_out = await _sign_out_address(request, state, caller.key_id)
    response = forbid_caching(answer({"sign_out": sign_out}))
    response.headers["Set-Cookie"] = cookie_header(request, settings.root_path, "", 0)
    return response


async def _sign_out_address(request: Request, state: ServerState, key_id: str) -> str | None:
    row = await state.store.keys.read(key_id)
    if state.provider is None or row is None or not row.is_person:
        return None
    # Somebody is logged out here, whatever the provider does.
    with contextlib.suppress(HeddleError):
        return await state.provider.sign_out_address(public_address(state.settings, str(request.base_url)))
    return None


def renew_cookie(request: Request, root_path: str) -> str | None:
    """The cookie once more, so that the browser keeps it as long as the server keeps the session; None without one."""
    token = session_token(dict(request.scope["headers"]), "GET")
    caller = request.scope.get("heddle.caller")
    is_of_session = isinstance(caller, Caller) and caller.key_id is not None and token is not None
    return cookie_header(request, root_path, token, SESSION_SECONDS) if is_of_session and token else None


def cookie_header(
    request: Request, path: str, value: str, seconds: int, name: str = SESSION_COOKIE, same_site: str = "Strict"
) -> str:
    """The value of a `Set-Cookie` header, secure where the browser came over https."""
    told = request.headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower()
    return set_cookie(name, value, path, "https" in (request.url.scheme, told), seconds, same_site)


def require_own_page(request: Request) -> None:
    """Raise Forbidden for what no page of this server sends."""
    if not is_own_write(dict(request.scope["headers"])):
        raise Forbidden(
            "Only pages of this server may do this; a proxy in front of it must forward Host or X-Forwarded-Host"
        )


def forbid_caching(response: Response) -> Response:
    """The answer, which nobody keeps."""
    response.headers["Cache-Control"] = "no-store"
    return response
