"""Recognising callers: every way to send a key, bindings, scopes, and how soon a revoked key is refused."""

import asyncio
import base64
from collections.abc import AsyncIterator, MutableMapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from heddle.auth import ADDRESS, LOCAL, Authenticator, Caller, Grant, Scope, api_key, hash_key
from heddle.errors import Forbidden, InvalidRequest, NotAuthenticated
from heddle.http.state import EventStreams

KEY = "heddle-" + "0123456789abcdef" * 4
BASIC = b"Basic " + base64.b64encode(f"api:{KEY}".encode())


@dataclass(frozen=True)
class Row:
    """A stored key."""

    id: str = "k1"
    user: str = "ann"
    grants: tuple[Grant, ...] = (Grant.parse("editor"),)
    trouble: str | None = None
    is_person: bool = False

    def problem(self, at: int, hashed: str) -> str | None:
        """Why it cannot be used."""
        assert at > 1_000_000 and hashed
        return self.trouble


class Rows:
    """A key store in memory that counts how often it is asked."""

    def __init__(self) -> None:
        self.rows = {hash_key(KEY): Row()}
        self.asked = 0
        self.noted: list[tuple[str, str]] = []

    async def find(self, hashed: str) -> Row | None:
        self.asked += 1
        return self.rows.get(hashed)

    async def any_usable(self) -> bool:
        return any(row.trouble is None for row in self.rows.values())

    async def used(self, uses: dict[str, tuple[int, str]]) -> None:
        self.noted += [(key, address) for key, (_, address) in uses.items()]


@pytest.mark.parametrize(
    "headers",
    [
        {b"authorization": BASIC},
        {b"authorization": b"basic " + base64.b64encode(f"anyone:{KEY}".encode())},
        {b"authorization": b"Bearer " + KEY.encode()},
        {b"authorization": b"bearer  " + KEY.encode()},
        {b"wandb-api-key": KEY.encode()},
        {b"authorization": KEY.encode()},
    ],
)
def test_a_key_travels_in_every_known_way(headers: dict[bytes, bytes]) -> None:
    assert api_key(headers) == KEY
    assert (
        asyncio.run(Authenticator(Rows(), needs_key=True, sessions=Sessions(None)).authenticate(headers)).user == "ann"
    )


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({}, "requires an API key"),
        ({b"authorization": b"Bearer "}, "requires an API key"),
        ({b"authorization": b"Basic ???"}, "not valid base64"),
        ({b"authorization": b"Basic \xff\xfe"}, "not valid base64"),
        ({b"authorization": b"Digest x"}, "scheme is not supported"),
        ({b"authorization": b"Bearer heddle-unknown"}, "not known to this server"),
    ],
)
def test_nobody_is_recognised_and_the_reason_is_said(headers: dict[bytes, bytes], why: str) -> None:
    with pytest.raises(NotAuthenticated, match=why) as refused:
        asyncio.run(Authenticator(Rows(), needs_key=True, sessions=Sessions(None)).authenticate(headers))
    assert refused.value.headers == {"WWW-Authenticate": 'Basic realm="heddle"'}


class Sessions:
    """A store of one session."""

    def __init__(self, row: Row | None) -> None:
        self.row = row

    async def find(self, hashed: str, at: int) -> Row | None:
        assert at > 0
        return self.row if hashed == hash_key("token") else None


OWN = {b"x-heddle-ui": b"1", b"host": b"heddle:8470", b"origin": b"http://heddle:8470"}
COOKIE = {b"cookie": b"other=1; heddle_session=token"}


@pytest.mark.parametrize(
    ("headers", "method", "counts"),
    [
        ({}, "GET", True),
        ({}, "HEAD", True),
        ({b"sec-fetch-site": b"none"}, "GET", True),
        ({b"sec-fetch-site": b"same-site"}, "GET", False),
        ({b"sec-fetch-site": b"cross-site"}, "GET", False),
        ({}, "POST", False),
        ({}, "OPTIONS", False),
        (OWN, "POST", True),
        (OWN, "DELETE", True),
        (OWN | {b"origin": b"HTTP://HEDDLE:8470"}, "POST", True),
        (OWN | {b"origin": b"http://heddle:8471"}, "POST", False),
        (OWN | {b"origin": b""}, "POST", False),
        (OWN | {b"sec-fetch-site": b"cross-site"}, "POST", False),
        ({b"x-heddle-ui": b"1", b"sec-fetch-site": b"same-origin"}, "PUT", True),
    ],
)
def test_a_session_counts_for_pages_of_this_server(headers: dict[bytes, bytes], method: str, counts: bool) -> None:
    gate = Authenticator(Rows(), needs_key=True, sessions=Sessions(Row()))
    recognised = gate.authenticate(COOKIE | headers, method)
    if counts:
        assert asyncio.run(recognised).user == "ann"
    else:
        with pytest.raises(NotAuthenticated, match="requires an API key"):
            asyncio.run(recognised)


def test_a_session_is_worth_what_its_key_is() -> None:
    for row, why in ((Row(trouble="was revoked"), "was revoked"), (None, "session has ended")):
        with pytest.raises(NotAuthenticated, match=why):
            asyncio.run(Authenticator(Rows(), needs_key=True, sessions=Sessions(row)).authenticate(COOKIE))
    gate = Authenticator(Rows(), needs_key=True, sessions=Sessions(Row()))
    for cookie in (b"heddle_session=", b"heddle_session=other", b"\xff\xfe=;;;", b"heddle_sessio=token"):
        with pytest.raises(NotAuthenticated):
            asyncio.run(gate.authenticate({b"cookie": cookie}))
    with pytest.raises(NotAuthenticated, match="not known to this server"):
        asyncio.run(gate.authenticate(COOKIE | {b"authorization": b"Bearer heddle-unknown"}))


def test_who_has_no_key_learns_how_the_first_is_made() -> None:
    rows = Rows()
    rows.rows = {}
    gate = Authenticator(rows, needs_key=True, sessions=Sessions(None))
    for headers in ({}, {b"authorization": BASIC}):
        with pytest.raises(NotAuthenticated, match="heddle keys create"):
            asyncio.run(gate.authenticate(headers))
    rows.rows = {hash_key(KEY): Row()}
    with pytest.raises(NotAuthenticated) as refused:
        asyncio.run(Authenticator(rows, needs_key=True, sessions=Sessions(None)).authenticate({}))
    assert "heddle keys create" not in refused.value.reason


def test_without_auth_everybody_is_the_local_user_whatever_they_send() -> None:
    gate = Authenticator(Rows(), needs_key=False, sessions=Sessions(None))
    for headers in ({}, {b"authorization": BASIC}, {b"authorization": b"Basic ???"}):
        assert asyncio.run(gate.authenticate(headers)) is LOCAL


def test_the_store_is_asked_once_while_its_answer_is_believed() -> None:
    rows = Rows()
    gate = Authenticator(rows, needs_key=True, sessions=Sessions(None))

    async def many() -> None:
        ADDRESS.set("192.0.2.1")
        for _ in range(100):
            await gate.authenticate({b"authorization": BASIC})
        await gate.note_use()
        await gate.note_use()

    asyncio.run(many())
    assert rows.asked == 1
    assert rows.noted == [("k1", "192.0.2.1")]


def test_a_revoked_key_is_refused_once_the_old_answer_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Rows()
    gate = Authenticator(rows, needs_key=True, sessions=Sessions(None))
    now = 1000.0
    monkeypatch.setattr("heddle.auth.time.monotonic", lambda: now)
    assert asyncio.run(gate.authenticate({b"authorization": BASIC})).user == "ann"
    rows.rows[hash_key(KEY)] = replace(Row(), trouble="The key was revoked")
    now += 1.0
    with pytest.raises(NotAuthenticated, match="was revoked"):
        asyncio.run(gate.authenticate({b"authorization": BASIC}))


def test_what_was_asked_before_a_key_was_revoked_is_not_believed() -> None:
    class Late(Rows):
        """The key is revoked between the read and its answer."""

        async def find(self, hashed: str) -> Row | None:
            found = await super().find(hashed)
            self.rows[hashed] = replace(Row(), trouble="was revoked")
            gate.forget()
            return found

    gate = Authenticator(Late(), needs_key=True, sessions=Sessions(None))
    assert asyncio.run(gate.authenticate({b"authorization": BASIC})).user == "ann"
    with pytest.raises(NotAuthenticated, match="was revoked"):
        asyncio.run(gate.authenticate({b"authorization": BASIC}))


def caller(*grants: str) -> Caller:
    """Somebody with roles."""
    return Caller("ann", tuple(map(Grant.parse, grants)))


def test_scopes_admin_includes_the_others_and_write_is_not_read() -> None:
    writer = caller("write")
    assert [writer.has(scope) for scope in Scope] == [False, True, True, False, False]
    assert [caller("admin").has(scope) for scope in Scope] == [True] * 5
    with pytest.raises(Forbidden, match="requires a key with scope 'read'; the key of user 'ann' has: write"):
        writer.require(Scope.READ)


def test_a_binding_bounds_what_is_reached() -> None:
    of_project, of_entity = caller("editor:team/one"), caller("editor:team")
    projects = ("team/one", "team/two", "team2/one", "tea/m")
    assert [of_project.reaches(project) for project in projects] == [True, False, False, False]
    assert [of_entity.reaches(project) for project in projects] == [True, True, False, False]
    assert [of_project.reaches_entity(entity) for entity in ("team", "other")] == [True, False]
    assert (of_project.project, of_entity.project, of_entity.default_entity) == ("team/one", None, "team")
    with pytest.raises(Forbidden, match="bound to team/one and cannot access 'team/two'"):
        of_project.open("team/two")


def test_roles_count_in_their_projects_only() -> None:
    several = caller("editor:team/one", "viewer:team", "admin:other/two")
    writing, deleting = several.require(Scope.WRITE), several.require(Scope.DELETE)
    assert writing.open("team/one") and writing.open("other/two") and several.open("team/three")
    with pytest.raises(
        Forbidden, match="requires the scope 'write' in 'team/three'; the key of user 'ann' has: viewer"
    ):
        writing.open("team/three")
    with pytest.raises(Forbidden, match="requires the scope 'delete' in 'team/one'; the key of user 'ann' has: editor"):
        deleting.open("team/one")
    assert [deleting.reaches(project) for project in ("team/one", "other/two", "third/p")] == [False, True, False]
    assert [several.may_read(project) for project in ("team/three", "third/p")] == [True, False]
    # A scope here does not help there: both are needed in one project.
    both = caller("write:team/one", "viewer:team/two").require(Scope.WRITE).require(Scope.READ)
    assert not both.reaches("team/one") and not both.reaches("team/two")
    assert (several.is_bound, several.is_operator, several.project, several.default_entity) == (
        True,
        False,
        None,
        "ann",
    )


def test_who_administers_one_project_administers_no_server() -> None:
    mixed = caller("viewer", "admin:team/one")
    assert not mixed.is_operator and not mixed.is_bound
    assert mixed.require(Scope.ADMIN).is_bound and caller("admin").require(Scope.ADMIN).is_operator
    with pytest.raises(Forbidden, match="not bound to a project"):
        mixed.require_operator("Storage")


@pytest.mark.parametrize("text", ["editor", "viewer:team", "editor+delete:team/my project", "write", "annotate+delete"])
def test_a_grant_is_its_text(text: str) -> None:
    assert str(Grant.parse(text)) == text


@pytest.mark.parametrize("text", ["", "owner", "editor:team/one/two", "viewer:/one", "editor+", ":team"])
def test_what_is_no_grant(text: str) -> None:
    with pytest.raises(InvalidRequest):
        Grant.parse(text)


def test_what_a_job_kept_of_its_caller_is_read_in_both_forms() -> None:
    ann = Caller("ann", (Grant.parse("editor:team/one"), Grant.parse("admin:b")), "k")
    assert Caller.from_json(ann.to_json()) == ann
    told = {"user": "bob", "scopes": ["read", "write"], "entity": None, "project": "a/b", "key_id": None}
    assert list(map(str, Caller.from_json(told).grants)) == ["editor+delete:a/b"]


@pytest.mark.parametrize("then", [Row(trouble="was revoked"), Row(grants=(Grant.parse("viewer:team/x"),))])
def test_an_event_stream_ends_when_its_reader_may_do_less(then: Row) -> None:
    """At its next event, which is not sent."""
    keys = Rows()
    authenticator = Authenticator(keys, True, None)  # type: ignore[arg-type]
    scope = {"type": "http", "method": "GET", "headers": [(b"authorization", BASIC)]}
    sent: list[bytes] = []

    async def events() -> AsyncIterator[bytes]:
        yield b"first"
        keys.rows = {hash_key(KEY): then}
        authenticator.forget()
        yield b"second"

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message.get("body", b""))

    async def read() -> None:
        caller = await authenticator.authenticate(dict(scope["headers"]))  # type: ignore[arg-type]
        streams = EventStreams(authenticator, 1, lambda _: None)
        await streams.answer(caller, events())(scope | {"heddle.caller": caller}, asyncio.Event().wait, send)  # type: ignore[arg-type]

    asyncio.run(read())
    assert b"".join(sent) == b"first"
