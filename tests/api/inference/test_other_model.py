"""A folder of one's own served instead of the shipped model: another family, a tokenizer with habits of its own."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from tests.support.chat import FORCED, Chat
from tests.support.cli import heddle
from tests.support.models import make_model
from tests.support.server import HeddleProcess

END, START = 2, 0
"""End-of-sequence, and the token that the tokenizer puts before every text on demand."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama whose tokenizer begins texts with a special token and joins pieces with blanks."""
    folder = make_model(tmp_path_factory.mktemp("models") / "own-llama", model_type="llama")
    path = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.post_processor = TemplateProcessing(
        single="<|endoftext|> $A", pair="<|endoftext|> $A $B", special_tokens=[("<|endoftext|>", START)]
    )
    content = json.loads(tokenizer.to_str())
    content["decoder"] = None
    path.write_text(json.dumps(content))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": END, "temperature": 0.0, "top_k": 5}))
    return folder


@pytest.fixture(scope="module")
def own(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chat]:
    """A server of that folder with room for some 1,300 tokens."""
    place = tmp_path_factory.mktemp("own-model")
    with (
        HeddleProcess(place / "data", model=folder, kv_memory="1MiB") as process,
        Chat(process.url, model="own-llama") as caller,
    ):
        yield caller


def test_the_folder_is_served_under_its_name(own: Chat) -> None:
    (model,) = own.client.get("/v1/models").json()["data"]
    assert (model["id"], model["root"], model["max_model_len"]) == ("own-llama", "own-llama", 4096)
    assert own.answer()["model"] == "own-llama"
    assert own.refused(404, model="heddle-tiny")["param"] == "model"


def test_generation_config_gives_the_defaults(own: Chat) -> None:
    """The folder says temperature 0: an answer without temperature repeats; a request's own value goes first."""
    fields = {"max_tokens": 12, "ignore_eos": True}
    plain = own.token_ids(**fields)
    assert own.token_ids(**fields, temperature=None) == own.token_ids(**fields, temperature=None) == plain
    assert own.token_ids(**{**fields, "temperature": 2, "top_k": 0, "seed": 1}) != plain


def test_add_special_tokens(own: Chat) -> None:
    """The tokenizer's own first token comes on top of what the template wrote."""
    plain = own.prompt_ids()
    assert own.prompt_ids(add_special_tokens=True) == [START, *plain] and plain[0] != START
    assert own.prompt_ids(add_special_tokens=False) == own.prompt_ids(add_special_tokens=None) == plain


def test_spaces_between_special_tokens(own: Chat) -> None:
    fields = {"logit_bias": {str(END): FORCED}, "ignore_eos": True, "max_tokens": 3, "skip_special_tokens": False}
    end = "<|im_end|>"
    for between in ({}, {"spaces_between_special_tokens": True}, {"spaces_between_special_tokens": None}):
        assert own.content(**fields, **between).strip() == " ".join([end] * 3)
    assert own.content(**fields, spaces_between_special_tokens=False).strip() == end * 3


def test_what_does_not_fit_into_memory_is_refused_before_it_runs(own: Chat) -> None:
    """A prompt that the context takes and the memory does not: 400 with what fits; the next one runs."""
    error = own.refused(400, messages=[{"role": "user", "content": "0123456789" * 300}])
    assert "token" in error["message"]
    with ThreadPoolExecutor(8) as pool:
        prompt = [{"role": "user", "content": "0123456789" * 40}]
        fields = {"messages": prompt, "max_tokens": 40, "ignore_eos": True}
        assert len({tuple(ids) for ids in pool.map(lambda _: own.token_ids(**fields), range(12))}) == 1
    assert own.until_idle()["kv_blocks_used"] == 0


def test_a_tokenizer_that_constraints_do_not_know(own: Chat) -> None:
    """Chats work; what needs a grammar is refused by name."""
    own.answer()
    own.refused(400, structured_outputs={"regex": "ab"})
    own.refused(400, response_format={"type": "json_object"})


def test_another_name(folder: Path, tmp_path: Path) -> None:
    """Settings name the model."""
    settings = {"model": folder, "model_name": "house"}
    with HeddleProcess(tmp_path / "data", **settings) as process, Chat(process.url, model="house") as chat:
        assert chat.client.get("/v1/models/house").json()["root"] == "house"
        assert chat.refused(400, top_p=2)["param"] == "top_p"


def test_what_can_never_be_served_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/config.json").write_text("[")
    for settings, told in (
        ({"model": tmp_path / "nowhere"}, "Model folder "),
        ({"model": tmp_path / "empty"}, "has no config.json"),
        ({"model": tmp_path / "broken"}, "config.json"),
        ({"adapters": "foo"}, "name=folder"),
        ({"adapters": f"a={tmp_path / 'empty'}"}, "adapter_config.json not found"),
        ({"alert_webhooks": "ftp://example.com"}, "addresses that begin with https:// or http://"),
        ({"engine_device": "gpu"}, "auto, cpu, cuda or cuda:N"),
    ):
        done = heddle("serve", "--port", "0", "--data", tmp_path / "data", **settings)
        assert done.returncode == 1 and told in done.stderr and "Traceback" not in done.stderr
        checked = heddle("check", "--port", "0", "--data", tmp_path / "data", **settings)
        assert checked.returncode == 1 and told in checked.stdout + checked.stderr
