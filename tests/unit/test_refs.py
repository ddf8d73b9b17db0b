"""Refs: in, out, taken apart, and walked."""

import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.errors import InvalidRequest
from heddle.wire import refs

plain = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/:"), min_size=1, max_size=20)
name = plain.filter(lambda text: text not in refs.DOTS)
project_ids = st.builds("{}/{}".format, name, name)
part = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=10)
edges = st.lists(st.tuples(st.sampled_from(["attr", "key", "index", "id"]), part), max_size=4)


def everybody(project_id: str) -> bool:
    """Allows every project."""
    return True


def nobody(project_id: str) -> bool:
    """Allows no project."""
    return False


@given(project_ids)
def test_projects_there_and_back(project_id: str) -> None:
    internal = refs.internal_project(project_id)
    assert refs.external_project(internal) == project_id
    assert set(internal) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


def test_a_project_has_at_most_512_letters() -> None:
    project_id = "e/" + "字" * (refs.MAX_PROJECT_LENGTH - 2)
    assert refs.external_project(refs.internal_project(project_id)) == project_id
    with pytest.raises(InvalidRequest, match="longer than 512 characters"):
        refs.internal_project(project_id + "p")


@pytest.mark.parametrize("project_id", ["../p", "e/..", "./p", "e/."])
def test_a_project_that_no_address_can_hold(project_id: str) -> None:
    with pytest.raises(InvalidRequest, match=r"neither part can be '.' or '..'"):
        refs.internal_project(project_id)


@pytest.mark.parametrize(
    ("headers", "project"),
    [
        ({"x-project": " ann/d\u00c3\u00a9mo "}, "ann/d\u00e9mo"),
        ({"x-project": "ann/d\u00e9mo"}, "ann/d\u00e9mo"),
        ({"x-project": "ann/\u20ac"}, "ann/\u20ac"),
        ({"other": "ann/demo"}, ""),
    ],
)
def test_a_project_in_a_header_is_utf_8_or_latin_1(headers: dict[str, str], project: str) -> None:
    assert refs.project_in(headers, "x-project") == project


@given(project_ids, st.sampled_from(["object/a:b", "op/a:b/attr/x", "call/1", "table/2", "call", ""]))
def test_refs_there_and_back_through_json(project_id: str, tail: str) -> None:
    external = f"weave:///{project_id}/{tail}"
    sent = json.dumps({"a": [external, {"b": external}], external: "key"}).encode()
    body = json.loads(refs.convert_in(sent, everybody))
    assert body["a"][0] == f"weave-trace-internal:///{refs.internal_project(project_id)}/{tail}"
    assert external in body, "keys stay as they are"
    assert json.loads(refs.convert_out(json.dumps(body).encode())) == {
        "a": [external, {"b": external}],
        external: "key",
    }


@given(project_ids, st.sampled_from(["object", "op"]), plain, plain, edges)
def test_parse_reads_what_clients_write(project_id: str, kind: str, name: str, version: str, path: Any) -> None:
    project = refs.internal_project(project_id)
    spelled = "".join(f"/{edge}/{quote(text, safe='')}" for edge, text in path)
    name, version = name.replace("%", "_"), version.replace("%", "_")
    parsed = refs.parse(refs.object_ref(project, kind, name, version) + spelled)
    assert parsed == refs.Ref(project, kind, name, version, tuple(path))


@pytest.mark.parametrize(
    "tail",
    [
        "object",
        "object/",
        "object/a",
        "object/a:",
        "object/:b",
        "object/a:b/attr",
        "call/",
        "call/a/b",
        "table",
        "thing/a",
        "",
    ],
)
def test_parse_refuses(tail: str) -> None:
    with pytest.raises(InvalidRequest):
        refs.parse(f"weave-trace-internal:///abc/{tail}")


@pytest.mark.parametrize("text", ["weave:///a", "weave:///a/b", "weave:///", "weave:///a//object/x:y"])
def test_malformed_external_refs_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        refs.convert_in(json.dumps([text]).encode(), everybody)


def test_internal_refs_are_let_in_only_where_the_caller_may_read() -> None:
    internal = refs.object_ref(refs.internal_project("e/p"), "object", "o", "d")
    assert json.loads(refs.convert_in(json.dumps([internal]).encode(), everybody)) == [internal]
    for text, allowed in ((internal, nobody), ("weave-trace-internal:///nonsense/object/o:d", everybody)):
        with pytest.raises(InvalidRequest):
            refs.convert_in(json.dumps([text]).encode(), allowed)


@pytest.mark.parametrize(
    ("text", "there"),
    [
        (r'"weave:\/\/\/e\/p\/object\/o:d"', "weave-trace-internal:///ZS9w/object/o:d"),
        (r'"\u0077eave:///e/p/object/o:\u00e9\"x"', 'weave-trace-internal:///ZS9w/object/o:é"x'),
        (r'"weave:///\u0065/p/call/1"', "weave-trace-internal:///ZS9w/call/1"),
        (r'"\"weave:///e/p/call/1"', '"weave:///e/p/call/1'),
        (r'"\\\"weave:///e/p/call/1"', '\\"weave:///e/p/call/1'),
        (r'"say weave:///e/p/call/1"', "say weave:///e/p/call/1"),
        (r'"\u0022weave:///e/p/call/1\\/"', '"weave:///e/p/call/1\\/'),
        (r'"weave"', "weave"),
    ],
)
def test_refs_are_found_however_their_json_is_written(text: str, there: str) -> None:
    assert json.loads(refs.convert_in(b"[%b]" % text.encode(), everybody)) == [there]
    key = json.loads(text)
    assert json.loads(refs.convert_in(b"{%b : 1}" % text.encode(), everybody)) == {key: 1}


def test_a_project_that_is_none_of_ours_becomes_private_on_the_way_out() -> None:
    text = refs.convert_out(b'["weave-trace-internal:///%%%/object/o:d"]')
    assert json.loads(text) == ["weave-private://///object/o:d"]


@given(st.text())
def test_text_that_only_mentions_a_ref_is_left_alone(text: str) -> None:
    body = json.dumps(["see weave-trace-internal:///abc/" + text, '"weave-trace-internal:///abc/' + text]).encode()
    assert refs.convert_out(body) == body


@given(
    st.recursive(st.text(max_size=5) | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
)
def test_find_counts_every_ref_at_any_depth(value: Any) -> None:
    ref = "weave-trace-internal:///abc/call/1"
    assert sum(1 for found in refs.find({"x": ref, "y": [[ref]], "z": value}) if found == ref) == 2


@pytest.mark.parametrize(
    ("value", "edge", "name", "result"),
    [
        ({"a": 1}, "key", "a", 1),
        ({"a": 1}, "attr", "a", 1),
        ({"a": 1}, "key", "b", None),
        ([1, 2], "index", "1", 2),
        ([1, 2], "index", "2", None),
        ([1, 2], "index", "-1", None),
        ([1, 2], "index", "²", None),
        ([1, 2], "key", "1", None),
        ({"1": 2}, "index", "1", None),
        ("text", "key", "a", None),
        (None, "key", "a", None),
        ({"a": 1}, "id", "a", None),
    ],
)
def test_one_step(value: Any, edge: str, name: str, result: Any) -> None:
    assert refs.follow_edge(value, edge, name) == result


@given(st.recursive(st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)), edges)
def test_no_path_breaks_the_walk(value: Any, path: Any) -> None:
    for edge, name in path:
        value = refs.follow_edge(value, edge, name)
    assert value is None or isinstance(value, (int, list, dict))


def test_one_ref_on_the_way_out() -> None:
    assert refs.to_external(refs.to_internal("weave:///ann/demo/object/a:b")) == "weave:///ann/demo/object/a:b"
    assert refs.to_external(f"{refs.INTERNAL}!!!/object/a:b") == f"{refs.PRIVATE}object/a:b"


def test_refs_are_replaced_at_any_depth_by_what_was_found() -> None:
    ref, other = f"{refs.INTERNAL}p/object/a:b", f"{refs.INTERNAL}p/object/c:d"
    found = {ref: {"n": 1}, other: None}
    value = {"x": [ref, other, "text", 3], "y": {"z": ref}}
    assert refs.replace(value, found) == {"x": [{"n": 1}, other, "text", 3], "y": {"z": {"n": 1}}}
    assert value["x"] == [ref, other, "text", 3]


@pytest.mark.parametrize(
    ("op_name", "name"),
    [
        ("plain/op/x:1", "plain/op/x:1"),
        (f"{refs.INTERNAL}p/op/my%20op:abc/attr/x", "my op"),
        ("weave:///ann/demo/object/Thing.predict:*", "Thing.predict"),
        (f"{refs.INTERNAL}p/call/x", f"{refs.INTERNAL}p/call/x"),
    ],
)
def test_the_name_of_an_operation(op_name: str, name: str) -> None:
    assert refs.operation_name(op_name) == name


@pytest.mark.parametrize(
    ("ref", "label"),
    [
        (f"{refs.INTERNAL}p/object/words:abc", "words"),
        (f"{refs.INTERNAL}p/op/ask:abc", "ask"),
        (f"{refs.INTERNAL}p/object/words:abc/attr/rows/key/{'k' * 50}", f"words…{'k' * 40}"),
        (f"{refs.INTERNAL}p/object/words:abc/attr/rows", "words…rows"),
        (f"{refs.INTERNAL}p/object/words:abc/attr/rows/index/3/key/text", "words…text"),
        (f"{refs.INTERNAL}p/call/0123456789", "call 01234567"),
        ("no ref", "no ref"),
    ],
)
def test_what_people_call_the_target_of_a_ref(ref: str, label: str) -> None:
    assert refs.label(ref) == label


def test_one_text_on_the_way_in() -> None:
    external = "weave:///ann/demo/object/a:b"
    internal = refs.to_internal(external)
    assert refs.convert_ref(external, lambda _: False) == internal
    assert refs.convert_ref(internal, lambda project: project == "ann/demo") == internal
    assert refs.convert_ref("text", lambda _: False) == "text"


def test_the_ref_of_a_call() -> None:
    assert refs.call_ref("ZS9w", "a/b") == "weave-trace-internal:///ZS9w/call/a%2Fb"
    assert refs.parse(refs.call_ref("ZS9w", "a/b")) == refs.Ref("ZS9w", "call", "a/b")


def test_a_part_of_a_ref_is_encoded() -> None:
    assert refs.quote_part("a/b c:é") == "a%2Fb%20c%3A%C3%A9"
