"""Known object classes: what becomes of a value that is published as one of them, as the SDKs themselves compute it."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.errors import InvalidField, InvalidRequest
from heddle.trace.builtin_classes import kind_of, normalise
from heddle.trace.builtin_models import is_provider_address
from heddle.trace.objects import check_aliases, check_monitor, check_name, check_tags
from heddle.wire import refs
from tests.support.selection import examples

CLIENTS = Path(__file__).parents[2] / ".clients"
SDK_DIGESTS = """
import json, sys
try:
    from weave.shared.object_class_util import process_incoming_object_val
except ImportError:
    from weave.trace.serialization.object_class_util import process_incoming_object_val
for line in sys.stdin:
    name, value = json.loads(line)
    try:
        result = process_incoming_object_val(value, name)
        print(json.dumps([result["val"], result["base_object_class"], result["leaf_object_class"]], sort_keys=True))
    except Exception as error:
        print(json.dumps(None))
"""

PARTS: dict[str, Any] = {
    "$expr": {
        "$and": [
            {"$eq": [{"$getField": "a"}, {"$literal": 1}]},
            {"$in": [{"$getField": "a"}, [{"$literal": {"a": {"$literal": 1}}}, {"$literal": [{"$literal": None}]}]]},
            {"$contains": {"input": {"$getField": "x"}, "substr": {"$literal": "y"}}},
            {"$not": [{"$gt": [{"$convert": {"input": {"$getField": "a"}, "to": "int"}}, {"$literal": 1.5}]}]},
            {
                "$or": [
                    {"$gte": [{"$literal": True}, {"$literal": "é"}]},
                    {"$lte": [{"$literal": 0}, {"$literal": 0.0}]},
                ]
            },
            {"$lt": [{"$literal": 1}, {"$literal": 2}]},
        ]
    }
}
CHART = {"x_axis": "a", "y_axis": "b", "aggregation": "p95"}
VIEW: dict[str, Any] = {
    "filter": {"op_names": ["a"], "trace_roots_only": True},
    "query": PARTS,
    "cols": {"a": True},
    "columns": [{"path": ["a", 1]}, {"label": "b"}],
    "pin": {"left": ["a"], "right": []},
    "sort_by": [{"field": "a", "direction": "desc"}],
    "page_size": 50,
    "charts": [CHART],
    "dynamic_leaderboard_config": {
        "model_configuration": {
            "version_groups": [{"label": "l", "base_ref": "r", "versions": "*", "show_version_indicator": True}],
            "display_name_map": {"a": "b"},
        },
        "columns_configuration": [{"scorer_name": "s", "should_minimize": True}],
    },
}
LAYOUT = {"x": 0, "y": 0, "w": 12, "h": 3}
DASHBOARD = [
    {"id": "k", "layout": LAYOUT, "panel_type": "kpi", "settings": {"query": {"metric": "m"}}},
    {"id": "t", "layout": LAYOUT, "panel_type": "timeline", "settings": {"query": {"metric": "m", "group_by": "g"}}},
    {
        "id": "b",
        "layout": LAYOUT,
        "panel_type": "breakdown",
        "settings": {"query": {"metric": "m", "groupBy": "g", "format": "cost"}, "title": "t"},
    },
]

CASES: list[tuple[str, Any]] = [
    (
        "TestOnlyExample",
        {"primitive": 1, "nested_base_model": {"a": 1, "aliased_property_alias": 2}, "nested_base_object": "x"},
    ),
    (
        "TestOnlyExample",
        {"primitive": "1", "nested_base_model": {"a": 1, "aliased_property": 2}, "nested_base_object": "x"},
    ),
    ("TestOnlyNestedBaseObject", {"b": 2, "name": "n", "extra": 1}),
    ("TestOnlyInheritedBaseObject", {"b": 2, "c": 3}),
    ("TestOnlyInheritedBaseObject", {"b": 2}),
    ("Leaderboard", {"columns": [{"evaluation_object_ref": "r", "scorer_name": "s", "summary_metric_path": "p"}]}),
    ("Leaderboard", {"columns": []}),
    ("AlertSpec", {}),
    ("AlertSpec", {"spec": {"threshold": 1, "aggregation_function": "count", "new_key": {"a": 1}}, "op_scope": ["x"]}),
    ("AlertSpec", {"spec": {"aggregation_function": "sum"}}),
    ("AnnotationSpec", {"field_schema": {"type": "string", "maxLength": 3}, "op_scope": ["a"]}),
    ("AnnotationSpec", {"field_schema": {"type": "no such type"}}),
    ("AnnotationSpec", {"name": "é"}),
    ("Provider", {"base_url": "https://models.example.com/v1", "api_key_name": "KEY"}),
    (
        "Provider",
        {"base_url": "http://8.8.8.8", "api_key_name": "K", "extra_headers": {"a": "b"}, "return_type": "openai"},
    ),
    ("Provider", {"base_url": "ftp://example.com", "api_key_name": "K"}),
    ("Provider", {"base_url": "https://example.com/?", "api_key_name": "K"}),
    ("Provider", {"base_url": "http://169.254.169.254/latest", "api_key_name": "K"}),
    ("Provider", {"base_url": "http://0xA9FEA9FE/", "api_key_name": "K"}),
    ("Provider", {"base_url": "http://metadata.google.internal", "api_key_name": "K"}),
    ("Provider", {"base_url": "https://a.example", "api_key_name": "K", "extra_headers": {"Metadata-Flavor": "x"}}),
    ("ProviderModel", {"provider": "p", "max_tokens": 5}),
    ("ProviderModel", {"provider": "p", "max_tokens": 5.5}),
    ("SavedView", {"view_type": "traces", "label": "l", "definition": VIEW}),
    ("SavedView", {"view_type": "traces", "label": "l", "definition": {}}),
    ("SavedView", {"view_type": "traces", "label": "l", "definition": {"filter": {"unknown": 1}}}),
    ("SavedView", {"view_type": "traces", "label": "l", "definition": {"query": {"$expr": {"$what": []}}}}),
    ("ComparisonView", {"label": "l", "definition": {"evaluation_call_ids": ["a"]}}),
    ("LLMStructuredCompletionModel", {"llm_model_id": "m"}),
    ("LLMStructuredCompletionModel", {"llm_model_id": "m", "unknown": 1}),
    ("LLMStructuredCompletionModel", {"llm_model_id": "m", "default_params": None}),
    (
        "LLMStructuredCompletionModel",
        {
            "llm_model_id": "m",
            "name": "n",
            "default_params": {
                "messages_template": [{"role": "user", "content": "hi"}, {"role": "a", "content": [{"x": 1}]}],
                "temperature": 1,
                "stop": ["a"],
                "n_times": 2,
                "functions": [{"f": 1}],
                "response_format": "json_object",
                "unknown": 1,
            },
        },
    ),
    ("ChartConfig", CHART),
    ("NoSuchClass", {}),
]
NEWER: list[tuple[str, Any]] = [
    ("AgentDashboard", {"label": "l", "definition": {"panels": DASHBOARD}}),
    ("AgentDashboard", {"label": "l", "definition": {"panels": [{**DASHBOARD[0], "layout": {**LAYOUT, "x": 20}}]}}),
    ("AgentDashboard", {"label": "l", "definition": {"panels": [], "unknown": 1}}),
    ("ComparisonView", {"label": "l", "definition": {"evaluation_call_ids": ["a"], "column_visibility": {"a": True}}}),
]


def by_sdk(version: str, cases: list[tuple[str | None, Any]]) -> list[Any]:
    """`[value, base class, leaf class]` as that SDK normalises them, None where it refuses; skips without the SDK."""
    python = CLIENTS / f"weave-{version}" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"weave {version} is not installed: run `make clients`")
    lines = "\n".join(json.dumps(case) for case in cases)
    done = subprocess.run([str(python), "-c", SDK_DIGESTS], input=lines, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith(("[", "null"))]


def by_heddle(case: tuple[str | None, Any]) -> Any:
    """The same by heddle."""
    name, value = case
    try:
        value, base, leaf = normalise(value, name)
    except InvalidRequest:
        return None
    return json.loads(json.dumps([value, base, leaf], sort_keys=True))


@pytest.mark.thorough
def test_the_server_package_computes_the_same() -> None:
    expected = by_sdk("0.53.0", [*CASES])
    assert [by_heddle(case) for case in CASES] == expected
    assert sum(item is None for item in expected) == 17


@pytest.mark.thorough
def test_the_newest_client_computes_the_same() -> None:
    # It writes a column visibility into every comparison, and drops keys that a filter does not have.
    older = [case for case in CASES if case[0] != "ComparisonView" and "unknown" not in json.dumps(case[1])]
    cases = [*NEWER, *older]
    assert [by_heddle(case) for case in cases] == by_sdk("0.54.0", [*cases])


words = st.sampled_from(["_type", "_class_name", "_bases", "a", "Model", "BaseObject", "Object", "BaseModel", "Op"])
shapes = st.recursive(
    st.none() | st.integers() | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=5),
)
bases = (
    st.lists(words, max_size=4)
    | st.just(["Thing", "Model", "Object", "BaseModel"])
    | st.just(["BaseObject", "BaseModel"])
)
classed = st.fixed_dictionaries({"_bases": bases, "_class_name": words, "x": shapes})


@settings(max_examples=examples(300))
@given(shapes | classed)
def test_a_value_without_a_known_class_is_kept_as_it_is(value: Any) -> None:
    before = json.dumps(value)
    kept, base, leaf = normalise(value, None)
    assert json.dumps(kept) == before
    assert (base is None) == (leaf is None)
    if leaf is not None:
        assert leaf == value["_class_name"] and value["_bases"][-1] == "BaseModel"
        assert base == (value["_bases"][-3] if len(value["_bases"]) > 2 else leaf)
    assert kind_of(value) in ("op", "object")


def test_vectors_that_no_sdk_is_needed_for() -> None:
    known = dict(CASES[:1] + CASES[2:3])
    computed = {name: refs.value_digest(normalise(value, name).value) for name, value in known.items()}
    assert computed["TestOnlyExample"] == "f8MeGCzs8MlERF3QzzKqREkiC6yadxISbTFS9rlfcSc"
    plain_alert = normalise({"spec": {"foo": 1, "threshold": 1}}, "AlertSpec")
    assert refs.value_digest(plain_alert.value) == "56eUYe431ZhsS82XBCFJj1ttE9URxXpGQ97j2Hh9dn4"
    assert plain_alert.base_class == plain_alert.leaf_class == "AlertSpec"
    model = normalise({"llm_model_id": "m"}, "LLMStructuredCompletionModel")
    assert (model.base_class, model.leaf_class) == ("Model", "LLMStructuredCompletionModel")
    assert refs.value_digest(model.value) == "G5KXo7BX2MhuNv6UCzUYeHTXEJ6KvBKCenXJuxoJgug"


def test_a_model_server_of_ones_own_is_a_provider() -> None:
    for url in ("http://127.0.0.1:8470/inference/v1", "http://localhost:8000", "http://10.0.0.7:11434/v1"):
        assert normalise({"base_url": url, "api_key_name": "K"}, "Provider").value["base_url"] == url


@pytest.mark.parametrize(("value", "name"), [([1], "Leaderboard"), ("x", "Leaderboard"), (None, "Leaderboard")])
def test_only_objects_have_a_class(value: Any, name: str) -> None:
    with pytest.raises(InvalidRequest):
        normalise(value, name)


def test_a_value_that_names_its_class_must_name_the_one_that_is_asked_for() -> None:
    value = {"_class_name": "Mine", "_bases": ["Object", "BaseModel"]}
    assert normalise(value, "Mine").value is value
    with pytest.raises(InvalidRequest, match="must match"):
        normalise(value, "Leaderboard")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"_type": "CustomWeaveType", "weave_type": {"type": "Op"}}, "op"),
        ({"_type": "Op"}, "op"),
        ({"weave_type": {"type": "Op"}}, "object"),
        ({"_type": "Op", "weave_type": {"type": "Image"}}, "object"),
        ({"_type": "Op", "weave_type": "Op"}, "object"),
        ("Op", "object"),
    ],
)
def test_kinds(value: Any, kind: str) -> None:
    assert kind_of(value) == kind


@pytest.mark.parametrize(
    ("name", "error"),
    [*((name, InvalidField) for name in ("", ".", "..", "a b", "a/b")), ("é" * 129, InvalidRequest)],
)
def test_names_that_are_refused(name: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        check_name(name)


@pytest.mark.parametrize("name", ["a", "é" * 128, "a.b-c_1", "...", "日本"])
def test_names_that_are_taken(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize("tag", ["", " a", "a ", "a  b", "a,b", "x" * 257, "a\n"])
def test_tags_that_are_refused(tag: str) -> None:
    with pytest.raises(ValueError, match="tag name"):
        check_tags([tag])


@pytest.mark.parametrize("alias", ["", " ", "a/b", "a:b", "latest", "v1", "x" * 129])
def test_aliases_that_are_refused(alias: str) -> None:
    with pytest.raises(ValueError, match="alias name"):
        check_aliases([alias])


def test_labels_are_taken_once() -> None:
    assert check_tags(["two words", "é-1_x", "two words"]) == ["two words", "é-1_x"]
    assert check_aliases(["best", "v", "v1x", "a b!", "best"]) == ["best", "v", "v1x", "a b!"]


def monitor(query: Any, **more: Any) -> None:
    """Check a monitor with a query, its parts marked as clients mark them."""
    check_monitor("Monitor", "Monitor", {"query": {"_type": "Query", **query}, **more})


def test_monitors_query_fields_that_calls_have() -> None:
    good = {"$expr": {"_type": "EqOperation", "$eq": [{"$getField": "inputs.x", "_bases": []}, {"$literal": 1}]}}
    bad = {"$expr": {"$eq": [{"$getField": "nonsense"}, {"$literal": 1}]}}
    monitor(good)
    monitor({"$expr": {"$unknown": []}})
    monitor(bad, op_names=["weave.genai.turn_ended"])
    check_monitor("Model", "Model", {"query": bad})
    with pytest.raises(InvalidField, match="nonsense"):
        monitor(bad)
    with pytest.raises(InvalidRequest):
        monitor({"$expr": {"$and": []}})


OF_MACHINES = (
    *("169.254.169.254", "0xA9FEA9FE", "[fe80::1]", "[::ffff:169.254.169.254]", "[64:ff9b::a9fe:a9fe]"),
    *("[2002:a9fe:a9fe::1]", "100.100.100.200", "168.63.129.16", "192.0.0.192", "[fd00:ec2::254]"),
    *("metadata.google.internal.", "metadata.tencentyun.com", "224.0.0.1", "0.0.0.0"),
)
OF_PROVIDERS = ("127.0.0.1:8000", "10.0.0.7", "[fd00::7]", "100.64.0.7", "models.example.com", "[64:ff9b::808:808]")


@pytest.mark.parametrize("host", OF_MACHINES)
def test_no_provider_is_where_machines_learn_their_secrets(host: str) -> None:
    assert not is_provider_address(f"http://{host}/v1")


@pytest.mark.parametrize("host", OF_PROVIDERS)
def test_a_provider_may_be_of_a_private_network(host: str) -> None:
    assert is_provider_address(f"https://{host}/v1")
