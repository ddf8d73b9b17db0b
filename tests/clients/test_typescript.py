"""The unmodified npm `weave` package: ops, objects, evaluations, a wrapped OpenAI client."""

import base64
from collections import Counter
from typing import Any

import pytest

from tests.conftest import Client, Wire


def op_name(call: dict[str, Any]) -> str:
    """The op's own name."""
    return str(call["op_name"]).rsplit("/", 1)[-1].split(":")[0]


def test_ops(node: Client, wire: Wire) -> None:
    """Sync, async, nested, failing and streaming ops; attributes, names, usage, a picture, chat completions."""
    seen = node.run("ops.js")
    results = seen["results"]
    outer_output = {"first": 20, "second": 40, "note": "ünïcode ✓", "nothing": None}
    assert results == {
        "double": 42,
        "outer": outer_output,
        "survives": "caught inner trouble",
        "failure": "no luck",
        "counts": [0, 1, 2],
        "shown": "ABC",
        "invoked": 100,
        "answer": "Hello",
        "streamed": "Hello",
    }
    calls = wire.calls()
    assert (seen["count"], seen["limited"], seen["roots"]) == (14, 4, 11)
    names = Counter(op_name(call) for call in calls)
    assert names == {
        "double": 5,
        "outer": 1,
        "fails": 2,
        "survives": 1,
        "counts": 1,
        "shown": 1,
        "paint": 1,
        "openai.chat.completions.create": 2,
    }
    by_name = {op_name(call): call for call in calls}
    check_structure(calls, by_name, outer_output)
    check_failures(calls, by_name)
    check_details(wire, seen, calls, by_name)
    check_chat(wire, seen, [call for call in calls if op_name(call).startswith("openai")])


def check_structure(calls: list[dict[str, Any]], by_name: dict[str, Any], outer_output: dict[str, Any]) -> None:
    """Children hang below their parent, in its trace; outputs are whole."""
    outer = by_name["outer"]
    assert outer["inputs"] == {"arg0": 1, "arg1": 10} and outer["output"] == outer_output
    children = [call for call in calls if call["parent_id"] == outer["id"]]
    assert sorted(call["inputs"]["x"] for call in children) == [1, 2]
    assert {call["trace_id"] for call in children} == {outer["trace_id"]}
    assert by_name["counts"]["output"] == [0, 1, 2]
    assert all(call["ended_at"] >= call["started_at"] for call in calls)
    assert {call["attributes"]["weave"]["source"] for call in calls} == {"js-sdk"}


def check_failures(calls: list[dict[str, Any]], by_name: dict[str, Any]) -> None:
    """Errors are kept, and mark the parent that lived on."""
    failed = [call for call in calls if call["exception"]]
    assert sorted(call["exception"] for call in failed) == ["inner trouble", "no luck"]
    assert {call["summary"]["weave"]["status"] for call in failed} == {"error"}
    survivor = by_name["survives"]
    assert any(call["parent_id"] == survivor["id"] for call in failed)
    assert survivor["output"] == "caught inner trouble"
    others = [call for call in calls if not call["exception"] and call is not survivor]
    assert {call["summary"]["weave"]["status"] for call in others} == {"success"}


def check_details(wire: Wire, seen: dict[str, Any], calls: list[dict[str, Any]], by_name: dict[str, Any]) -> None:
    """Display names, attributes, reported usage, the picture's bytes."""
    shown = by_name["shown"]
    assert (shown["display_name"], shown["output"]) == ("Shown abc", "ABC")
    assert shown["summary"]["usage"]["house-model"]["prompt_tokens"] == 10
    (attributed,) = [call["attributes"] for call in calls if "env" in call["attributes"]]
    assert (attributed["env"], attributed["nested"]) == ("production", {"level": 3})
    assert (seen["displayName"], seen["output"]) == ("Fifty", 100)
    assert wire.call(seen["id"])["display_name"] == "Fifty"
    image = by_name["paint"]["output"]["image"]
    assert image["weave_type"] == {"type": "PIL.Image.Image"}
    assert wire.file(image["files"]["image.png"]) == base64.b64decode(seen["picture"])


def check_chat(wire: Wire, seen: dict[str, Any], chats: list[dict[str, Any]]) -> None:
    """The wrapped client records whole and streamed answers with their usage, which the server prices."""
    assert [call["inputs"]["messages"] for call in chats] == [[{"role": "user", "content": "Say hello"}]] * 2
    for call in chats:
        assert call["output"]["choices"][0]["message"]["content"] == "Hello"
        assert call["summary"]["usage"]["gpt-4o-2024-08-06"]["total_tokens"] == 15
        cost = seen["costs"][call["id"]]["gpt-4o-2024-08-06"]
        assert (cost["prompt_tokens"], cost["completion_tokens"], cost["requests"]) == (12, 3, 1)
        assert cost["prompt_tokens_total_cost"] == pytest.approx(12 * 2.5e-06)
        assert cost["completion_tokens_total_cost"] == pytest.approx(3 * 1e-05)
    assert set(seen["costs"]) == {call["id"] for call in chats}


def test_objects(node: Client, wire: Wire) -> None:
    """Plain values, datasets, prompts and ops come back, and are stored as the Python SDK would store them."""
    seen = node.run("objects.js")
    assert seen["first"] == {"a": 1, "text": "é", "list": [1, 2.5, None, True]}
    assert seen["second"] == {"a": 2}
    assert (seen["name"], seen["description"], seen["length"]) == ("sums", "small sums", 2)
    rows = [{"id": 0, "question": "1+1", "expected": 2}, {"id": 1, "question": "2+3", "expected": 5}]
    assert (seen["rows"], seen["used"]) == (rows, 6)
    assert seen["string"] == "Answer it"
    assert [item["content"] for item in seen["messages"]] == ["You are a poet.", "Why?"]

    objects = wire.objects()
    config = [item for item in objects if item["object_id"] == "config"]
    assert [item["digest"] for item in config] == seen["digests"]
    assert [item["is_latest"] for item in config] == [0, 1]
    kinds = {item["object_id"]: (item["kind"], item["base_object_class"]) for item in objects}
    assert kinds["sums"] == ("object", "Dataset")
    assert kinds["string-prompt"] == kinds["messages-prompt"] == ("object", "Prompt")
    assert kinds["twice"] == kinds["useRow"] == ("op", None)
    dataset = next(item for item in objects if item["object_id"] == "sums")
    assert seen["dataset"] == f"weave:///{wire.project}/object/sums:{dataset['digest']}"
    table = dataset["val"]["rows"].rsplit("/", 1)[1]
    stored = wire.post("/table/query", digest=table)["rows"]
    assert [row["val"] for row in stored] == rows
    (call,) = wire.calls()
    assert call["inputs"] == {"arg0": f"{seen['dataset']}/attr/rows/id/{stored[1]['digest']}"}
    code = next(item for item in objects if item["object_id"] == "twice")["val"]["files"]["obj.py"]
    assert b"function twice(x)" in wire.file(code)


def test_evaluations(node: Client, wire: Wire) -> None:
    """An evaluation that runs, one logged by hand, and a score as feedback."""
    seen = node.run("evaluations.js")
    assert seen["summary"]["exact"] == {"correct": {"true_count": 2, "true_fraction": pytest.approx(2 / 3)}}
    assert seen["summary"]["model_output"] == {"mean": 5}
    calls = wire.calls()
    names = Counter(op_name(call) for call in calls)
    assert seen["count"] == len(calls) == 20
    assert names == {
        "Evaluation.evaluate": 2,
        "Evaluation.predictAndScore": 3,
        "calculator": 4,
        "exact": 3,
        "Evaluation.predict_and_score": 2,
        "Model.predict": 2,
        "correct.score": 2,
        "Evaluation.summarize": 1,
        "judge": 1,
    }
    roots = Counter(op_name(call) for call in calls if call["parent_id"] is None)
    assert roots == {"Evaluation.evaluate": 2, "calculator": 1, "judge": 1}
    assert {call["summary"]["weave"]["status"] for call in calls} == {"success"}
    run = next(call for call in calls if op_name(call) == "Evaluation.evaluate")
    assert run["output"] == seen["summary"]

    rows = wire.post("/feedback/query")["result"]
    score = next(row for row in rows if row["id"] == seen["feedback"])
    assert score["feedback_type"] == "wandb.runnable.judge"
    assert score["weave_ref"] == f"weave:///{wire.project}/call/{seen['judged']}"
    assert score["call_ref"] == f"weave:///{wire.project}/call/{seen['scored']}"
    assert score["payload"] == {"output": {"length": 3}}
