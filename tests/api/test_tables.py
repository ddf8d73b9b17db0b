"""Tables over HTTP: rows by digest, edits, pages, sorting, sizes."""

import hashlib
import json
from typing import Any

import pytest

from heddle.wire import refs
from tests.conftest import Wire

ON_BOTH_STORES = True

EMPTY = hashlib.sha256(b"").hexdigest()


def create(wire: Wire, rows: list[Any], **more: Any) -> dict[str, Any]:
    """What /table/create answers."""
    answer = wire.client.post("/table/create", json={"table": {"project_id": wire.project, "rows": rows, **more}})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def rows_of(wire: Wire, digest: str, **query: Any) -> list[Any]:
    """The values that a query of a table finds."""
    return [row["val"] for row in wire.post("/table/query", digest=digest, **query)["rows"]]


def status(wire: Wire, path: str, **sent: Any) -> tuple[int, Any]:
    """Status and body of any answer."""
    answer = wire.client.post(path, json={"project_id": wire.project, **sent})
    return answer.status_code, answer.json()


def test_rows_come_back_in_order_with_their_keys_in_order(wire: Wire) -> None:
    rows = [{"b": 2, "a": 1}, {"a": 2}, {"b": 2, "a": 1}, {"é": [None, {"x": 1.0}]}]
    made = create(wire, rows)
    assert made["row_digests"][0] == made["row_digests"][2] == "2El9nYJ3CnBykmEJWqmPfvUVTXr0mfgDe2yiUClnhaY"
    assert made["digest"] == hashlib.sha256("".join(made["row_digests"]).encode()).hexdigest()
    found = wire.post("/table/query", digest=made["digest"])["rows"]
    assert [json.dumps(row["val"]) for row in found] == [json.dumps(row) for row in rows]
    assert [(row["original_index"], row["digest"]) for row in found] == list(enumerate(made["row_digests"]))


def test_the_expected_digest_must_be_the_one(wire: Wire) -> None:
    sent = {"table": {"project_id": wire.project, "rows": [{"a": 1}], "expected_digest": EMPTY}}
    answer = wire.client.post("/table/create", json=sent)
    assert (answer.status_code, answer.headers["x-should-retry"]) == (409, "false")
    assert status(wire, "/table/create_from_digests", row_digests=["a"], expected_digest=EMPTY)[0] == 409
    assert create(wire, [], expected_digest=EMPTY) == {"digest": EMPTY, "row_digests": []}


def test_refs_in_rows_are_external_outside_and_internal_in_digests(wire: Wire) -> None:
    ref = f"weave:///{wire.project}/object/o:d"
    made = create(wire, [{"r": ref}])
    assert rows_of(wire, made["digest"]) == [{"r": ref}]
    other = wire.client.post("/table/create", json={"table": {"project_id": "a/b", "rows": [{"r": ref}]}}).json()
    assert other["row_digests"] == made["row_digests"]


def test_numbers_that_json_has_not_keep_the_digest_of_the_client(wire: Wire) -> None:
    text = json.dumps({"table": {"project_id": wire.project, "rows": [{"x": float("inf"), "n": 10**25}]}})
    made = wire.client.post("/table/create", content=text.encode()).json()
    expected = json.dumps({"x": float("inf"), "n": 10**25}, sort_keys=True)
    raw = hashlib.sha256(expected.encode()).digest()
    assert made["row_digests"] == [refs.encode_sha256(raw)]
    assert rows_of(wire, made["digest"]) == [{"x": None, "n": 10**25}]


def test_a_table_of_digests_shows_the_rows_that_are_there(wire: Wire) -> None:
    first = create(wire, [{"a": 1}, {"a": 2}])["row_digests"]
    order = [first[1], "X" * 43, first[0], first[1]]
    digest = wire.post("/table/create_from_digests", row_digests=order)["digest"]
    assert digest == hashlib.sha256("".join(order).encode()).hexdigest()
    found = wire.post("/table/query", digest=digest)["rows"]
    assert [(row["original_index"], row["val"]["a"]) for row in found] == [(0, 2), (2, 1), (3, 2)]
    assert rows_of(wire, digest, limit=2, offset=1) == [{"a": 1}, {"a": 2}]
    assert wire.post("/table/query_stats", digest=digest) == {"count": 4}
    assert wire.post("/table/create_from_digests", row_digests=[])["digest"] == EMPTY


def test_rows_may_come_after_their_table(wire: Wire) -> None:
    row_digests = create(wire, [{"a": number} for number in range(5)])["row_digests"]
    sent = {"project_id": "late/rows", "row_digests": row_digests}
    digest = wire.client.post("/table/create_from_digests", json=sent).json()["digest"]
    query = {"project_id": "late/rows", "digest": digest, "offset": 1, "limit": 2}
    assert wire.client.post("/table/query", json=query).json() == {"rows": []}
    rows = [{"a": number} for number in range(5)]
    assert (
        wire.client.post("/table/create", json={"table": {"project_id": "late/rows", "rows": rows}}).status_code == 200
    )
    found = wire.client.post("/table/query", json=query).json()["rows"]
    assert [row["val"] for row in found] == [{"a": 1}, {"a": 2}]


def test_edits_make_a_new_table(wire: Wire) -> None:
    base = create(wire, [{"n": number} for number in range(6)])
    updates = [
        {"append": {"row": {"n": 6}}},
        {"pop": {"index": 0}},
        {"insert": {"index": 2, "row": {"n": "new"}}},
        {"pop": {"index": 2}},
        {"insert": {"index": 0, "row": {"n": 5}}},
        {"insert": {"index": 7, "row": {"n": "end"}}},
    ]
    made = wire.post("/table/update", base_digest=base["digest"], updates=updates)
    expected = [{"n": 5}, *({"n": number} for number in range(1, 7)), {"n": "end"}]
    assert rows_of(wire, made["digest"]) == expected
    again = create(wire, expected)
    assert again["digest"] == made["digest"], "the same rows are the same table"
    assert made["updated_row_digests"][1] == base["row_digests"][0]
    assert made["updated_row_digests"][2] == made["updated_row_digests"][3]
    assert made["updated_row_digests"][4] == base["row_digests"][5]
    assert rows_of(wire, base["digest"]) == [{"n": number} for number in range(6)], "the base stays"
    assert wire.post("/table/update", base_digest=base["digest"], updates=[])["digest"] == base["digest"]


@pytest.mark.parametrize("update", [{"pop": {"index": 1}}, {"pop": {"index": -1}}, {"insert": {"index": 2, "row": {}}}])
def test_edits_out_of_range(wire: Wire, update: Any) -> None:
    base = create(wire, [{"only": "row"}])["digest"]
    code, answer = status(wire, "/table/update", base_digest=base, updates=[update])
    assert code == 400 and "out of range" in answer["reason"]


def test_edits_of_nothing(wire: Wire) -> None:
    code, answer = status(wire, "/table/update", base_digest="0" * 64, updates=[{"append": {"row": {}}}])
    assert code == 404 and "not found" in answer["reason"]
    assert status(wire, "/table/update", base_digest=EMPTY, updates=[{"swap": {"index": 1}}])[0] == 422
    assert wire.post("/table/query", digest="0" * 64) == {"rows": []}
    assert wire.post("/table/query_stats", digest="0" * 64) == {"count": 0}


def test_filter_sort_and_page(wire: Wire) -> None:
    rows = [{"a": {"b": value}, "n": place} for place, value in enumerate([3, "x", None, 1, True, [1], 2.5])]
    made = create(wire, rows)

    def order(*terms: tuple[str, str], **query: Any) -> list[int]:
        sort_by = [{"field": field, "direction": direction} for field, direction in terms]
        return [row["n"] for row in rows_of(wire, made["digest"], sort_by=sort_by, **query)]

    assert order() == [0, 1, 2, 3, 4, 5, 6]
    assert order(("a.b", "asc")) == [2, 3, 4, 6, 0, 5, 1]
    assert order(("a.b", "desc")) == [1, 5, 0, 6, 3, 4, 2]
    assert order(("a.c", "asc"), ("n", "desc"), limit=2, offset=1) == [5, 4]
    assert order(("n", "desc"), filter={"row_digests": made["row_digests"][2:4]}) == [3, 2]
    chosen = wire.post("/table/query", digest=made["digest"], filter={"row_digests": [made["row_digests"][5]]})["rows"]
    assert [row["original_index"] for row in chosen] == [5]
    assert order(limit=0) == [] and order(offset=9) == []
    for field in ("", ".a", "a.", "a..b", " "):
        sort_by = [{"field": field, "direction": "asc"}]
        assert status(wire, "/table/query", digest=made["digest"], sort_by=sort_by)[0] == 400
    for page in ({"limit": -1}, {"offset": -1}):
        assert status(wire, "/table/query", digest=made["digest"], **page)[0] == 400
    code, answer = status(wire, "/table/query", digest=made["digest"], limit=10_001)
    assert code == 413 and "max_page_rows" in answer["reason"]


def test_stats_of_several(wire: Wire) -> None:
    one, two = create(wire, [{"a": 1}, {"a": 1}])["digest"], create(wire, [])["digest"]
    asked = [one, "unknown", two]
    plain = wire.post("/table/query_stats_batch", digests=asked)["tables"]
    assert [(item["digest"], item["count"], item["storage_size_bytes"]) for item in plain] == [
        (one, 2, None),
        (two, 0, None),
    ]
    sized = wire.post("/table/query_stats_batch", digests=asked, include_storage_size=True)["tables"]
    assert [item["storage_size_bytes"] for item in sized] == [2 * len('{"a":1}'), 0]
    assert wire.post("/table/query_stats_batch") == {"tables": []}


def test_projects_see_their_own_tables_only(wire: Wire) -> None:
    made = create(wire, [{"a": 1}])
    other = {"project_id": "another/project", "digest": made["digest"]}
    assert wire.client.post("/table/query", json=other).json() == {"rows": []}
    assert wire.client.post("/table/query_stats", json=other).json() == {"count": 0}
    wire.client.post(
        "/table/create_from_digests", json={"project_id": "another/project", "row_digests": made["row_digests"]}
    )
    assert wire.client.post("/table/query", json=other).json() == {"rows": []}, "digests give no access to rows"


def test_ten_thousand_rows_are_paged_and_edited(wire: Wire) -> None:
    rows = [{"id": number, "text": f"row {number}"} for number in range(10_000)]
    made = create(wire, rows)
    assert wire.post("/table/query_stats", digest=made["digest"]) == {"count": 10_000}
    seen: list[Any] = []
    while page := rows_of(wire, made["digest"], limit=1000, offset=len(seen)):
        seen += page
    assert seen == rows
    last = rows_of(wire, made["digest"], sort_by=[{"field": "id", "direction": "desc"}], limit=2)
    assert last == [rows[-1], rows[-2]]
    updates = [{"pop": {"index": 5000}}, {"insert": {"index": 0, "row": {"id": -1}}}]
    edited = wire.post("/table/update", base_digest=made["digest"], updates=updates)["digest"]
    assert rows_of(wire, edited, limit=3, offset=5000) == [rows[4999], rows[5001], rows[5002]]
    assert edited == create(wire, [{"id": -1}, *rows[:5000], *rows[5001:]])["digest"]


@pytest.mark.parametrize("rows", [[1], ["x"], [None], [[1]], {}, "x"])
def test_rows_are_objects(wire: Wire, rows: Any) -> None:
    answer = wire.client.post("/table/create", json={"table": {"project_id": wire.project, "rows": rows}})
    assert answer.status_code == 422 and answer.json()["detail"][0]["loc"][:3] == ["body", "table", "rows"]


def test_a_long_answer_is_whole(wire: Wire) -> None:
    """More rows than are read at a time: in order, sorted, chosen, and of a table that lacks some."""
    rows = [{"n": number, "r": f"weave:///{wire.project}/object/o:{number}"} for number in range(2500)]
    made = create(wire, rows)
    assert rows_of(wire, made["digest"]) == rows
    assert rows_of(wire, made["digest"], offset=2400, limit=2000) == rows[2400:]
    assert rows_of(wire, made["digest"], offset=10, limit=2000) == rows[10:2010]
    assert rows_of(wire, made["digest"], limit=0) == rows_of(wire, made["digest"], offset=2500) == []
    down = [{"field": "n", "direction": "desc"}]
    assert rows_of(wire, made["digest"], sort_by=down) == rows[::-1]
    assert rows_of(wire, made["digest"], sort_by=down, offset=1, limit=1500) == rows[::-1][1:1501]
    chosen = {"row_digests": made["row_digests"][100:2200]}
    assert rows_of(wire, made["digest"], filter=chosen) == rows[100:2200]
    assert rows_of(wire, made["digest"], filter=chosen, sort_by=down, limit=1100) == rows[100:2200][::-1][:1100]
    names = [name for pair in zip(made["row_digests"], made["row_digests"], strict=True) for name in (pair[0], "x")]
    holed = wire.post("/table/create_from_digests", row_digests=names)["digest"]
    assert rows_of(wire, holed, offset=5, limit=2400) == rows[5:2405]
    assert len(rows_of(wire, holed)) == 2500
