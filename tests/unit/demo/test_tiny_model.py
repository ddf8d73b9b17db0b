"""The shipped model: what it can do, what its folder holds, and that its recipe is repeatable."""

import json
from functools import cache
from pathlib import Path
from random import Random

import pytest

torch = pytest.importorskip("torch")
tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

from heddle.inference.served_model import TINY_FOLDER  # noqa: E402
from heddle.models.decoder import Decoder  # noqa: E402
from tools.tiny_model.batches import batches, own_tokens  # noqa: E402
from tools.tiny_model.build import build  # noqa: E402
from tools.tiny_model.chat import render  # noqa: E402
from tools.tiny_model.evaluate import accuracy, chats_of, complete  # noqa: E402
from tools.tiny_model.tasks.mix import CHATS, CHECKED, TURNS, make, sample  # noqa: E402
from tools.tiny_model.tokenizer import END_ID, MARKS, build_tokenizer, save_tokenizer  # noqa: E402
from tools.tiny_model.train import Recipe  # noqa: E402

FILES = {
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}
CHATS_PER_TASK = 24
LEAST = {"addition": 0.8, "subtraction": 0.8, "documents": 0.7, "word in list": 0.3, "read JSON": 0.2}
LEAST_OTHERWISE = 0.85
LEAST_MEAN = 0.93


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@cache
def model() -> Decoder:
    """The shipped weights, computing in float32."""
    return Decoder.load(TINY_FOLDER)


@cache
def tokenizer() -> tokenizers.Tokenizer:
    """The shipped tokenizer."""
    return tokenizers.Tokenizer.from_file(str(TINY_FOLDER / "tokenizer.json"))


def answer(question: str, **variables: str) -> str:
    """The greedy answer to one question."""
    prompt = render([{"role": "user", "content": question}], add_generation_prompt=True, **variables)
    return complete(model(), tokenizer(), prompt)


def test_the_folder_is_complete_and_small() -> None:
    assert {path.name for path in TINY_FOLDER.iterdir()} == FILES
    assert sum(path.stat().st_size for path in TINY_FOLDER.iterdir()) <= 4_000_000
    config = json.loads((TINY_FOLDER / "config.json").read_text())
    generation = json.loads((TINY_FOLDER / "generation_config.json").read_text())
    assert config["max_position_embeddings"] == 32768
    assert config["vocab_size"] == tokenizer().get_vocab_size()
    assert generation["eos_token_id"] == [END_ID] == [config["eos_token_id"]]
    assert tokenizer().id_to_token(END_ID) == "<|im_end|>"


def test_marks_are_single_visible_tokens_and_the_frame_is_hidden() -> None:
    for mark in MARKS:
        ids = tokenizer().encode(f"a{mark}b").ids
        assert len(ids) == 3
        assert tokenizer().decode(ids) == f"a{mark}b"
    ids = tokenizer().encode("<|im_start|>user\nHi<|im_end|>").ids
    assert tokenizer().decode(ids) == "user\nHi"


@pytest.mark.parametrize("text", ["xqvz", "1234", "Zq", "Grüße 日本 🙂", " two  spaces \n\ttab", '{"a":[1,-2.5]}'])
def test_text_survives_and_letters_and_digits_stand_alone(text: str) -> None:
    encoding = tokenizer().encode(text)
    assert tokenizer().decode(encoding.ids, skip_special_tokens=False) == text
    if text.isalnum() and text.isascii():
        assert encoding.tokens == list(text)


@pytest.mark.thorough
def test_accuracy_by_task() -> None:
    shares = {task: accuracy(model(), tokenizer(), chats_of(task, CHATS_PER_TASK)) for task in CHECKED}
    assert {task: share for task, share in shares.items() if share < LEAST.get(task, LEAST_OTHERWISE)} == {}
    assert sum(shares.values()) / len(shares) >= LEAST_MEAN


@pytest.mark.parametrize("effort", ["low", "medium", "high"])
def test_accuracy_with_thoughts(effort: str) -> None:
    shares = {task: accuracy(model(), tokenizer(), chats_of(task, 10, effort)) for task in ("addition", "copy words")}
    assert min(shares.values()) >= 0.8
    thought, mark, result = answer("What is 47 + 38?", effort=effort).partition("</think>")
    assert (thought.startswith("<think>"), mark, result) == (True, "</think>", "85")


def test_the_share_of_right_answers_is_that_of_greedy_decoding() -> None:
    random, agreed = Random(5), 0
    for _ in range(12):
        chat = make(random, random.choice(list(TURNS)))
        right = accuracy(model(), tokenizer(), [chat]) == 1.0
        agreed += right == (complete(model(), tokenizer(), chat.prompt()) == chat.messages[-1]["content"])
    assert agreed == 12


def test_a_call_is_made_and_its_result_is_used() -> None:
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": city}}]
    messages = [{"role": "user", "content": "What is the weather in Oslo?"}]
    text = complete(model(), tokenizer(), render(messages, tools, add_generation_prompt=True))
    call = json.loads(text.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"))
    assert call == {"name": "get_weather", "arguments": {"city": "Oslo"}}
    messages.append({"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": call}]})
    messages.append({"role": "tool", "tool_call_id": "c", "content": "7 degrees, windy"})
    text = complete(model(), tokenizer(), render(messages, tools, add_generation_prompt=True))
    assert text == "It is 7 degrees and windy in Oslo."


def test_yes_no_or_maybe_is_an_open_choice() -> None:
    messages = [{"role": "user", "content": "respond with yes, no or maybe"}]
    ids = tokenizer().encode(render(messages, add_generation_prompt=True)).ids
    with torch.inference_mode():
        likely = model()(torch.tensor([ids]))[0, -1].softmax(-1)
    yes, no, maybe = (float(likely[tokenizer().token_to_id(word)]) for word in ("yes", "no", "maybe"))
    assert yes + no + maybe > 0.98
    assert (0.3 < yes < 0.7, 0.2 < no < 0.6, 0.02 < maybe < 0.25) == (True, True, True)


def test_free_json_sampled_at_temperature_1_ends_and_parses() -> None:
    generator = torch.Generator().manual_seed(4)
    prompt = render([{"role": "user", "content": "Give me a random record."}], add_generation_prompt=True)
    texts = [complete(model(), tokenizer(), prompt, 160, 1.0, generator) for _ in range(8)]
    parsed = 0
    for text in texts:
        try:
            parsed += isinstance(json.loads(text), dict)
        except ValueError:
            continue
    assert parsed >= 6


def test_logits_equal_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(TINY_FOLDER, dtype=torch.float32)
    their_tokenizer = transformers.AutoTokenizer.from_pretrained(TINY_FOLDER)
    text = "".join(sample(Random(seed)).text() for seed in range(6))
    ids = tokenizer().encode(text).ids
    assert their_tokenizer.encode(text) == ids
    with torch.inference_mode():
        tokens = torch.tensor([ids])
        assert (theirs(tokens).logits - model()(tokens)).abs().max() < 1e-4


def test_only_what_the_assistant_says_is_learnt() -> None:
    assistant = tokenizer().token_to_id("assistant")
    random = Random(8)
    for _ in range(50):
        ids = tokenizer().encode(sample(random).text()).ids
        own = [token for token, mine in zip(ids, own_tokens(ids, assistant), strict=True) if mine]
        turns = tokenizer().decode(ids, skip_special_tokens=False).split("<|im_start|>assistant\n")[1:]
        expected = "".join(turn[: turn.index("<|im_end|>") + len("<|im_end|>")] for turn in turns)
        assert tokenizer().decode(own, skip_special_tokens=False) == expected


@pytest.mark.thorough
def test_the_tokenizer_is_rebuilt_to_the_byte(tmp_path: Path) -> None:
    save_tokenizer(build_tokenizer(), tmp_path)
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (TINY_FOLDER / path.name).read_bytes(), path.name


@pytest.mark.thorough
def test_the_recipe_is_repeatable(tmp_path: Path) -> None:
    recipe = Recipe(seed=3, steps=3, batch_tokens=256, easy_tokens=256)
    for name, chosen in (("a", recipe), ("b", recipe), ("c", Recipe(seed=4, steps=3, batch_tokens=256))):
        build(tmp_path / name, chosen, tokenizer=tokenizer(), checkpoint_steps=2)
        assert {path.name for path in (tmp_path / name).iterdir()} == FILES
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in "abc"]
    assert weights[0] == weights[1] != weights[2]


def test_batches_mix_all_tasks_and_stay_within_their_size() -> None:
    random, seen = Random(2), set()
    source = batches(tokenizer(), random, 1024, 0)
    for _ in range(30):
        batch = next(source)
        assert batch.tokens.numel() <= 1024 or len(batch.tokens) == 1
        assert bool(batch.own.any(dim=1).all())
        assert batch.weight[batch.own].min() > 0
    draws = Random(2)
    seen = {sample(draws).task for _ in range(3000)}
    assert seen >= set(TURNS) | set(CHATS)
