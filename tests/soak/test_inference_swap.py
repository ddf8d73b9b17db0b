"""Adapters come and go under load: no request fails, and each answer is that of the one version it names."""

import json
import os
import random
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from heddle.inference.served_model import TINY_FOLDER
from tests.support.chat import Chat, data_lines
from tests.support.models import make_adapter
from tests.support.server import HeddleProcess

SOAK = os.environ.get("HEDDLE_SOAK") == "1"
REQUESTS, ADAPTERS, CONNECTIONS = (1000, 10, 8) if SOAK else (120, 4, 8)
KEPT = 2
"""Versions of the name that are there at any time."""
PROMPTS = ("Say something.", "What is 2 + 3?", "Copy: lamp rain river " + "red blue " * 12)
FIELDS = {"max_tokens": 10, "ignore_eos": True, "return_token_ids": True}

pytestmark = [pytest.mark.thorough, pytest.mark.soak]

Expected = dict[tuple[int | None, str], list[int]]


@dataclass(slots=True)
class Seen:
    """What the callers saw."""

    failures: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    policies: set[str] = field(default_factory=set)
    answers: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


def load(chat: Chat, name: str, folder: Path) -> str:
    """Make a folder the next version of a name; the policy it is."""
    body = {"lora_name": name, "lora_path": str(folder), "load_inplace": True}
    answer = chat.client.post("/v1/load_lora_adapter", json=body)
    assert answer.status_code == 200, answer.text
    found = re.search(r"'([^']+)'", answer.text)
    assert found is not None
    return found[1]


def unload(chat: Chat, name: str) -> None:
    """Take a name or one of its versions away."""
    answer = chat.client.post("/v1/unload_lora_adapter", json={"lora_name": name})
    assert answer.status_code == 200, answer.text


def messages(text: str) -> list[dict[str, str]]:
    """One question."""
    return [{"role": "user", "content": text}]


def expectations(chat: Chat, folders: list[Path]) -> Expected:
    """The greedy tokens of every adapter and of the base model, asked for in peace."""
    known: Expected = {(None, text): chat.token_ids(messages=messages(text), **QUIET) for text in PROMPTS}
    for number, folder in enumerate(folders):
        name = f"known-{number}"
        load(chat, name, folder)
        for text in PROMPTS:
            known[number, text] = chat.token_ids(model=name, messages=messages(text), **QUIET)
        unload(chat, name)
    everybody = [None, *range(len(folders))]
    assert len({json.dumps([known[number, text] for text in PROMPTS]) for number in everybody}) == len(everybody)
    return known


QUIET = {key: value for key, value in FIELDS.items() if key != "return_token_ids"}


def ask(url: str, share: int, number: int, versions: dict[str, int], known: Expected, seen: Seen) -> None:
    """One connection's requests: whole and streamed, to the name and to the base model."""
    chance = random.Random(number)
    with Chat(url) as chat:
        for _ in range(share):
            text, model = chance.choice(PROMPTS), chance.choice(["moving", "moving", "moving", chat.model])
            fields = {"model": model, "messages": messages(text), **FIELDS}
            answer = chat.ask(**fields, stream=chance.random() < 0.5)
            with seen.lock:
                seen.answers += 1
                if answer.status_code != 200:
                    seen.failures.append(f"{answer.status_code} {answer.text[:300]}")
                    continue
                policy = answer.headers["x-heddle-policy"]
                seen.policies.add(policy)
                number_of_adapter = None if policy == chat.model else versions.get(policy)
                if tokens_of(answer.text) != known.get((number_of_adapter, text)) or (model == chat.model) != (
                    number_of_adapter is None
                ):
                    seen.wrong.append(f"{model} {policy}: {answer.text[:300]}")


def tokens_of(text: str) -> list[int] | None:
    """The generated ids of a whole or a streamed answer."""
    if not text.startswith("data:"):
        return list(json.loads(text)["choices"][0]["token_ids"])
    lines = data_lines(text)
    if lines[-1] != "[DONE]" or any('"error"' in line for line in lines):
        return None
    chunks = [json.loads(line) for line in lines[:-1]]
    return [token for chunk in chunks for token in chunk["choices"][0].get("token_ids") or ()]


def test_adapters_come_and_go_under_load(tmp_path: Path) -> None:
    seeds = range(1, ADAPTERS + 1)
    folders = [make_adapter(tmp_path / f"{seed}", TINY_FOLDER, seed=seed, lora_alpha=800) for seed in seeds]
    with HeddleProcess(tmp_path / "data", max_adapters=4) as process, Chat(process.url) as chat:
        known = expectations(chat, folders)
        versions = {load(chat, "moving", folders[0]): 0}
        seen, loads = Seen(), 1
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            share = REQUESTS // CONNECTIONS
            running = [
                pool.submit(ask, process.url, share, number, versions, known, seen) for number in range(CONNECTIONS)
            ]
            while not all(future.done() for future in running):
                # The version is known here before anybody can be answered by it.
                step = loads
                versions[f"moving@{step}"] = loads % ADAPTERS
                assert load(chat, "moving", folders[loads % ADAPTERS]) == f"moving@{step}"
                loads += 1
                if loads > KEPT:
                    unload(chat, f"moving@{loads - KEPT - 1}")
            for future in running:
                future.result()
        figures = chat.until_idle()
        assert seen.answers == share * CONNECTIONS
        assert seen.failures == [] and seen.wrong == []
        assert figures["kv_blocks_used"] == 0 and figures["running"] == 0
        assert len(seen.policies) > 3 and loads > ADAPTERS
        assert "Traceback" not in process.log()
        print(f"\n{seen.answers} answers, {loads} versions loaded, {len(seen.policies)} policies seen, 0 failures")
