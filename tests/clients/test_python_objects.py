"""Objects, ops, models, prompts, datasets and media through the Python SDK."""

import base64
import hashlib
import json
from typing import Any

import pytest

from tests.conftest import Client, Wire
from tests.support.selection import with_breadth

MODES: dict[str, dict[str, str]] = {"default": {}, "client digests": {"WEAVE_ENABLE_CLIENT_SIDE_DIGESTS": "true"}}


def versions(wire: Wire, name: str) -> list[dict[str, Any]]:
    """The live versions of one name with their labels, oldest first."""
    return wire.objects(filter={"object_ids": [name]}, include_tags_and_aliases=True)


@pytest.mark.parametrize("mode", with_breadth(MODES))
def test_objects(sdk: Client, wire: Wire, mode: str) -> None:
    """Publish, read, version, tag, alias and delete."""
    seen = sdk.run("objects.py", **MODES[mode])
    check_versions(wire, seen["versions"])
    check_nested(wire, seen["nested"])
    check_op_model_and_prompts(wire, seen)
    check_labels(seen["labels"])
    check_deletion(wire, seen["deletion"])


def check_versions(wire: Wire, seen: dict[str, Any]) -> None:
    """The same value is the same version; what was published comes back whole."""
    first, again, second, third = seen["digests"]
    assert first == again and len({first, second, third}) == 3
    assert seen["first"] == {"a": 1, "text": "é", "list": [1, 2.5, None, True]}
    assert seen["second"] == {"a": 2, "nested": {"b": [{"c": "d"}]}}
    assert (seen["latest"], seen["path"]) == ({"a": 3}, "d")
    stored = versions(wire, "config")
    assert [(item["digest"], item["version_index"], item["is_latest"]) for item in stored] == [
        (first, 0, 0),
        (second, 1, 1),
    ]
    assert [item["val"] for item in stored] == [seen["first"], seen["second"]]
    # The bytes that are hashed are public: sorted keys, the default separators, ASCII only.
    text = json.dumps(seen["first"], sort_keys=True)
    assert first == digest_of(text.encode())


def digest_of(data: bytes) -> str:
    """The content digest of the wire."""
    text = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()
    return text.replace("-", "X").replace("_", "Y").rstrip("=")


def check_nested(wire: Wire, seen: dict[str, Any]) -> None:
    """A published value inside another stays a ref in what is stored, and reads as the value."""
    assert (seen["value"], seen["plain"]) == ({"kind": "inner"}, 7)
    (holder,) = versions(wire, "holder")
    assert holder["val"] == {"inner": seen["uri"], "plain": 7}


def check_op_model_and_prompts(wire: Wire, seen: dict[str, Any]) -> None:
    """Ops run again from their stored code, models and prompts come back as what they were."""
    (op,) = versions(wire, "shout")
    assert [op["object_id"], op["digest"]] == seen["op"]["ref"] and op["kind"] == "op"
    assert seen["op"]["result"] == "ABAB"
    code = wire.file(op["val"]["files"]["obj.py"]).decode()
    assert code == seen["op"]["code"] and "text.upper() * times" in code
    models = versions(wire, "greeter")
    assert [item["val"]["greeting"] for item in models] == ["Hello", "Goodbye"]
    assert {(item["base_object_class"], item["leaf_object_class"]) for item in models} == {("Model", "Greeter")}
    assert models[0]["digest"] == seen["model"]["ref"][1]
    assert (seen["model"]["greeting"], seen["model"]["description"]) == ("Hello", "says hello")
    assert seen["model"]["prediction"] == "Hello Ada!"
    assert seen["prompts"]["string"] == "Answer it in Latin"
    assert [item["content"] for item in seen["prompts"]["messages"]] == ["You are a poet.", "Why?"]
    assert seen["prompts"]["content"] == "Answer {question} in {language}"
    prompts = wire.objects(filter={"base_object_classes": ["Prompt"]})
    assert {(item["object_id"], item["leaf_object_class"]) for item in prompts} == {
        ("string-prompt", "StringPrompt"),
        ("messages-prompt", "MessagesPrompt"),
    }


def check_labels(seen: dict[str, Any]) -> None:
    """Tags stay with their version, an alias moves, `latest` is nobody's to set."""
    assert (seen["by_alias"]["a"], seen["moved_alias"]["a"]) == (1, 2)
    assert seen["before"]["tags"] == ["blue team", "reviewed"]
    assert sorted(seen["before"]["aliases"]) == ["champion", "production", "stable"]
    assert seen["first"] == [["reviewed"], ["champion"]]
    assert seen["second"] == [["draft"], ["production"]]
    assert seen["third"] == [[], ["latest"]]
    assert seen["all_tags"] == ["draft", "reviewed"]
    assert seen["all_aliases"] == ["champion", "latest", "production"]
    assert seen["reserved"] != "no error"


def check_deletion(wire: Wire, seen: dict[str, Any]) -> None:
    """`latest` falls back, deleted versions are gone, others stay."""
    assert seen["after_one"]["latest"]["a"] == 2
    assert "no error" not in (seen["after_one"]["gone"], seen["gone"], seen["op_gone"])
    assert (seen["deleted"], seen["remaining"], seen["deleted_all"]) == (2, {"n": 1}, 1)
    assert versions(wire, "doomed") == versions(wire, "short_lived") == []
    first, second = versions(wire, "config")
    assert (first["tags"], first["aliases"]) == (["reviewed"], ["champion"])
    assert (second["tags"], sorted(second["aliases"])) == (["draft"], ["latest", "production"])
    answer = wire.client.post(
        "/obj/read", json={"project_id": wire.project, "object_id": "config", "digest": "v2", "metadata_only": True}
    )
    assert answer.status_code == 404 and answer.json()["deleted_at"]


@pytest.mark.parametrize("mode", with_breadth(MODES))
def test_datasets(sdk: Client, wire: Wire, mode: str) -> None:
    """Rows come back in order and unchanged, also ten thousand of them; a changed dataset is a new version."""
    seen = sdk.run("datasets.py", **MODES[mode])
    rows = [{"id": i, "question": f"{i}?", "expected": {"sum": i + 0.5, "tags": ["a", i]}} for i in range(5)]
    assert seen["small"] == rows
    assert (seen["grown"], seen["chosen"]) == ([0, 1, 2, 3, 4, 5], [3, 1])
    assert seen["row_value"] == rows[2]
    assert f"/object/small:{seen['small_digest']}/attr/rows/id/" in seen["row_ref"]
    assert seen["from_calls"] == [["x", "xx"], ["y", "yy"], ["z", "zz"]]
    assert (seen["large_count"], seen["large_in_order"], seen["large_last"]["id"]) == (10_000, True, 9_999)

    small = versions(wire, "small")
    assert [item["digest"] for item in small] == [seen["small_digest"], seen["grown_digest"]]
    assert {item["base_object_class"] for item in small} == {"Dataset"}
    first_table, second_table = (table_of(item) for item in small)
    stored = wire.post("/table/query", digest=first_table)["rows"]
    assert [row["val"] for row in stored] == rows
    assert seen["row_ref"].endswith(stored[2]["digest"])
    assert wire.post("/table/query_stats", digest=second_table)["count"] == 6
    (large,) = versions(wire, "large")
    assert large["digest"] == seen["large_digest"]
    assert wire.post("/table/query_stats", digest=table_of(large))["count"] == 10_000
    tail = wire.post("/table/query", digest=table_of(large), offset=9_998, limit=5)["rows"]
    assert [row["val"]["id"] for row in tail] == [9_998, 9_999]
    referring = f"{table_row_ref(seen['row_ref'], stored[4]['digest'])}/key/question"
    assert [call["inputs"]["question"] for call in wire.calls()] == ["x", "y", "z", referring]
    assert wire.call(seen["referring"])["output"] == "4?4?"
    assert seen["referring_input"] == "4?"
    (found,) = wire.calls(filter={"input_refs": [referring]})
    assert found["id"] == seen["referring"]


def table_row_ref(other: str, digest: str) -> str:
    """The ref of a row of the same dataset as the row with the ref `other`."""
    return f"{other.rsplit('/', 1)[0]}/{digest}"


def table_of(dataset: dict[str, Any]) -> str:
    """The digest of a dataset's table."""
    return str(dataset["val"]["rows"]).rsplit("/table/", 1)[1]


@pytest.mark.thorough
def test_media(sdk: Client, wire: Wire) -> None:
    """Pictures, sound and other content are files of the project, byte for byte."""
    seen = sdk.run("media.py")
    assert seen["image_in"] == seen["picture"] == [40, 30, [200, 30, 60]]
    assert seen["image_out"] == [40, 30]
    assert (seen["html"], seen["html_type"], seen["views"]) == ("<p>hello</p>", "text/html", ["page"])
    assert seen["heard_size"] == seen["heard_back"] == 1644
    assert (seen["blob_same"], seen["blob_type"]) == (True, "application/pdf")
    assert seen["moment"] == "2024-02-29T12:30:15.123456+00:00"

    picture = wire.call(seen["mirrored"])["inputs"]["image"]
    assert wire.file(picture["files"]["image.png"]).startswith(b"\x89PNG\r\n")
    html = wire.call(seen["written"])
    assert wire.file(html["output"]["files"]["content"]) == b"<p>hello</p>"
    assert wire.file(html["summary"]["weave"]["views"]["page"]["files"]["content"]) == b"# hello"
    sound = wire.call(seen["heard"])["inputs"]["audio"]["files"]
    assert seen["tone_sha"] in {hashlib.sha256(wire.file(digest)).hexdigest() for digest in sound.values()}
    (blob,) = versions(wire, "blob")
    assert hashlib.sha256(wire.file(blob["val"]["files"]["content"])).hexdigest() == seen["blob_sha"]
    assert json.loads(wire.file(blob["val"]["files"]["metadata.json"]))["mimetype"] == "application/pdf"
    assert seen["noise_back"] == seen["noise_sha"] and seen["noise_type"] == "image/png"
    assert seen["long_text_back"] and seen["long_output_back"]
    described = wire.call(seen["described"])
    assert described["inputs"]["url"]["weave_type"] == {"type": "weave.type_wrappers.Content.content.Content"}
    noise = wire.file(described["inputs"]["url"]["files"]["content"])
    assert hashlib.sha256(noise).hexdigest() == seen["noise_sha"]
    assert len(described["output"]) == 19 * 20_000
