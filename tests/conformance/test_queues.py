"""Random work of two annotators: heddle's annotation queues answer as the reference's in-memory server does."""

import os
import random
import re
import uuid
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import httpx
import pytest

from tests.conformance.differential.compare import differences, is_time
from tests.conformance.differential.sides import ENVIRONMENT, Oracle
from tests.support.cli import make_key
from tests.support.selection import with_breadth
from tests.support.server import HeddleProcess

Json = Any
SOAK = os.environ.get("HEDDLE_SOAK") == "1"
SEEDS = range(6) if SOAK else range(2)
STEPS = 120
ANNOTATORS = ("ann", "ben")
STATES = ["unstarted", "in_progress", "completed", "skipped"]
BEGIN = 20
"""The characters of a refusal that are compared; the words behind are each server's own."""
CLOCK = ("created_at", "updated_at", "deleted_at")

pytestmark = [
    pytest.mark.differential,
    pytest.mark.skipif(not ENVIRONMENT.exists(), reason="weave 0.53.0 is not installed in .clients/weave-0.53.0"),
]
Keys = dict[str, str]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HeddleProcess, Keys]]:
    """A server that tells the annotators apart."""
    data = tmp_path_factory.mktemp("queues") / "data"
    keys = {name: make_key(data, name) for name in ANNOTATORS}
    with HeddleProcess(data, auth="on") as process:
        yield process, keys


class Sides:
    """Both servers, with the queues and items of one project: pairs of (heddle's id, the oracle's id)."""

    def __init__(self, process: HeddleProcess, keys: Keys, project: str) -> None:
        self.project = project
        self.clients = {
            name: httpx.Client(base_url=process.url, timeout=60, auth=("api", key)) for name, key in keys.items()
        }
        self.oracle = Oracle()
        self.queues: list[tuple[str, str]] = []
        self.items: list[tuple[str, str, tuple[str, str], str]] = []
        info = self.clients["ann"].post("/service/projects_info", json={"project_ids": [project]}).json()
        self.oracle.answer("PROJECT", "", {"external": project, "internal": info[0]["internal_project_id"]})

    def ask(self, user: str, verb: str, path: str, ids: tuple[tuple[str, str], ...], body: Json) -> tuple[Json, Json]:
        """Both bodies of an answer whose status is the same; `{0}` in the path are the ids of each side."""
        paths = [path.format(*(pair[side] for pair in ids)) for side in (0, 1)]
        body = {"project_id": self.project, **body}
        given = {"params": body} if verb in ("GET", "DELETE") else {"json": body}
        ours = self.clients[user].request(verb, paths[0], **given)
        status, theirs = self.oracle.answer(verb, paths[1], body, user)
        assert ours.status_code == status, (verb, paths, body, ours.text, theirs)
        if ours.headers["content-type"].startswith("application/x-ndjson"):
            return [httpx.Response(200, content=line).json() for line in ours.text.splitlines()], theirs
        return ours.json(), theirs

    def same(self, user: str, verb: str, path: str, ids: tuple[tuple[str, str], ...] = (), **body: Json) -> Json:
        """Ask both and compare; returns heddle's answer, None for a refusal."""
        ours, theirs = self.ask(user, verb, path, ids, body)
        if isinstance(ours, dict) and "reason" in ours:
            mine = {pair[1]: pair[0] for pair in ids}
            expected = re.sub("|".join(mine), lambda found: mine[found[0]], theirs["reason"])
            assert ours["reason"][:BEGIN] == expected[:BEGIN]
            return None
        names = {theirs: ours for ours, theirs, *_ in [*self.queues, *self.items]}
        found = list(differences(self.plain(theirs, names), self.plain(ours, {})))
        assert not found, (verb, path, body, found[:10])
        return ours

    def plain(self, value: Json, names: dict[str, str]) -> Json:
        """The answer with the oracle's ids as heddle's, instants as whether there are any, and one project id."""
        if isinstance(value, list):
            return [self.plain(item, names) for item in value]
        if isinstance(value, dict):
            # Not copied: the reference shows its internal project id here (contract: trace-evals, section 1).
            shown = {key: self.plain(item, names) for key, item in value.items() if key != "project_id"}
            if "updated_at" in shown:
                shown["was_changed"] = value["updated_at"] != value["created_at"]
            return {key: item is not None if key in CLOCK else item for key, item in shown.items()}
        if isinstance(value, str):
            return datetime.fromisoformat(value).isoformat() if is_time(value) else names.get(value, value)
        return value

    def queued(self, queue: tuple[str, str]) -> list[str]:
        """The calls in a queue."""
        return [item[3] for item in self.items if item[2] == queue]

    def close(self) -> None:
        """End the oracle and the connections."""
        self.oracle.close()
        for client in self.clients.values():
            client.close()


def filled(sides: Sides, random_: random.Random) -> list[str]:
    """Store calls on both sides, some of them deleted; returns their ids and one that nobody knows."""
    ids = [str(uuid.UUID(int=random_.getrandbits(128))) for _ in range(14)]
    batch = [
        {
            "project_id": sides.project, "id": call_id, "trace_id": random_.choice(ids[:3]),
            "op_name": random_.choice(["a", "B", "é"]), "started_at": f"2026-01-01T00:{random_.randrange(60):02d}:00Z",
            "ended_at": "2026-01-02T00:00:00Z", "attributes": {}, "inputs": {}, "output": 1, "summary": {},
        }
        for call_id in ids
    ]  # fmt: skip
    sides.ask("ann", "POST", f"/v2/{sides.project}/calls/complete", (), {"batch": batch})
    sides.ask("ann", "POST", "/calls/delete", (), {"call_ids": ids[12:]})
    return [*ids, str(uuid.UUID(int=7))]


def an_order(random_: random.Random, fields: list[str]) -> Json:
    """Terms of an order, or none; also a field that does not count."""
    terms = [
        {"field": field, "direction": random_.choice(["asc", "desc"])}
        for field in random_.sample([*fields, "wrong"], random_.randrange(3))
    ]
    return random_.choice([None, terms])


def a_page(random_: random.Random) -> Json:
    """Limit and offset, or none."""
    return random_.choice([{}, {"limit": random_.randrange(5)}, {"limit": 3, "offset": random_.randrange(4)}])


def change_queues(sides: Sides, random_: random.Random, user: str) -> None:
    """Make, change, read or delete a queue."""
    step = random_.randrange(6)
    if step == 0 or not sides.queues:
        body = {"name": random_.choice(["Review", "review é", "other"]), "scorer_refs": ["weave:///a/b/object/c:d"]}
        ours, theirs = sides.ask(user, "POST", "/annotation_queues", (), body)
        sides.queues.append((ours["id"], theirs["id"]))
        return
    queue = random_.choice([*sides.queues, ("nobody", "nobody")])
    if step == 1:
        changed = random_.choice([{}, {"name": "new"}, {"description": ""}, {"scorer_refs": [], "name": "É"}])
        sides.same(user, "PUT", "/annotation_queues/{0}", (queue,), **changed)
    elif step == 2:
        sides.same(user, "GET", "/annotation_queues/{0}", (queue,))
    elif step == 3 and random_.random() < 0.3:
        sides.same(user, "DELETE", "/annotation_queues/{0}", (queue,))
    elif step == 4:
        wanted = [random_.choice([*sides.queues, ("nobody", "nobody")]) for _ in range(3)]
        ours, theirs = ([pair[side] for pair in wanted] for side in (0, 1))
        found = sides.clients[user].post(
            "/annotation_queues/stats", json={"project_id": sides.project, "queue_ids": ours}
        )
        _, expected = sides.oracle.answer(
            "POST", "/annotation_queues/stats", {"project_id": sides.project, "queue_ids": theirs}
        )
        names = {pair[1]: pair[0] for pair in sides.queues}
        assert sides.plain(expected, names) == found.json()
    else:
        order = an_order(random_, ["name", "created_at", "updated_at"])
        name = random_.choice([None, "", "REV", "É", "x"])
        sides.same(user, "POST", "/annotation_queues/query", name=name, sort_by=order, **a_page(random_))


def change_items(sides: Sides, random_: random.Random, user: str, calls: list[str]) -> None:
    """Add calls to a queue, list its items, or go on with one of them."""
    queue = random_.choice(sides.queues)
    # What the contract asks for beyond the reference: nothing is added to a queue that is deleted.
    live = sides.clients[user].get(f"/annotation_queues/{queue[0]}", params={"project_id": sides.project})
    step = random_.randrange(4)
    if step == 0 and live.status_code == 200:
        # At most one new call: the reference leaves those of one request in no order.
        queued = sides.queued(queue)
        chosen = list({random_.choice(calls), *random_.sample(queued, min(2, len(queued)))})
        ours, theirs = sides.ask(
            user, "POST", "/annotation_queues/{0}/items", (queue,), {"call_ids": chosen, "display_fields": ["inputs"]}
        )
        assert ours == theirs, (chosen, ours, theirs)
        ours, theirs = sides.ask(user, "POST", "/annotation_queues/{0}/items/query", (queue,), {})
        known = {item[0] for item in sides.items}
        pairs = zip(ours["items"], theirs["items"], strict=True)
        sides.items += [
            (left["id"], right["id"], queue, left["call_id"]) for left, right in pairs if left["id"] not in known
        ]
    elif step == 1:
        conditions: Json = random_.choice(
            [
                None,
                {"annotation_states": random_.sample(STATES, random_.randrange(3))},
                {"call_op_name": "B", "added_by": random_.choice(ANNOTATORS)},
                {"call_id": random_.choice(calls)},
                {"call_trace_id": calls[0]},
            ]
        )
        order = an_order(random_, ["call_started_at", "call_op_name", "created_at", "updated_at"])
        position, page = random_.random() < 0.5, a_page(random_)
        body = {"filter": conditions, "sort_by": order, "include_position": position, **page}
        sides.same(user, "POST", "/annotation_queues/{0}/items/query", (queue,), **body)
    elif sides.items and live.status_code == 200:
        mine = [item for item in sides.items if item[2] == queue]
        item = random_.choice([*mine, *mine, ("nothing", "nothing", queue, "")])
        state = random_.choice([*STATES, "wrong"])
        path = "/annotation_queues/{0}/items/{1}/progress"
        sides.same(user, "POST", path, (queue, item[:2]), annotation_state=state)


@pytest.mark.parametrize("seed", with_breadth(SEEDS))
def test_same_answers(guarded: tuple[HeddleProcess, Keys], seed: int) -> None:
    """Each step is answered alike."""
    random_ = random.Random(seed)
    sides = Sides(*guarded, f"oracle/queues-{seed}")
    try:
        calls = filled(sides, random_)
        for _ in range(STEPS):
            user = random_.choice(ANNOTATORS)
            if random_.random() < 0.3 or not sides.queues:
                change_queues(sides, random_, user)
            else:
                change_items(sides, random_, user, calls)
        assert sides.items
    finally:
        sides.close()
