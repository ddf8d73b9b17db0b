"""Keys, people and their sessions, on SQLite and on PostgreSQL: what is refused, what ends, what comes again."""

import asyncio

import pytest

from heddle.errors import InvalidRequest, NotFound
from heddle.store.control.keys import MOST_GRANTS, SESSION_SECONDS
from heddle.wire import times
from heddle.wire.keys import Authority, Grant, hash_key
from tests.support.postgres import postgres
from tests.support.servers import Two, two

__all__ = ["postgres", "two"]

VIEWER, EDITOR = (Grant.parse("viewer"),), (Grant.parse("editor:team"),)


def test_a_secret_is_made_once_and_rotates(two: Two) -> None:
    async def main() -> None:
        async with two.open() as (one, _):
            for _ in range(2):
                await one.keys.ensure("a secret that was given", "admin", VIEWER, "start")
            first = await one.keys.find(hash_key("a secret that was given"))
            assert first is not None and (first.user, first.grants) == ("admin", VIEWER)
            key, made = await one.keys.create("ada", EDITOR, "admin", 3600)
            assert made.expires_at == made.created_at + 3600 * times.SECOND
            new, rotated = await one.keys.rotate(made.id[:30], 7200, None, "admin")
            assert rotated.previous_until == made.expires_at, "an old secret does not outlive its end"
            assert rotated.expires_at is not None and rotated.rotated_at is not None
            assert rotated.expires_at - rotated.rotated_at == 3600 * times.SECOND
            for secret in (key, new):
                found = await one.keys.find(hash_key(secret))
                assert found is not None and found.id == made.id
            later = made.expires_at
            assert found.problem(later - 1, hash_key(key)) is None
            assert found.problem(later, hash_key(key)) == "was rotated; this secret is no longer valid"
            assert found.problem(later, hash_key(new)) is None
            assert str(found.problem(rotated.expires_at, hash_key(new))).startswith("expired on ")
            assert (await one.keys.revoke(made.id, "admin")).id == (await one.keys.revoke(made.id, "admin")).id
            found = await one.keys.find(hash_key(new))
            assert found is not None and found.problem(0) == "was revoked"
            with pytest.raises(InvalidRequest, match="cannot be rotated: it was revoked"):
                await one.keys.rotate(made.id, 0, None, "admin")
            with pytest.raises(InvalidRequest, match="A revoked key cannot be restored"):
                await one.keys.restore(made.id, "admin")
            assert await one.keys.find(hash_key("unknown")) is None

    asyncio.run(main())


@pytest.mark.parametrize(
    ("user", "grants", "expires_in", "why"),
    [
        (" ", VIEWER, None, "1 to 256 printable characters"),
        ("a" * 257, VIEWER, None, "1 to 256 printable characters"),
        ("a\nb", VIEWER, None, "1 to 256 printable characters"),
        ("ada", (), None, f"1 to {MOST_GRANTS} roles"),
        ("ada", VIEWER * (MOST_GRANTS + 1), None, f"1 to {MOST_GRANTS} roles"),
        ("ada", VIEWER, 0, "must be in the future"),
    ],
)
@pytest.mark.parametrize("two", ["sqlite"], indirect=True)
def test_what_is_no_key_is_not_made(
    two: Two, user: str, grants: tuple[Grant, ...], expires_in: float | None, why: str
) -> None:
    async def main() -> None:
        async with two.open() as (one, _):
            with pytest.raises(InvalidRequest, match=why):
                await one.keys.create(user, grants, "admin", expires_in)
            for key_id, said in (("", "No key has"), ("none", "No key has"), ("%", "No key has")):
                with pytest.raises(NotFound, match=said):
                    await one.keys.revoke(key_id, "admin")
            made = [(await one.keys.create(name, VIEWER, "admin"))[1].id for name in ("a", "b")]
            with pytest.raises(NotFound, match=f"2 keys have an id that starts with '0': {made[0]}, {made[1]}"):
                await one.keys.revoke("0", "admin")

    asyncio.run(main())


def test_who_signs_in_has_what_their_groups_allow_now(two: Two) -> None:
    async def main() -> None:
        async with two.open() as (one, _):
            ada = await one.keys.sign_in("issuer/ada", "ada", VIEWER)
            assert ada.is_person and await one.keys.sign_in("issuer/ada", "ada", VIEWER) == ada
            changed = await one.keys.sign_in("issuer/ada", "ada l", EDITOR)
            assert (changed.id, changed.user, changed.grants) == (ada.id, "ada l", EDITOR)
            assert (await one.keys.sign_in("issuer/bob", "bob", VIEWER)).id != ada.id
            with pytest.raises(InvalidRequest, match="belongs to a sign-in and has no secret"):
                await one.keys.rotate(ada.id, 0, None, "admin")
            assert (await one.keys.revoke(ada.id, "admin")).id == ada.id
            assert (await one.keys.sign_in("issuer/ada", "ada l", EDITOR)).problem(0) == "was revoked"
            await one.keys.restore(ada.id, "admin")
            assert (await one.keys.sign_in("issuer/ada", "ada l", EDITOR)).problem(0) is None
            # In no group any more: what was begun ends, other sessions too; a stranger is not even stored.
            assert (await one.keys.sign_in("issuer/ada", "ada l", ())).problem(0) == "has no role any more"
            assert (await one.keys.sign_in("issuer/eve", "eve", ())).grants == ()
            assert {row.user for row in await one.keys.all()} == {"ada l", "bob"}

    asyncio.run(main())


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (["editor:team", "viewer:other/x"], ["editor:team", "viewer:other"], None),
        (["editor+delete:team/x"], ["editor:team", "viewer+delete:team/x"], None),
        (["editor:team"], ["admin"], None),
        (["editor:team"], ["viewer:team"], "has lost roles since"),
        (["editor:team"], ["editor:team/x"], "has lost roles since"),
        (["editor:team", "viewer:other"], ["editor:team"], "has lost roles since"),
        (["admin:team/x"], ["editor+delete:team"], "has lost roles since"),
    ],
)
@pytest.mark.parametrize("two", ["sqlite"], indirect=True)
def test_work_ends_when_who_started_it_has_lost_roles(
    two: Two, before: list[str], now: list[str], said: str | None
) -> None:
    async def main() -> None:
        async with two.open() as (one, _):
            ada = await one.keys.sign_in("issuer/ada", "ada", tuple(map(Grant.parse, before)))
            started = Authority(ada.id, ada.grants)
            unknown = Authority("gone", ada.grants)
            assert await one.keys.problems([started, unknown]) == {}
            await one.keys.sign_in("issuer/ada", "ada", tuple(map(Grant.parse, now)))
            why = f"The sign-in of user 'ada', which started this, {said}"
            assert await one.keys.problems([started, unknown]) == ({} if said is None else {started: why})

    asyncio.run(main())


def test_a_session_of_a_key_lasts_while_it_is_used_and_that_of_a_person_does_not(two: Two) -> None:
    async def main() -> None:
        async with two.open() as (one, _):
            person, (_, key) = (
                await one.keys.sign_in("issuer/ada", "ada", VIEWER),
                await one.keys.create("b", VIEWER, "a"),
            )
            begun = 10**15
            tokens = {each.id: await one.sessions.begin(each, begun) for each in (person, key)}
            day = 86_400 * times.SECOND
            for at in (begun, begun + day // 2, begun + 10 * day):
                for each in (person, key):
                    found = await one.sessions.find(hash_key(tokens[each.id]), at)
                    assert found is not None and found.id == each.id
            after = begun + SESSION_SECONDS * times.SECOND
            assert await one.sessions.find(hash_key(tokens[person.id]), after) is None
            assert await one.sessions.find(hash_key(tokens[key.id]), after) is not None, "it was used on the tenth day"
            assert await one.sessions.counts(after) == {key.id: 1}
            assert await one.sessions.find(hash_key("unknown"), begun) is None
            await one.sessions.end(tokens[key.id])
            assert await one.sessions.find(hash_key(tokens[key.id]), begun) is None
            other = await one.sessions.begin(key, after)
            assert await one.sessions.end_of_key(person.id) == 0, "what is over was removed as another began"
            assert await one.sessions.end_of_key(key.id) == 1
            assert await one.sessions.find(hash_key(other), after) is None

    asyncio.run(main())
