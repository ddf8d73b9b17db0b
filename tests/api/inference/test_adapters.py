"""LoRA adapters: loaded, addressed, versioned, replaced and unloaded while the server runs."""

import json
import shutil
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from heddle.inference.served_model import TINY_FOLDER
from tests.support.chat import Chat, data_lines, error_of
from tests.support.models import make_adapter, make_model, spoil_weights
from tests.support.server import HeddleProcess

FIELDS = {"max_tokens": 8, "ignore_eos": True, "return_token_ids": True}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three PEFT folders with random weights that change what the model says."""
    place = tmp_path_factory.mktemp("adapters")
    return [make_adapter(place / str(seed), TINY_FOLDER, seed=seed, lora_alpha=800) for seed in (1, 2, 3)]


@pytest.fixture
def name() -> str:
    """A name that no other test uses."""
    return f"tuned-{uuid.uuid4().hex[:8]}"


def load(chat: Chat, name: str, folder: Path, **more: Any) -> httpx.Response:
    """The answer of loading a folder under a name."""
    body = {"lora_name": name, "lora_path": str(folder), **more}
    return chat.client.post("/v1/load_lora_adapter", json=body, timeout=120)


def unload(chat: Chat, name: str) -> httpx.Response:
    """The answer of taking a name away."""
    return chat.client.post("/v1/unload_lora_adapter", json={"lora_name": name})


def said(chat: Chat, model: str) -> tuple[list[int], str]:
    """Tokens and policy of an answer; body and header name the same policy."""
    answer = chat.ask(model=model, **FIELDS)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["model"] == model
    policy = answer.headers["x-heddle-policy"]
    if policy != chat.model:
        assert body["system_fingerprint"].endswith("-" + policy.rsplit("/", 1)[-1])
    return body["choices"][0]["token_ids"], policy


def test_an_adapter_changes_the_answer(chat: Chat, folders: list[Path], name: str) -> None:
    assert load(chat, name, folders[0]).status_code == 200
    base, tuned = said(chat, chat.model), said(chat, name)
    assert tuned[0] != base[0]
    assert (base[1], tuned[1]) == (chat.model, f"{name}@0")
    assert unload(chat, name).status_code == 200
    assert chat.refused(404, model=name)["param"] == "model"
    assert said(chat, chat.model) == base


def test_an_adapter_is_in_the_list(chat: Chat, folders: list[Path], name: str) -> None:
    load(chat, name, folders[0])
    entry = next(model for model in chat.client.get("/v1/models").json()["data"] if model["id"] == name)
    assert (entry["object"], entry["root"], entry["parent"]) == ("model", f"{name}@0", chat.model)
    assert chat.client.get("/v1/models/").json() == chat.client.get("/v1/models").json()
    assert str(folders[0]) not in chat.client.get("/v1/models").text
    unload(chat, name)
    assert all(model["id"] != name for model in chat.client.get("/v1/models").json()["data"])


def test_versions_stay_loadable(chat: Chat, folders: list[Path], name: str) -> None:
    """`name` is the newest, `name@step` each; load_inplace adds a step."""
    for folder in folders:
        assert load(chat, name, folder, load_inplace=True).status_code == 200
    tokens = [said(chat, f"{name}@{step}") for step in range(3)]
    assert [policy for _, policy in tokens] == [f"{name}@{step}" for step in range(3)]
    assert len({tuple(ids) for ids, _ in tokens}) == 3
    assert said(chat, name) == tokens[2]
    assert unload(chat, f"{name}@2").status_code == 200
    assert said(chat, name) == tokens[1]
    assert chat.refused(404, model=f"{name}@2")["param"] == "model"
    unload(chat, name)
    assert chat.refused(404, model=f"{name}@0")


def test_artifact_addresses(chat: Chat, folders: list[Path], name: str) -> None:
    address = f"wandb-artifact:///anna/lab/{name}"
    assert load(chat, f"{address}:step3", folders[0]).status_code == 200
    assert load(chat, f"{address}:step7", folders[1]).status_code == 200
    third, seventh = said(chat, f"{address}:step3"), said(chat, f"{address}:step7")
    assert (third[1], seventh[1]) == (f"anna/lab/{name}@3", f"anna/lab/{name}@7")
    assert third[0] != seventh[0]
    assert said(chat, address) == said(chat, f"{address}:latest") == said(chat, name) == seventh
    assert said(chat, f"{name}@3") == third
    unload(chat, address)
    assert chat.refused(404, model=address)


def test_adapters_and_the_base_in_one_batch(chat: Chat, folders: list[Path], name: str) -> None:
    """Mixed in one batch each answers as alone."""
    for folder in folders:
        load(chat, name, folder, load_inplace=True)
    models = [chat.model, f"{name}@0", f"{name}@1", f"{name}@2"]
    alone = {model: said(chat, model) for model in models}
    with ThreadPoolExecutor(12) as pool:
        mixed = list(pool.map(lambda model: (model, said(chat, model)), models * 5))
    assert all(found == alone[model] for model, found in mixed)
    unload(chat, name)


def test_the_cache_does_not_mix_versions(chat: Chat, folders: list[Path], name: str) -> None:
    """A long prompt that the base has cached is not reused by an adapter, nor by a new version of the same name."""
    messages = [{"role": "user", "content": "the lamp and the rain " * 20}]
    chat.answer(messages=messages)
    load(chat, name, folders[0])
    for model in (name, f"{name}@0"):
        first = chat.answer(messages=messages, model=model)["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert (first == 0) == (model == name)
    unload(chat, name)
    load(chat, name, folders[1])
    again = chat.answer(messages=messages, model=name)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    unload(chat, name)


def test_a_running_stream_keeps_its_version(chat: Chat, folders: list[Path], name: str) -> None:
    """Unloading and loading another version in mid-stream changes nothing of what runs."""
    load(chat, name, folders[0])
    fields = {"model": name, "max_tokens": 800, "ignore_eos": True}
    alone = chat.token_ids(**fields)
    with chat.streaming(**fields, return_token_ids=True) as stream:
        pieces = stream.iter_text()
        text = next(pieces)
        with Chat(chat.url) as other:
            assert unload(other, name).status_code == 200
            assert load(other, name, folders[1]).status_code == 200
            assert said(other, name)[0] != alone[:8]
        text += "".join(pieces)
    chunks = [json.loads(line) for line in data_lines(text)[:-1]]
    ids = [token for chunk in chunks for token in chunk["choices"][0].get("token_ids") or ()]
    assert ids == alone and len(ids) == 800
    assert stream.headers["x-heddle-policy"] == f"{name}@0"
    unload(chat, name)


def test_names_that_are_taken(chat: Chat, folders: list[Path], name: str) -> None:
    load(chat, name, folders[0])
    answer = load(chat, name, folders[1])
    assert answer.status_code == 400 and error_of(answer)["param"] == "lora_name"
    unload(chat, name)


@pytest.mark.parametrize("wrong", ["", "a/b", "a:b", "../up", "wandb-artifact:///a/b", "x@y", "a" * 300])
def test_names_that_cannot_be(chat: Chat, folders: list[Path], wrong: str) -> None:
    answer = load(chat, wrong, folders[0])
    assert answer.status_code == 400 and error_of(answer)["param"] == "lora_name"


def test_the_name_of_the_base_model_is_taken(chat: Chat, folders: list[Path]) -> None:
    answer = load(chat, chat.model, folders[0])
    assert answer.status_code == 400 and error_of(answer)["param"] == "lora_name"


def test_folders_that_are_not_there(chat: Chat, name: str, tmp_path: Path) -> None:
    assert error_of(load(chat, name, tmp_path / "nowhere"))["code"] == 404
    assert error_of(load(chat, name, tmp_path))["code"] == 400
    assert error_of(unload(chat, name))["code"] == 404


ENDLESS = "([a-z0-9._]+)+!"
SETTINGS: dict[str, dict[str, Any]] = {
    "kind": {"peft_type": "IA3"},
    "ranks by a pattern without end": {"rank_pattern": {ENDLESS: 8}},
    "scales by a pattern without end": {"alpha_pattern": {ENDLESS: 16}},
    "a pattern that is none": {"rank_pattern": {"(": 8}},
    "a rank that is none": {"rank_pattern": {"q_proj": "x"}},
    "a scale beyond all numbers": {"lora_alpha": 10**400},
    "very many patterns": {"alpha_pattern": {f"layer{number}": 1 for number in range(1001)}},
}


def test_an_adapter_of_no_numbers_is_no_reason_to_ask_again(
    chat: Chat, folders: list[Path], name: str, tmp_path: Path
) -> None:
    """503 told clients to send the request again, and jobs sent it for ever."""
    folder = shutil.copytree(folders[0], tmp_path / "nan")
    assert load(chat, name, spoil_weights(folder)).status_code == 200
    assert chat.refused(400, model=name)["message"] == "the model's logits are not numbers"
    assert chat.ask(**FIELDS).status_code == 200
    unload(chat, name)


@pytest.mark.parametrize("damage", ["config", "weights", "another model", *SETTINGS])
def test_adapters_that_do_not_fit_are_400(
    chat: Chat, folders: list[Path], name: str, tmp_path: Path, damage: str
) -> None:
    """Nothing of a refused adapter stays; its name is free, and the server goes on."""
    folder = tmp_path / "broken"
    if damage == "another model":
        make_adapter(folder, make_model(tmp_path / "other"), seed=9)
    else:
        shutil.copytree(folders[0], folder)
    if damage == "config":
        (folder / "adapter_config.json").write_text("{")
    if damage == "weights":
        (folder / "adapter_model.safetensors").write_bytes(b"nothing")
    if damage in SETTINGS:
        config = json.loads((folder / "adapter_config.json").read_text())
        (folder / "adapter_config.json").write_text(json.dumps(config | SETTINGS[damage]))
    answer = load(chat, name, folder)
    assert answer.status_code == 400, answer.text
    assert "/adapters/" not in error_of(answer)["message"], "the place on the server is not the client's to know"
    assert chat.refused(404, model=name)
    assert load(chat, name, folders[0]).status_code == 200
    unload(chat, name)


@pytest.mark.thorough
def test_adapters_survive_a_restart(folders: list[Path], tmp_path: Path, name: str) -> None:
    """Versions and their numbers are kept in the data folder; the source folder may go away."""
    copy = tmp_path / "source"
    shutil.copytree(folders[0], copy)
    with HeddleProcess(tmp_path / "data", adapters=f"given={folders[1]}") as process, Chat(process.url) as chat:
        assert load(chat, name, copy).status_code == 200
        before = said(chat, name), said(chat, "given")
    shutil.rmtree(copy)
    with HeddleProcess(tmp_path / "data", adapters=f"given={folders[1]}") as process, Chat(process.url) as chat:
        assert (said(chat, name), said(chat, "given")) == before
        assert before[1][1] == "given@0", "the same files are no new version"
