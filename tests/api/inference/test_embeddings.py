"""POST /v1/embeddings: every form of input, vectors of length 1, base64, dimensions, batches, and what is refused."""

import base64
import json
import math
import uuid
from array import array
from pathlib import Path
from typing import Any

import httpx
import pytest

from heddle.inference.served_model import TINY_FOLDER
from tests.support.chat import TINY, Chat, encoded, error_of
from tests.support.models import make_adapter, spoil_weights
from tests.support.selection import with_breadth
from tests.support.server import HeddleProcess, free_port
from tests.support.vllm_server import LookAlikeProcess

TEXT = "the sum of two and three is five"
OTHER = "copy these letters then count them"


class Embeddings:
    """A caller of the route."""

    def __init__(self, chat: Chat) -> None:
        self.chat = chat

    def ask(self, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
        """The raw answer for a text with these fields over it."""
        body = {"model": self.chat.model, "input": TEXT, **fields}
        return self.chat.client.post("/v1/embeddings", json=body, headers=headers)

    def answer(self, **fields: Any) -> dict[str, Any]:
        """The body of an answer that must succeed."""
        answer = self.ask(**fields)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def vectors(self, **fields: Any) -> list[list[float]]:
        """The vectors, in order."""
        data = self.answer(**fields)["data"]
        assert [entry["index"] for entry in data] == list(range(len(data)))
        return [entry["embedding"] for entry in data]

    def refused(self, status: int, **fields: Any) -> dict[str, Any]:
        """The error object of a refusal."""
        answer = self.ask(**fields)
        assert answer.status_code == status, answer.text
        return error_of(answer)


@pytest.fixture
def embeddings(chat: Chat) -> Embeddings:
    return Embeddings(chat)


def close(one: list[float], other: list[float]) -> bool:
    """Whether two vectors are the same but for the last bits, which depend on the batch."""
    return one == pytest.approx(other, abs=1e-5)


def test_the_fields_of_an_answer(embeddings: Embeddings) -> None:
    body = embeddings.answer()
    assert set(body) == {"id", "object", "created", "model", "data", "usage"}
    assert (body["object"], body["model"]) == ("list", TINY) and body["id"].startswith("embd-")
    (entry,) = body["data"]
    assert (entry["object"], entry["index"]) == ("embedding", 0)
    assert math.hypot(*entry["embedding"]) == pytest.approx(1.0, abs=1e-6)
    tokens = len(encoded(TEXT))
    assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] == tokens
    assert body["usage"]["completion_tokens"] == 0


def test_the_four_forms_of_an_input(embeddings: Embeddings) -> None:
    one, other = embeddings.vectors()[0], embeddings.vectors(input=OTHER)[0]
    assert not close(one, other)
    ids, other_ids = encoded(TEXT), encoded(OTHER)
    for given in (ids, [TEXT], [ids]):
        assert close(embeddings.vectors(input=given)[0], one)
    for pair in ([TEXT, OTHER], [ids, other_ids]):
        found = embeddings.vectors(input=pair)
        assert close(found[0], one) and close(found[1], other)


def test_a_batch_is_each_text_alone(embeddings: Embeddings) -> None:
    """More texts than the engine works on at the same time, of many lengths."""
    texts = [" ".join([TEXT, OTHER][number % 2].split()[: 1 + number % 7]) for number in range(100)]
    found = embeddings.answer(input=texts)
    assert found["usage"]["prompt_tokens"] == sum(len(encoded(text)) for text in texts)
    for number in (0, 6, 13, 64, 99):
        assert close(found["data"][number]["embedding"], embeddings.vectors(input=texts[number])[0])


def test_base64_is_the_same_vector(embeddings: Embeddings) -> None:
    (text,) = embeddings.vectors(encoding_format="base64")
    assert isinstance(text, str)
    assert close(array("f", base64.b64decode(text)).tolist(), embeddings.vectors(encoding_format="float")[0])


def test_dimensions_are_the_first_ones_normalised_again(embeddings: Embeddings) -> None:
    whole = embeddings.vectors()[0]
    first = embeddings.vectors(dimensions=8)[0]
    length = math.hypot(*whole[:8])
    assert close(first, [value / length for value in whole[:8]])
    assert len(embeddings.vectors(dimensions=len(whole))[0]) == len(whole)
    for size in (0, -1, len(whole) + 1):
        assert embeddings.refused(400, dimensions=size)["param"] == "dimensions"


def test_truncation_keeps_the_beginning(embeddings: Embeddings) -> None:
    ids = encoded(TEXT)
    assert close(embeddings.vectors(truncate_prompt_tokens=3)[0], embeddings.vectors(input=ids[:3])[0])
    assert close(embeddings.vectors(truncate_prompt_tokens=-1)[0], embeddings.vectors()[0])
    assert embeddings.refused(400, truncate_prompt_tokens=0)["param"] == "truncate_prompt_tokens"


def test_a_text_as_long_as_the_context(embeddings: Embeddings, chat: Chat) -> None:
    longest = chat.client.get("/v1/models").json()["data"][0]["max_model_len"]
    most = min(longest, 4096)
    assert embeddings.answer(input=[5] * most)["usage"]["prompt_tokens"] == most
    assert "maximum context length" in embeddings.refused(400, input=[5] * (longest + 1))["message"]


def test_embeddings_and_chats_at_the_same_time(embeddings: Embeddings, chat: Chat) -> None:
    alone, tokens = embeddings.vectors()[0], chat.token_ids(max_tokens=30)
    with chat.streaming(max_tokens=30, return_token_ids=True) as stream:
        assert close(embeddings.vectors()[0], alone)
        stream.read()
    assert chat.token_ids(max_tokens=30) == tokens
    assert chat.until_idle()["running"] == 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": [TEXT, ""]}, "input"),
        ({"input": [5, 10**6]}, "input"),
        ({"input": ["x"] * 2049}, "input"),
        ({"priority": 3}, "priority"),
        ({"cache_salt": ""}, "cache_salt"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(embeddings: Embeddings, fields: dict[str, Any], param: str) -> None:
    error = embeddings.refused(400, **fields)
    assert error["param"] == param and param in error["message"]


@pytest.mark.parametrize(
    ("field", "value"),
    [("input", None), ("input", {}), ("input", []), ("encoding_format", "int8"), ("dimensions", "x"), ("user", 5)],
)
def test_wrong_types_are_422_and_named(embeddings: Embeddings, field: str, value: Any) -> None:
    error = embeddings.refused(422, **{field: value})
    assert error["param"] == f"body.{field}" and error["message"].startswith(f"{field}: ")


def test_unknown_models_and_fields(embeddings: Embeddings) -> None:
    assert embeddings.refused(404, model="zzz")["param"] == "model"
    assert embeddings.ask(colour="blue").headers["x-heddle-ignored-fields"] == "colour"
    strict = embeddings.ask({"x-heddle-strict-fields": "true"}, colour="blue")
    assert strict.status_code == 400 and error_of(strict)["param"] == "colour"


def test_the_answer_names_the_weights(embeddings: Embeddings) -> None:
    assert embeddings.ask().headers["x-heddle-policy"] == TINY


def test_embeddings_are_counted_and_traced(tmp_path: Path) -> None:
    project = "team/vectors"
    with HeddleProcess(tmp_path / "data", trace_inference="on") as server, Chat(server.url) as chat:
        headers = {"openai-project": project}
        answer = Embeddings(chat).ask(headers, input=[TEXT, OTHER], dimensions=8, user="ann")
        assert answer.status_code == 200, answer.text
        used = answer.json()["usage"]["prompt_tokens"]
        (row,) = chat.client.get("/v1/usage", params={"project": project}).json()["data"]
        assert (row["requests"], row["prompt_tokens"], row["completion_tokens"]) == (1, used, 0)
        body = {"project_id": project}
        calls = chat.client.post("/calls/stream_query", json=body).text.splitlines()
        (call,) = map(json.loads, calls)
        assert call["op_name"] == "heddle.embeddings" and call["inputs"]["input"] == [TEXT, OTHER]
        shown = [{"index": index, "object": "embedding", "dimensions": 8} for index in range(2)]
        assert call["output"]["data"] == shown, "vectors are no text for people"
        assert call["summary"]["usage"][TINY]["prompt_tokens"] == used


def test_an_adapter_has_embeddings_of_its_own(embeddings: Embeddings, chat: Chat, tmp_path: Path) -> None:
    folder, name = make_adapter(tmp_path / "adapter", TINY_FOLDER, lora_alpha=800), f"vectors-{uuid.uuid4().hex[:8]}"
    loaded = chat.client.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(folder)})
    assert loaded.status_code == 200, loaded.text
    answer = embeddings.ask(model=name)
    assert answer.json()["model"] == name and answer.headers["x-heddle-policy"].startswith(f"{name}@")
    assert not close(answer.json()["data"][0]["embedding"], embeddings.vectors()[0])


def test_states_that_are_no_numbers_are_no_vectors(embeddings: Embeddings, chat: Chat, tmp_path: Path) -> None:
    """A list of nulls, or NaN in base64, was answered."""
    folder, name = spoil_weights(make_adapter(tmp_path / "adapter", TINY_FOLDER)), f"vectors-{uuid.uuid4().hex[:8]}"
    chat.client.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(folder)}).raise_for_status()
    for form in ("float", "base64"):
        refused = embeddings.refused(400, model=name, encoding_format=form)
        assert refused["message"] == "the embedding has values that are not finite numbers"
    chat.client.post("/v1/unload_lora_adapter", json={"lora_name": name}).raise_for_status()


@pytest.mark.thorough
def test_limits_hold(tmp_path: Path) -> None:
    with (
        HeddleProcess(tmp_path / "data", inference_key_tokens_per_minute=10) as server,
        Chat(server.url) as chat,
    ):
        embeddings = Embeddings(chat)
        assert embeddings.ask(input=[5] * 10).status_code == 200
        refused = embeddings.ask(input=[5] * 10)
        assert refused.status_code == 429 and "retry-after" in refused.headers


@pytest.mark.parametrize("runner", with_breadth(["pooling", "generate"]))
def test_servers_of_vllm(embeddings: Embeddings, tmp_path: Path, runner: str) -> None:
    """The same vectors from one that pools; one that generates is told apart by name."""
    with LookAlikeProcess(free_port(), "--runner", runner) as look_alike:
        settings = {"engine": "vllm", "vllm_urls": look_alike.url}
        with HeddleProcess(tmp_path / "data", **settings) as server, Chat(server.url) as chat:
            behind = Embeddings(chat)
            if runner == "generate":
                error = behind.refused(400)
                assert "--runner pooling" in error["message"]
                assert chat.answer()["choices"], "the server is not thought to be gone"
                return
            found = behind.vectors(input=[TEXT, OTHER], dimensions=8)
            for one, other in zip(found, embeddings.vectors(input=[TEXT, OTHER], dimensions=8), strict=True):
                assert close(one, other)


def test_ids_of_another_vocabulary_are_explained(embeddings: Embeddings) -> None:
    """LangChain sends texts as ids of OpenAI's vocabulary, unless it is told not to."""
    error = embeddings.refused(400, input=[[1820, 2694, 315, 1403, 99_999]])
    assert error["param"] == "input" and "check_embedding_ctx_length=False" in error["message"]
