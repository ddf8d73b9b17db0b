"""Feedback: create, batch, replace, query, purge, over HTTP."""

import uuid
from typing import Any

import pytest

from tests.conftest import Wire
from tests.support.server import HeddleProcess

ON_BOTH_STORES = True

Json = Any
PURGE_REASON = "Can only purge feedback by specifying one or more feedback ids"
FIELDS = [
    *("id", "project_id", "weave_ref", "wb_user_id", "creator", "created_at", "feedback_type", "payload"),
    *("annotation_ref", "runnable_ref", "call_ref", "trigger_ref", "queue_id"),
    *("scorer_tags", "scorer_tag_reasons", "scorer_tag_confidences"),
    *("scorer_ratings", "scorer_rating_reasons", "scorer_rating_confidences"),
    *("span_agent_name", "span_agent_version", "span_status_code"),
    *("span_trace_id", "span_conversation_id", "scorer_trace_id"),
]


def field(path: str) -> Json:
    """A field operand."""
    return {"$getField": path}


def literal(value: Json) -> Json:
    """A constant operand."""
    return {"$literal": value}


def eq(path: str, value: Json) -> Json:
    """A field equals a constant."""
    return {"$eq": [field(path), literal(value)]}


def contains(path: str, part: Json, **more: Json) -> Json:
    """A text lies inside a field."""
    return {"$contains": {"input": field(path), "substr": literal(part), **more}}


def convert(path: str, target: str) -> Json:
    """A field read as another type."""
    return {"$convert": {"input": field(path), "to": target}}


def item(wire: Wire, payload: Json, feedback_type: str = "custom", call: str = "c1", **more: Json) -> Json:
    """A create body."""
    ref = f"weave:///{wire.project}/call/{call}"
    body = {"project_id": wire.project, "weave_ref": ref, "feedback_type": feedback_type, "payload": payload}
    return {**body, **more}


def create(wire: Wire, payload: Json, feedback_type: str = "custom", call: str = "c1", **more: Json) -> Json:
    """What the server answers to a new row."""
    return wire.post("/feedback/create", **item(wire, payload, feedback_type, call, **more))


def rows(wire: Wire, condition: Json = None, **body: Json) -> list[Json]:
    """The selected rows."""
    query = None if condition is None else {"$expr": condition}
    return list(wire.post("/feedback/query", query=query, **body)["result"])


def failure(wire: Wire, path: str, **body: Json) -> tuple[int, Json]:
    """Status and reason of a refused request."""
    answer = wire.client.post(path, json={"project_id": wire.project, **body})
    return answer.status_code, answer.json().get("reason")


def test_a_row_is_read_back_whole(wire: Wire) -> None:
    """Every field, with defaults for what was not sent."""
    made = create(wire, {"score": 0.5, "who": {"name": "Ada"}}, creator="me", wb_user_id="forged")
    assert sorted(made) == ["created_at", "id", "payload", "wb_user_id"]
    (row,) = rows(wire)
    assert list(row) == FIELDS
    assert row == {
        "id": made["id"],
        "project_id": wire.project,
        "weave_ref": f"weave:///{wire.project}/call/c1",
        "wb_user_id": "local",
        "creator": "me",
        "created_at": made["created_at"],
        "feedback_type": "custom",
        "payload": {"score": 0.5, "who": {"name": "Ada"}},
        **dict.fromkeys(["annotation_ref", "runnable_ref", "call_ref", "trigger_ref", "queue_id"]),
        "scorer_tags": [],
        **{name: {} for name in FIELDS if name.endswith(("_reasons", "_confidences", "_ratings"))},
        "span_status_code": "UNSET",
        **dict.fromkeys(["span_agent_name", "span_agent_version"], ""),
        **dict.fromkeys(["span_trace_id", "span_conversation_id", "scorer_trace_id"], ""),
    }


def test_scorer_and_span_fields_are_kept(wire: Wire) -> None:
    """All of them, of 0.54.0 too, and refs in external form."""
    sent = {
        "runnable_ref": f"weave:///{wire.project}/object/judge:abc",
        "call_ref": f"weave:///{wire.project}/call/c2",
        "trigger_ref": f"weave:///{wire.project}/object/monitor:v1",
        "scorer_tags": ["a", "B"],
        "scorer_tag_reasons": {"a": "because"},
        "scorer_tag_confidences": {"a": 0.5},
        "scorer_ratings": {"_rating_": 1, "x.y": 0.25},
        "scorer_rating_reasons": {"_rating_": "so"},
        "scorer_rating_confidences": {"_rating_": 0.75},
        "span_agent_name": "agent",
        "span_agent_version": "2",
        "span_status_code": "OK",
        "span_trace_id": "t",
        "span_conversation_id": "k",
        "scorer_trace_id": "s",
    }
    create(wire, {"output": None}, "wandb.runnable.judge", **sent)
    (row,) = rows(wire)
    assert {name: row[name] for name in sent} == sent


def test_reactions_are_enriched(wire: Wire) -> None:
    """The answer and the stored row have the aliases."""
    made = create(wire, {"emoji": "👍🏾"}, "wandb.reaction.1")
    assert made["payload"] == {
        "emoji": "👍🏾",
        "alias": ":thumbs_up_medium-dark_skin_tone:",
        "detoned": "👍",
        "detoned_alias": ":thumbs_up:",
    }
    assert rows(wire)[0]["payload"] == made["payload"]


def test_a_batch_is_answered_in_order(wire: Wire) -> None:
    """A thousand rows at once, listed in the order they were sent."""
    batch = [item(wire, {"n": number}, call=f"c{number % 7}") for number in range(1000)]
    made = wire.post("/feedback/batch/create", batch=batch)["res"]
    assert [one["payload"]["n"] for one in made] == list(range(1000))
    found = rows(wire)
    assert [row["id"] for row in found] == [one["id"] for one in made]
    assert [row["created_at"] for row in found] == [one["created_at"] for one in made]
    assert len({row["created_at"] for row in found}) == 1000
    assert len(rows(wire, eq("weave_ref", f"weave:///{wire.project}/call/c3"))) == 143
    assert wire.post("/feedback/batch/create", batch=[]) == {"res": []}


def test_one_bad_item_fails_the_batch(wire: Wire) -> None:
    """Nothing of it is stored."""
    batch = [item(wire, {"n": 1}), item(wire, {"note": ""}, "wandb.note.1")]
    assert failure(wire, "/feedback/batch/create", batch=batch)[0] == 400
    answer = wire.client.post("/feedback/batch/create", json={"batch": [item(wire, {"n": 1}), item(wire, [1])]})
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["body", "batch", 1, "payload"]
    assert rows(wire) == []


def test_the_same_id_replaces(wire: Wire) -> None:
    """In another request and within one batch; other projects keep their own."""
    same = str(uuid.uuid4())
    create(wire, {"n": 1}, id=same)
    wire.post("/feedback/create", **{**item(wire, {"n": 9}, id=same), "project_id": f"{wire.project}-other"})
    create(wire, {"n": 2}, id=same)
    assert [row["payload"] for row in rows(wire)] == [{"n": 2}]
    wire.post("/feedback/batch/create", batch=[item(wire, {"n": 3}, id=same), item(wire, {"n": 4}, id=same)])
    assert [(row["id"], row["payload"]) for row in rows(wire)] == [(same, {"n": 4})]
    assert [row["payload"] for row in rows(wire, project_id=f"{wire.project}-other")] == [{"n": 9}]


def test_replace(wire: Wire) -> None:
    """The old row goes, a missing one does not matter, and a refused one leaves everything as it was."""
    old = create(wire, {"n": 1})["id"]
    new = wire.post("/feedback/replace", **item(wire, {"n": 2}), feedback_id=old)
    assert new["id"] != old
    assert [row["id"] for row in rows(wire)] == [new["id"]]
    kept = wire.post("/feedback/replace", **item(wire, {"n": 3}, id=new["id"]), feedback_id=new["id"])
    assert kept["id"] == new["id"]
    wire.post("/feedback/replace", **item(wire, {"n": 4}), feedback_id="unknown")
    assert sorted(row["payload"]["n"] for row in rows(wire)) == [3, 4]
    refused = item(wire, {"note": ""}, "wandb.note.1")
    assert failure(wire, "/feedback/replace", **refused, feedback_id=new["id"])[0] == 400
    assert sorted(row["payload"]["n"] for row in rows(wire)) == [3, 4]


def test_purge_takes_ids_only(wire: Wire) -> None:
    """`$eq` and `$or` of `$eq`; `$in` and everything else is refused and deletes nothing."""
    ids = [create(wire, {"n": number})["id"] for number in range(4)]
    for refused in (
        {"$in": [field("id"), [literal(ids[0])]]},
        eq("feedback_type", "custom"),
        {"$or": [eq("id", ids[0]), eq("creator", "x")]},
        {"$and": [eq("id", ids[0])]},
        {"$not": [eq("id", ids[0])]},
        eq("id", 5),
    ):
        assert failure(wire, "/feedback/purge", query={"$expr": refused}) == (400, PURGE_REASON)
    assert len(rows(wire)) == 4
    assert wire.post("/feedback/purge", query={"$expr": eq("id", ids[0])}) == {}
    wire.post("/feedback/purge", query={"$expr": {"$or": [eq("id", one) for one in [ids[1], "unknown", *ids[1:3]]]}})
    wire.post("/feedback/purge", project_id=f"{wire.project}-other", query={"$expr": eq("id", ids[3])})
    assert [row["id"] for row in rows(wire)] == [ids[3]]


PAYLOADS = [
    {"x": 1, "s": "Éa", "deep": {"k": "v", "list": [1, "two"]}, "dotted.key": "d"},
    {"x": 2.5, "flag": True},
    {"x": "3", "flag": "true"},
    {"x": None, "flag": 1},
    {"x": {"a": 1.0}, "flag": False},
    {"x": 5.0},
    {},
]


def numbers(wire: Wire, condition: Json = None, **body: Json) -> list[int]:
    """Which of the payloads are selected."""
    return [row["payload"]["n"] for row in rows(wire, condition, **body)]


@pytest.fixture
def stored(wire: Wire) -> Wire:
    """The payloads as rows of two calls, with scorer columns on some."""
    batch = [item(wire, {**payload, "n": number}, call=f"c{number % 2}") for number, payload in enumerate(PAYLOADS)]
    batch[0]["creator"] = "Jane"
    tags = {"scorer_tags": ["Fast", "ok"], "scorer_ratings": {"q": 0.5, "a.b": 1}, "scorer_tag_reasons": {"ok": "why"}}
    batch.append(item(wire, {"n": 7}, "wandb.agent_user_feedback", "c1", **tags))
    wire.post("/feedback/batch/create", batch=batch)
    return wire


QUERIES = [
    ({"$eq": [literal("1"), literal("1")]}, [0, 1, 2, 3, 4, 5, 6, 7]),
    ({"$eq": [literal(1), literal(True)]}, [0, 1, 2, 3, 4, 5, 6, 7]),
    ({"$eq": [literal(1), literal("1")]}, []),
    ({"$not": [{"$eq": [literal(1), literal("1")]}]}, []),
    (eq("payload.x", 1), [0]),
    (eq("payload.x", 1.0), [0]),
    (eq("payload.x", "1"), [0]),
    (eq("payload.x", 3), [2]),
    (eq("payload.x", 5), [5]),
    (eq("payload.x", "5"), [5]),
    (eq("payload.x", 2), []),
    (eq("payload.x", 2.5), [1]),
    (eq("payload.x", ""), [3, 6, 7]),
    (eq("payload.x", None), []),
    (eq("payload.x", '{"a":1.0}'), [4]),
    (eq("payload.x.a", 1), [4]),
    ({"$not": [eq("payload.x", "")]}, [0, 1, 2, 4, 5]),
    ({"$not": [eq("payload.x", 1)]}, [2, 5]),
    ({"$gt": [field("payload.x"), literal(1)]}, [2, 5]),
    ({"$gt": [field("payload.x"), literal(1.0)]}, [1, 2, 5]),
    ({"$lt": [literal(2.0), field("payload.x")]}, [1, 2, 5]),
    ({"$gte": [field("payload.x"), literal("3")]}, [2, 4, 5]),
    ({"$lte": [field("payload.x"), literal(2.5)]}, [0, 1]),
    (eq("payload.flag", True), [1, 2, 3]),
    (eq("payload.flag", False), [4]),
    (eq("payload.flag", "true"), [1, 2]),
    ({"$in": [field("payload.x"), [literal(1), literal(2.5)]]}, [0, 1]),
    ({"$in": [field("payload.x"), [literal(1), literal(3)]]}, [0, 2]),
    ({"$in": [field("payload.x"), [literal("1"), literal(3), literal(None)]]}, [0]),
    ({"$in": [field("payload.x"), []]}, []),
    ({"$in": [field("creator"), [literal("Jane"), literal("Joe")]]}, [0]),
    (eq("payload.deep.k", "v"), [0]),
    (eq("payload.deep.list.1", "two"), [0]),
    (eq("payload.deep.list.5", ""), [0, 1, 2, 3, 4, 5, 6, 7]),
    (eq("payload.dotted\\.key", "d"), [0]),
    (eq("payload_dump.x", 1), [0]),
    (contains("payload", '"flag"'), [1, 2, 3, 4]),
    (contains("payload.s", "é", case_insensitive=True), [0]),
    (contains("payload.s", "é"), []),
    (contains("payload.s", ""), [0, 1, 2, 3, 4, 5, 6, 7]),
    (contains("creator", "an"), [0]),
    ({"$not": [contains("creator", "an")]}, [1, 2, 3, 4, 5, 6, 7]),
    (contains("scorer_tags", "Fast"), [7]),
    (contains("scorer_tags", "fast"), []),
    (contains("scorer_tags", "FAST", case_insensitive=True), [7]),
    (contains("scorer_tags", "Fas"), []),
    (eq("scorer_tags", "Fast"), []),
    (eq("scorer_ratings.q", 0.5), [7]),
    ({"$gt": [field("scorer_ratings.q"), literal(0)]}, [7]),
    ({"$lt": [field("scorer_ratings.missing"), literal(9)]}, []),
    ({"$not": [eq("scorer_ratings.q", 0.75)]}, [7]),
    (eq("scorer_ratings.a.b", 1), [7]),
    (eq("scorer_tag_reasons.ok", "why"), [7]),
    (eq("scorer_tag_reasons.ok", 1), []),
    (eq("creator", None), []),
    ({"$not": [eq("creator", "x")]}, [0]),
    (eq("creator", 5), []),
    (eq("feedback_type", "wandb.agent_user_feedback"), [7]),
    ({"$gt": [field("created_at"), literal("2020-01-01")]}, [0, 1, 2, 3, 4, 5, 6, 7]),
    ({"$gt": [field("created_at"), literal("2999-01-01T00:00:00Z")]}, []),
    ({"$gt": [field("created_at"), literal(4e9)]}, []),
    (eq("created_at", "no date"), []),
    ({"$not": [eq("created_at", "no date")]}, [0, 1, 2, 3, 4, 5, 6, 7]),
    ({"$gt": [field("created_at"), literal("no date")]}, []),
    ({"$gt": [field("created_at"), literal(True)]}, []),
    ({"$eq": [convert("payload.x", "int"), literal(3)]}, [2]),
    ({"$eq": [convert("payload.x", "double"), literal(2.5)]}, [1]),
    ({"$eq": [convert("payload.flag", "bool"), literal(True)]}, [1, 2, 3]),
    ({"$eq": [convert("payload.x", "string"), literal("2.5")]}, [1]),
    ({"$eq": [convert("payload.zzz", "exists"), literal(True)]}, [0, 1, 2, 3, 4, 5, 6, 7]),
    ({"$eq": [convert("creator", "exists"), literal(True)]}, [0]),
    ({"$eq": [{"$convert": {"input": literal("7"), "to": "int"}}, field("payload.n")]}, [7]),
    ({"$and": [eq("payload.flag", True), {"$gt": [field("payload.x"), literal(2.0)]}]}, [1, 2]),
    ({"$or": [eq("payload.n", 1), eq("payload.n", 6)]}, [1, 6]),
    ({"$or": [eq("payload.n", 1), eq("creator", None)]}, [1]),
    ({"$and": [field("creator")]}, [0]),
    ({"$eq": [eq("payload.n", 1), literal(True)]}, [1]),
    (eq("payload.x", 2**70), []),
    ({"$not": [eq("payload.n", 1e300)]}, [0, 1, 2, 3, 4, 5, 6, 7]),
]


@pytest.mark.parametrize(("condition", "expected"), QUERIES, ids=[str(number) for number in range(len(QUERIES))])
def test_queries(stored: Wire, condition: Json, expected: list[int]) -> None:
    """The typing rules of dynamic fields, columns, maps, lists and instants, and three-valued logic."""
    assert numbers(stored, condition) == expected


def test_very_wide_queries(stored: Wire) -> None:
    """Thousands of operands and items; more than 20,000 constants are refused."""
    many = [eq("payload.n", 3), *(eq("id", str(number)) for number in range(3000))]
    assert numbers(stored, {"$or": many}) == [3]
    assert numbers(stored, {"$in": [field("payload.n"), [literal(n) for n in range(10_000)]]}) == list(range(8))
    too_many = {"$in": [field("id"), [literal(str(n)) for n in range(20_001)]]}
    assert failure(stored, "/feedback/query", query={"$expr": too_many})[0] == 400


def negated(condition: Json, times: int) -> Json:
    """A condition inside so many `$not`."""
    return negated({"$not": [condition]}, times - 1) if times else condition


def test_deep_queries(stored: Wire, server: HeddleProcess) -> None:
    """Forty levels of one kind work; what is too deep for the database is 400, and nothing grows without bounds."""
    left, right, equal, mixed = (eq("payload.n", 3) for _ in range(4))
    everything = {"$eq": [literal(1), literal(1)]}
    converted = field("payload.n")
    for level in range(40):
        left = {"$and": [left, everything]}
        right = {"$or": [{"$not": [everything]}, right]}
        equal = {"$eq": [equal, literal(True)]}
        mixed = {"$not": [{"$and": [mixed, everything]}]}
        if level < 3:
            converted = {"$convert": {"input": converted, "to": ("string", "double", "int")[level]}}
    for condition in (left, right, equal, negated(eq("payload.n", 3), 40), {"$eq": [converted, literal(3)]}):
        assert numbers(stored, condition) == [3]
    for level in range(39):
        converted = {"$convert": {"input": converted, "to": ("string", "double", "int")[level % 3]}}
    for condition in (mixed, {"$eq": [converted, literal(3)]}):
        if "control" not in server.settings:
            status, reason = failure(stored, "/feedback/query", query={"$expr": condition})
            assert (status, reason.split(":")[0]) == (400, "The query is too complex")
        else:  # PostgreSQL takes these, too
            assert numbers(stored, condition) == [3]
    for body in ({"fields": [f"payload.k{n}" for n in range(3000)]}, {"limit": 10**30}):
        assert failure(stored, "/feedback/query", **body)[0] in (400, 413)


@pytest.mark.parametrize("path", ["a\0b", "%s", ":x", "'x", '"x', "\\", 'a"b.c', "-1", "99999999999", "x." * 900, "é"])
def test_odd_paths(stored: Wire, path: str) -> None:
    """A path that no payload has is an empty text everywhere."""
    name = f"payload.{path}"
    assert numbers(stored, eq(name, "")) == list(range(8))
    assert numbers(stored, sort_by=[{"field": name, "direction": "asc"}]) == list(range(8))
    assert rows(stored, fields=[name]) == [{name: ""}] * 8
    assert numbers(stored, eq(f"scorer_ratings.{path}", 1)) == []


def test_targets_are_selected_by_external_refs(stored: Wire) -> None:
    """And the project by its name."""
    ref = f"weave:///{stored.project}/call/c1"
    assert numbers(stored, eq("weave_ref", ref)) == [1, 3, 5, 7]
    assert numbers(stored, {"$in": [field("weave_ref"), [literal(ref)]]}) == [1, 3, 5, 7]
    assert len(numbers(stored, eq("project_id", stored.project))) == 8
    assert numbers(stored, eq("project_id", "x/y")) == []


def test_order(stored: Wire) -> None:
    """Dynamic fields: existing ones first, then numbers, then texts; others: nulls last; ties in order of creation."""

    def by(name: str, direction: str) -> list[int]:
        return numbers(stored, sort_by=[{"field": name, "direction": direction}])

    assert by("payload.x", "asc") == [0, 1, 2, 5, 3, 4, 6, 7]
    assert by("payload.x", "desc") == [5, 2, 1, 0, 4, 3, 6, 7]
    assert by("creator", "asc")[0] == 0
    assert by("creator", "desc")[0] == 0
    assert by("scorer_ratings.q", "asc")[0] == 7
    assert by("created_at", "desc") == [7, 6, 5, 4, 3, 2, 1, 0]
    assert by("payload.n", "desc") == [7, 6, 5, 4, 3, 2, 1, 0]
    two = [{"field": "weave_ref", "direction": "desc"}, {"field": "payload.n", "direction": "desc"}]
    assert numbers(stored, sort_by=two) == [7, 5, 3, 1, 6, 4, 2, 0]
    assert numbers(stored, sort_by=[]) == [0, 1, 2, 3, 4, 5, 6, 7]


def test_pages_and_counts(stored: Wire) -> None:
    """`total_count` counts before limit and offset."""
    pages = [([0, 1], {"limit": 2}), ([2, 3], {"limit": 2, "offset": 2}), ([7], {"offset": 7}), ([], {"offset": 8})]
    for expected, body in [*pages, ([], {"limit": 0}), ([], {"limit": 5, "offset": 100})]:
        answer = stored.post("/feedback/query", **body)
        assert [row["payload"]["n"] for row in answer["result"]] == expected
        assert answer["total_count"] == 8
    condition = {"$expr": eq("payload.flag", True)}
    assert stored.post("/feedback/query", query=condition, limit=1)["total_count"] == 3
    assert stored.post("/feedback/query", query=condition)["total_count"] == 3
    counted = stored.post("/feedback/query", query=condition, fields=["count(*)"])
    assert counted == {"result": [{"count(*)": 3}], "total_count": 3}
    nothing = stored.post("/feedback/query", query={"$expr": eq("id", "none")}, fields=["COUNT(*)", "id"])
    assert nothing == {"result": [{"COUNT(*)": 0, "id": None}], "total_count": 0}


def test_a_list_without_a_limit_is_its_pages(wire: Wire) -> None:
    for first in (0, 1000, 2000):
        rows = [
            {
                "project_id": wire.project,
                "weave_ref": f"weave:///{wire.project}/call/c{number}",
                "feedback_type": "custom",
                "payload": {"rank": number * 7 % 2300},
            }
            for number in range(first, min(first + 1000, 2300))
        ]
        wire.post("/feedback/batch/create", batch=rows)
    by_rank = [{"field": "payload.rank", "direction": "desc"}]
    for asked in ({}, {"sort_by": by_rank, "fields": ["id", "weave_ref", "payload.rank"]}, {"offset": 1250}):
        whole = wire.post("/feedback/query", **asked)
        start, pages = asked.get("offset", 0), []
        while page := wire.post("/feedback/query", **asked | {"offset": start + len(pages), "limit": 900})["result"]:
            pages += page
        assert whole == {"result": pages, "total_count": 2300}
        assert len(pages) == 2300 - start
    assert [
        row["payload.rank"] for row in wire.post("/feedback/query", sort_by=by_rank, fields=["payload.rank"])["result"]
    ] == [str(number) for number in range(2299, -1, -1)]


def test_selected_fields(stored: Wire) -> None:
    """Dotted payload fields are text under their own key; other fields are left out."""
    fields = ["payload.x", "payload.deep.list", "payload.n", "scorer_ratings.q", "scorer_tags", "id"]
    found = rows(stored, fields=fields)
    assert [list(row) for row in found] == [fields] * 8
    assert [row["payload.x"] for row in found] == ["1", "2.5", "3", "", '{"a":1.0}', "5", "", ""]
    assert found[0]["payload.deep.list"] == '[1,"two"]'
    assert found[7]["scorer_ratings.q"] == 0.5 and found[0]["scorer_ratings.q"] is None
    assert found[7]["scorer_tags"] == ["Fast", "ok"]
    assert list(rows(stored, fields=["payload_dump"])[0]) == ["payload"]


@pytest.mark.parametrize("name", ["nonsense", "payload_x", "id.x", "scorer_tags.x", "", "project", "seq", "_dump"])
def test_unknown_fields_are_refused(wire: Wire, name: str) -> None:
    """In fields, query and order, also without any rows."""
    reason = (400, f"Unknown field: {name}")
    assert failure(wire, "/feedback/query", fields=[name]) == reason
    assert failure(wire, "/feedback/query", query={"$expr": eq(name, 1)}) == reason
    assert failure(wire, "/feedback/query", sort_by=[{"field": name, "direction": "asc"}]) == reason


def test_refused_requests(wire: Wire) -> None:
    """Status and reason of what cannot be."""
    assert failure(wire, "/feedback/query", limit=-1) == (400, "Limit must be non-negative")
    assert failure(wire, "/feedback/query", offset=-1) == (400, "Offset must be non-negative")
    assert failure(wire, "/feedback/query", query={"$expr": contains("payload.x", 5)})[0] == 400
    assert failure(wire, "/feedback/query", query={"$expr": {"$and": []}}) == (400, "Empty AND operation")
    assert failure(wire, "/feedback/query", sort_by=[{"field": "id", "direction": "up"}])[0] == 422
    assert failure(wire, "/feedback/create", weave_ref="weave:///x", feedback_type="c", payload={})[0] == 400
    big = item(wire, {"a": "x" * (1024 * 1024)})
    assert failure(wire, "/feedback/create", **big) == (400, "Feedback payload too large")
    queue = item(wire, {}, queue_id=str(uuid.uuid4()))
    assert failure(wire, "/feedback/create", **queue)[0] == 400
    assert rows(wire) == []


def test_annotations_satisfy_their_spec(wire: Wire) -> None:
    """The spec object must exist, be live, be a spec, and accept the value."""
    spec = {
        "name": "quality",
        "description": "",
        "field_schema": {"type": "integer", "maximum": 5},
        "unique_among_creators": False,
        "op_scope": None,
    }
    made = {"project_id": wire.project, "object_id": "quality", "val": spec, "builtin_object_class": "AnnotationSpec"}
    digest = wire.post("/obj/create", obj=made)["digest"]
    plain = {"project_id": wire.project, "object_id": "plain", "val": {"field_schema": "none"}}
    other = wire.post("/obj/create", obj=plain)["digest"]

    def annotate(name: str, version: str, value: Json) -> tuple[int, Json]:
        ref = f"weave:///{wire.project}/object/{name}:{version}"
        body = item(wire, {"value": value}, f"wandb.annotation.{name}", annotation_ref=ref)
        return failure(wire, "/feedback/create", **body)

    assert annotate("quality", digest, 5) == (200, None)
    assert annotate("quality", digest, 6) == (400, "Feedback payload does not match annotation spec")
    assert annotate("plain", other, 5)[0] == 400
    missing = f"weave:///{wire.project}/object/quality:missing"
    assert annotate("quality", "missing", 5) == (400, f"Annotation ref {missing} not found")
    wire.post("/obj/delete", object_id="quality")
    assert annotate("quality", digest, 5)[0] == 400
    assert [row["payload"]["value"] for row in rows(wire)] == [5]


def test_calls_show_their_feedback(wire: Wire) -> None:
    """`include_feedback`: the rows of each call, oldest first, and an empty list without any."""
    ids = [str(uuid.uuid4()) for _ in range(2)]
    for call_id in ids:
        call = {"project_id": wire.project, "id": call_id, "trace_id": call_id, "op_name": "ask"}
        times = {"started_at": "2024-06-01T00:00:00Z", "ended_at": "2024-06-01T00:00:01Z"}
        rest = {"attributes": {}, "inputs": {}, "output": None, "summary": {}}
        answer = wire.client.post(f"/v2/{wire.project}/calls/complete", json={"batch": [{**call, **times, **rest}]})
        assert answer.status_code == 200, answer.text
    first = create(wire, {"n": 1}, call=ids[0])
    second = create(wire, {"emoji": "🎉"}, "wandb.reaction.1", ids[0])
    shown = {call["id"]: call["summary"]["weave"]["feedback"] for call in wire.calls(include_feedback=True)}
    assert shown[ids[1]] == []
    assert [(row["id"], row["payload"]) for row in shown[ids[0]]] == [
        (first["id"], first["payload"]),
        (second["id"], second["payload"]),
    ]
    listed = {row["id"]: row for row in rows(wire)}
    for row in shown[ids[0]]:
        assert row == {name: listed[row["id"]][name] for name in row}
        left_out = {"project_id", "queue_id", *(name for name in FIELDS if name.startswith("span_")), "scorer_trace_id"}
        assert set(row) == set(FIELDS) - left_out
