"""Small requests that would make much of what is stored: they are refused by name, or answered piece by piece."""

from typing import Any

import httpx
import pytest

from heddle.inference.served_model import TINY
from tests.conftest import Wire
from tests.support.server import HeddleProcess

LARGE = "x" * 3_000_000
LABEL = "production"


@pytest.fixture
def large(wire: Wire) -> str:
    """The ref of an object of 3 MB."""
    made = wire.post("/obj/create", obj={"project_id": wire.project, "object_id": "large", "val": {"a": LARGE}})
    return f"weave:///{wire.project}/object/large:{made['digest']}"


def start(wire: Wire, number: int, **inputs: Any) -> None:
    """A call with these inputs."""
    call = {"project_id": wire.project, "id": f"c{number}", "trace_id": "t", "op_name": "o", "attributes": {}}
    wire.post("/call/start", start={**call, "started_at": "2026-01-01T00:00:00Z", "inputs": inputs})


def test_many_refs_to_one_large_object(wire: Wire, large: str) -> None:
    for ref in (large, f"{large}/attr/a"):
        assert len(wire.post("/refs/read_batch", refs=[ref] * 2)["vals"]) == 2
        refused = wire.client.post("/refs/read_batch", json={"refs": [ref] * 60})
        assert (refused.status_code, refused.json()["reason"]) == (
            413,
            "Request too large: the values exceed 134217728 bytes; ask for fewer refs",
        )


def test_a_call_whose_refs_lead_to_one_large_object(wire: Wire, large: str) -> None:
    names = [f"k{number}" for number in range(12)]
    start(wire, 0, **dict.fromkeys(names, large))
    asked = {"project_id": wire.project, "expand_columns": [f"inputs.{name}" for name in names]}
    refused = wire.client.post("/calls/stream_query", json=asked)
    assert (refused.status_code, refused.json()["reason"]) == (
        413,
        "Request too large: expand_columns adds more than 33554432 bytes to c0",
    )
    (call,) = wire.calls(expand_columns=["inputs.k0"])
    assert call["inputs"]["k0"] == {"a": LARGE, "_ref": large} and call["inputs"]["k1"] == large


def test_calls_that_become_large_come_in_parts_and_in_their_order(wire: Wire, large: str) -> None:
    for number in range(9):
        start(wire, number, k=large if number != 4 else "small")
    found = wire.calls(expand_columns=["inputs.k"], sort_by=[{"field": "id", "direction": "asc"}])
    assert [call["id"] for call in found] == [f"c{number}" for number in range(9)]
    for number, call in enumerate(found):
        assert call["inputs"]["k"] == ({"a": LARGE, "_ref": large} if number != 4 else "small")


def test_a_conversation_of_refs_to_one_large_text_keeps_them(wire: Wire, large: str) -> None:
    said = [{"role": "user", "content": f"{large}/attr/a"}]
    start(wire, 0, messages=said * 12)
    start(wire, 1, messages=said)
    many, one = (wire.post("/call/read", id=f"c{number}", include_conversation=True)["call"] for number in (0, 1))
    assert LARGE not in str(many["conversation"]) and LARGE in str(one["conversation"])


def test_a_long_list_of_objects_is_that_of_short_ones(wire: Wire) -> None:
    made = [
        wire.post("/obj/create", obj={"project_id": wire.project, "object_id": name, "val": {"n": name + LARGE}})
        for name in ("one", "two")
    ]
    see = f"weave:///{wire.project}/object/one:{made[0]['digest']}"
    wire.post("/obj/create", obj={"project_id": wire.project, "object_id": "three", "val": {"see": see}})
    listed = wire.objects()
    assert [item["val"] for item in listed] == [{"n": f"one{LARGE}"}, {"n": f"two{LARGE}"}, {"see": see}]
    short = wire.objects(filter={"object_ids": ["three"]})
    assert short == listed[2:]


def test_prompts_that_refer_to_prompts(server: HeddleProcess, project: str) -> None:
    """Each is read once, however often others refer to it; what they put in is bounded."""
    with httpx.Client(base_url=server.url, headers={"project_id": project}) as client:

        def create(name: str, prompt: str) -> None:
            made = {"name": name, "prompt": prompt, "labels": [LABEL]}
            assert client.post("/api/public/v2/prompts", json=made).status_code == 201

        def use(name: str) -> str:
            return f"@@@langfusePrompt:name={name}|label={LABEL}@@@"

        create("leaf", "l")
        for level in range(3):
            for name in ("a", "b", "c"):
                below = [f"{other}{level - 1}" for other in ("a", "b", "c")] if level else ["leaf"]
                create(f"{name}{level}", "".join(map(use, below)))
        create("top", use("a2") + use("b2"))
        found = client.get("/api/public/v2/prompts/top").json()
        assert found["prompt"] == "l" * 18
        graph = found["resolutionGraph"]
        assert len(graph["resolvedPrompts"]) == 9  # c2 is not used
        assert sorted(map(len, graph["dependencies"].values())) == [1, 1, 1, 2, 3, 3, 3, 3, 3]
        for level in ("x1", "x2", "x3", "x4", "x5", "x6"):
            create(level, use("leaf" if level == "x1" else f"x{int(level[1]) - 1}"))
        create("deep", use("x2") + use("x5"))
        assert "nested deeper than 5" in client.get("/api/public/v2/prompts/deep").json()["message"]
        create("wide", "y" * 50_000)
        create("wider", use("wide") * 100)
        refused = client.get("/api/public/v2/prompts/wider")
        assert refused.status_code == 400 and "exceed 4194304 characters in total" in refused.json()["message"]
        assert client.get("/api/public/v2/prompts/wider?resolve=false").json()["prompt"] == use("wide") * 100


@pytest.mark.parametrize(
    ("messages", "variables"),
    [
        ([{"role": "user", "content": "{a}" * 100}], {"a": "x" * 100_000}),
        ([{"role": "user", "content": "{a}" * 100}], {"a": {"b": "x" * 100_000}}),
        ([], {"history": [{"role": "user", "content": "hi"}] * 1000}),
    ],
    ids=["text", "object", "placeholder"],
)
def test_variables_put_in_so_much(wire: Wire, messages: list[Any], variables: dict[str, Any]) -> None:
    prompt = {"_type": "MessagesPrompt", "_class_name": "MessagesPrompt", "_bases": ["Prompt", "Object", "BaseModel"]}
    prompt["messages"] = [{"type": "placeholder", "name": "history"}] * 200  # type: ignore[assignment]
    wire.post("/obj/create", obj={"project_id": wire.project, "object_id": "p", "val": prompt})
    inputs = {"model": TINY, "max_tokens": 1, "messages": messages, "template_vars": variables}
    made = wire.post("/completions/create", inputs=inputs if messages else {**inputs, "prompt": "p:latest"})
    assert made["response"]["error"] == "the values of template_vars exceed 8388608 characters"


def test_a_conversation_that_is_too_long_is_not_continued(server: HeddleProcess, project: str) -> None:
    """All that they hold is read for each answer."""
    headers = {"openai-project": project, "authorization": "Bearer any"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=120) as client:
        kept = client.post("/v1/conversations", json={}).json()["id"]
        items = [{"role": "user", "content": "word " * 70_000}] * 20
        answers = [client.post(f"/v1/conversations/{kept}/items", json={"items": items}) for _ in range(11)]
        assert [answer.status_code for answer in answers] == [200] * 10 + [400]
        for path in ("/v1/responses", "/v1/responses/input_tokens"):
            asked = {"model": TINY, "conversation": kept, "input": "hi", "truncation": "auto"}
            refused = client.post(path, json=asked)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "conversation")
            assert "conversation has more than 67108864 characters" in refused.json()["error"]["message"]
        newest = client.get(f"/v1/conversations/{kept}/items?limit=20").json()["data"]
        assert len(newest) == 20
        for item in newest:
            assert client.delete(f"/v1/conversations/{kept}/items/{item['id']}").status_code == 200
        counted = client.post("/v1/responses/input_tokens", json={"model": TINY, "conversation": kept, "input": "hi"})
        assert "maximum context length" in counted.json()["error"]["message"]
