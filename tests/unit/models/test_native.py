"""The own forward pass gives the log-probabilities of `transformers`, however a sequence is cut, mixed and moved."""

from pathlib import Path
from typing import Any

import pytest
import torch

from heddle.models.load import load_model
from heddle.models.native import NativeModel
from tests.support.forward import Runner, reference, reference_logprobs, tokens_of
from tests.support.models import make_adapter, make_model

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
TOLERANCE = 1e-4
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0}
LLAMA3 |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
OLD_YARN = {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 48, "beta_fast": 16, "mscale": 0.8}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}}),
    "old linear": (
        "llama",
        {"rope_parameters": ..., "rope_theta": 5e4, "rope_scaling": {"type": "linear", "factor": 2}},
    ),
    "llama3": ("llama", {"rope_parameters": LLAMA3, "max_position_embeddings": 512}),
    "yarn": ("qwen2", {"rope_parameters": YARN, "max_position_embeddings": 256}),
    "old yarn": (
        "llama",
        {"rope_parameters": ..., "rope_theta": 1e4, "rope_scaling": OLD_YARN | {"mscale_all_dim": 1.1}},
    ),
    "dynamic": ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "qwen3 bias": ("qwen3", {"attention_bias": True}),
    "no grouping": ("llama", {"num_key_value_heads": 4, "head_dim": ...}),
    "one key head": ("qwen3", {"num_key_value_heads": 1, "rms_norm_eps": 1e-4}),
    "some layers slide": ("qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}),
    "layer types": (
        "qwen3",
        {
            "use_sliding_window": True,
            "sliding_window": 20,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "no window": ("mistral", {"sliding_window": None}),
}


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal within the tolerance of the contract, and not because everything is flat."""
    assert found.shape == expected.shape
    assert float(expected.exp().max()) > 0.015
    assert float((found - expected).abs().max()) <= TOLERANCE
    assert torch.equal(found.argmax(-1), expected.argmax(-1))


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / request.param, model_type=request.param)


@pytest.fixture(scope="module")
def model(family: Path) -> NativeModel:
    loaded = load_model(family)
    assert isinstance(loaded, NativeModel)
    return loaded


@pytest.fixture(scope="module")
def oracle(family: Path) -> Any:
    return reference(family)


def test_a_prompt_in_one_go(model: NativeModel, oracle: Any) -> None:
    ids = tokens_of(150)
    runner = Runner(model)
    close(runner.prefill(runner.open(), ids), reference_logprobs(oracle, ids))


def test_a_prompt_in_chunks_then_decode_over_growing_lanes(model: NativeModel, oracle: Any) -> None:
    ids = tokens_of(290, seed=1)
    runner = Runner(model)
    lane = runner.open()
    start = runner.prefill(lane, ids[:61], chunks=[7, 8, 40])
    found = torch.cat([start, runner.decode(lane, ids, first=61)])
    assert lane.capacity == 512
    close(found, reference_logprobs(oracle, ids))


def test_only_wanted_rows_come_back_in_the_order_asked_for(model: NativeModel, oracle: Any) -> None:
    from heddle.models.interfaces import Batch, Span

    ids = tokens_of(30, seed=2)
    cache = model.new_cache()
    lanes = [cache.open_lane(31) for _ in range(3)]
    for lane in lanes:
        assert model.forward(Batch(ids, [Span(lane, 0, 30)], [], []), cache).shape == (0, model.vocab_size)
    prompt = tokens_of(12, seed=3)
    fresh = cache.open_lane(12)
    batch_ids = torch.cat([prompt, torch.tensor([5, 6, 7])])
    # Decodes arrive in another order than their lanes lie in memory.
    decodes = [Span(lanes[place], 30, 1) for place in (2, 0, 1)]
    logits = model.forward(Batch(batch_ids, [Span(fresh, 0, 12)], decodes, [11, 12, 14]), cache)
    expected = [reference_logprobs(oracle, prompt)[-1]]
    expected += [reference_logprobs(oracle, torch.cat([ids, torch.tensor([token])]))[-1] for token in (5, 7)]
    close(logits.log_softmax(-1), torch.stack(expected))


def test_a_mixed_batch_equals_each_sequence_alone(model: NativeModel, oracle: Any) -> None:
    lengths = [3, 200, 17, 64, 90, 5]
    prompts = [tokens_of(length, seed=10 + place) for place, length in enumerate(lengths)]
    runner = Runner(model)
    lanes = [runner.open() for _ in prompts]
    for lane, ids in zip(lanes, prompts, strict=True):
        runner.prefill(lane, ids)
    late = tokens_of(70, seed=30)
    late_lane = runner.open(70)
    for turn in range(4):
        # One decoding sequence stands still in each turn, so that lanes between others do not take part.
        active = [place for place in range(len(prompts)) if place != turn]
        new = {place: int(tokens_of(1, seed=40 + 10 * turn + place)) for place in active}
        chunk = late[turn * 15 : turn * 15 + 15]
        results = runner.step(
            [(late_lane, chunk, turn * 15, None)],
            [(lanes[place], new[place], len(prompts[place]), None) for place in reversed(active)],
        )
        close(results[0], reference_logprobs(oracle, late[: turn * 15 + 15])[turn * 15 :])
        for place, found in zip(reversed(active), results[1:], strict=True):
            prompts[place] = torch.cat([prompts[place], torch.tensor([new[place]])])
            close(found, reference_logprobs(oracle, prompts[place])[-1:])


def test_closing_a_lane_moves_another_and_breaks_nothing(model: NativeModel, oracle: Any) -> None:
    prompts = [tokens_of(length, seed=50 + length) for length in (20, 30, 40, 50)]
    runner = Runner(model)
    lanes = [runner.open(60) for _ in prompts]
    runner.step([(lane, ids, 0, None) for lane, ids in zip(lanes, prompts, strict=True)])
    runner.cache.close_lane(lanes[0])
    runner.cache.close_lane(lanes[2])
    found = runner.step(decodes=[(lanes[3], 9, 50, None), (lanes[1], 8, 30, None)])
    close(found[0], reference_logprobs(oracle, torch.cat([prompts[3], torch.tensor([9])]))[-1:])
    close(found[1], reference_logprobs(oracle, torch.cat([prompts[1], torch.tensor([8])]))[-1:])


def test_restored_blocks_are_the_computed_ones(model: NativeModel, oracle: Any) -> None:
    ids = tokens_of(100, seed=60)
    runner = Runner(model)
    source = runner.open(100)
    runner.prefill(source, ids)
    blocks = [runner.cache.save_block(source, index) for index in range(6)]
    runner.cache.close_lane(source)
    other = runner.open(96)
    runner.prefill(other, tokens_of(96, seed=61))
    lane = runner.open(100)
    runner.cache.restore_blocks(lane, blocks[:5])
    close(runner.prefill(lane, ids, first=80), reference_logprobs(oracle, ids)[80:])


def test_adapters_in_one_batch_equal_peft(family: Path, model: NativeModel, tmp_path: Path) -> None:
    folders = {
        "plain": make_adapter(tmp_path / "plain", family, rank=4, seed=1),
        "some": make_adapter(
            tmp_path / "some",
            family,
            rank=6,
            seed=2,
            target_modules=["q_proj", "v_proj", "down_proj"],
            use_rslora=True,
            rank_pattern={"v_proj": 3},
            alpha_pattern={"layers.1.mlp.down_proj": 40},
        ),
    }
    expected = {name: reference(family, adapter=folder) for name, folder in folders.items()}
    expected["base"] = reference(family)
    for name, folder in folders.items():
        model.load_adapter(f"{name}@1", folder)
    runner = Runner(model)
    prompts = {name: tokens_of(40 + 5 * place, seed=70 + place) for place, name in enumerate(expected)}
    lanes = {name: runner.open(80) for name in expected}
    wanted = {name: None if name == "base" else f"{name}@1" for name in expected}
    results = runner.step([(lanes[name], prompts[name], 0, wanted[name]) for name in expected])
    for name, found in zip(expected, results, strict=True):
        close(found, reference_logprobs(expected[name], prompts[name]))
    results = runner.step(decodes=[(lanes[name], 3, len(prompts[name]), wanted[name]) for name in expected])
    for name, found in zip(expected, results, strict=True):
        longer = torch.cat([prompts[name], torch.tensor([3])])
        close(found, reference_logprobs(expected[name], longer)[-1:])
        assert name == "base" or float((found - reference_logprobs(expected["base"], longer)[-1:]).abs().max()) > 0.01
    alone = runner.prefill(runner.open(50), prompts["some"], adapter="some@1")
    close(alone, reference_logprobs(expected["some"], prompts["some"]))
    for name in folders:
        model.unload_adapter(f"{name}@1")
    with pytest.raises(KeyError, match="plain@1"):
        runner.prefill(runner.open(50), prompts["some"], adapter="plain@1")


@pytest.mark.parametrize("name", CONFIGS)
def test_switches_of_the_config(name: str, tmp_path: Path) -> None:
    model_type, changes = CONFIGS[name]
    folder = make_model(tmp_path, model_type=model_type, config=changes, tied=False)
    ids = tokens_of(120, seed=80)
    model = load_model(folder)
    assert isinstance(model, NativeModel)
    runner = Runner(model)
    lane = runner.open(120)
    found = torch.cat([runner.prefill(lane, ids[:100], chunks=[33]), runner.decode(lane, ids, first=100)])
    close(found, reference_logprobs(reference(folder), ids))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_size_files_in_float32_lose_nothing(threads: int, dtype: torch.dtype, tmp_path: Path) -> None:
    folder = make_model(tmp_path, model_type="qwen3", dtype=dtype)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        runner = Runner(load_model(folder))
        ids = tokens_of(80, seed=90)
        close(runner.prefill(runner.open(), ids, chunks=[60]), reference_logprobs(reference(folder), ids))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_bfloat16_is_as_near_to_float32_as_that_of_transformers(model_type: str, tmp_path: Path) -> None:
    folder = make_model(tmp_path, model_type=model_type, dtype=torch.bfloat16)
    ids = tokens_of(80, seed=91)
    runner = Runner(load_model(folder, dtype="bfloat16"))
    lane = runner.open()
    found = torch.cat([runner.prefill(lane, ids[:60]), runner.decode(lane, ids, first=60)])
    exact = reference_logprobs(reference(folder), ids)
    theirs = reference_logprobs(reference(folder, torch.bfloat16), ids)
    assert float((found - exact).abs().mean()) <= 1.2 * float((theirs - exact).abs().mean())
