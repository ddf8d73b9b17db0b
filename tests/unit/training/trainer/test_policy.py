"""The policy: its logprobs are the engine's, its folders are PEFT's, and what it saves is all it is."""

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402

from heddle.models.interfaces import ModelError  # noqa: E402
from heddle.models.load import load_model  # noqa: E402
from heddle.training.trainer.loss import correlation, probability_sums  # noqa: E402
from heddle.training.trainer.models import find_sampled, lay_out  # noqa: E402
from heddle.training.trainer.packing import Row  # noqa: E402
from heddle.training.trainer.policy import Policy  # noqa: E402
from tests.support.forward import Runner, reference, reference_logprobs  # noqa: E402
from tests.support.models import make_adapter, make_model, make_unknown_model  # noqa: E402
from tests.unit.training.trainer.rows import make_row  # noqa: E402

FAMILIES = [(30, [12, 14, 9]), (25, [10, 11]), (0, [50])]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module", params=["qwen3", "mistral"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / request.param, model_type=request.param)


@pytest.fixture(scope="module")
def adapter(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_adapter(tmp_path_factory.mktemp("adapters") / folder.name, folder)


def gap(found: Any, expected: Any) -> float:
    """The largest difference."""
    return float((found.detach() - expected.detach()).abs().max())


def sequences_of(row: Row) -> list[tuple[list[int], int]]:
    """The token ids of every sequence with its prompt, and where its own tokens begin."""
    found = []
    for number in dict.fromkeys(row.segments.tolist()):
        own = row.segments == number
        parent = row.parents[own][0]
        before = row.tokens[row.segments == parent].tolist() if parent != number else []
        if row.mask[own].any():
            found.append((before + row.tokens[own].tolist(), len(before)))
    return found


def engine_logprobs(folder: Path, adapter: Path | None, row: Row, dtype: str = "float32") -> Any:
    """Logprobs of the trained tokens of a row, in the row's order, by the engine, sequence by sequence."""
    model = load_model(folder, dtype=dtype)
    if adapter is not None:
        model.load_adapter("a", adapter)
    runner, found = Runner(model), []
    for ids, start in sequences_of(row):
        tokens = torch.tensor(ids)
        scores = runner.prefill(runner.open(len(ids)), tokens, adapter=None if adapter is None else "a")
        found.append(scores[start:-1].gather(1, tokens[start + 1 :, None])[:, 0])
    return torch.cat(found)


@pytest.mark.parametrize("chunk", [1024, 16])
def test_logprobs_are_the_engines(folder: Path, adapter: Path, chunk: int) -> None:
    row = make_row(FAMILIES)
    policy = Policy.load(folder, "cpu", "float32")
    policy.restore(adapter, "rl")
    layout = lay_out(row, CPU)
    found, entropies = policy.score(layout, chunk)
    expected = engine_logprobs(folder, adapter, row)
    assert gap(found, expected) <= 2e-5
    assert found.shape == entropies.shape == (layout.trained,)
    bare = engine_logprobs(folder, None, row)
    assert gap(expected, bare) > 0.1
    assert gap(policy.score(layout, chunk, "base")[0], bare) <= 2e-5
    assert gap(policy.score(layout, chunk)[0], expected) <= 2e-5


def test_half_the_bits_agree_with_the_engine(folder: Path, adapter: Path) -> None:
    row = make_row([(20, [40] * 8)])
    policy = Policy.load(folder, "cpu", "bfloat16")
    policy.restore(adapter, "rl")
    layout = lay_out(row, CPU)
    found = policy.score(layout, 1024)[0]
    layout.known.old = engine_logprobs(folder, adapter, row, "bfloat16").double()
    assert correlation(probability_sums(found, layout.known)) >= 0.98
    found.sum().backward()
    assert all(tensor.dtype == tensor.grad.dtype == torch.float32 for tensor in policy.adapter.parameters())


def test_computing_layers_twice_changes_nothing(folder: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row, results = make_row(FAMILIES), []
    for share in (1e9, 0.0):
        monkeypatch.setattr("heddle.training.trainer.models.RECOMPUTE_SHARE", share)
        policy = Policy.load(folder, "cpu", "float32")
        policy.restore(adapter, "rl")
        policy.score(lay_out(row, CPU), 1024)[0].sum().backward()
        results.append([tensor.grad for tensor in policy.adapter.parameters()])
        assert policy.model.module.recompute is (share == 0.0)
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def steps(policy: Policy, row: Row, count: int) -> None:
    """Some optimizer steps towards more probable tokens."""
    for _ in range(count):
        (-policy.score(lay_out(row, CPU), 1024)[0].mean()).backward()
        policy.step(1e-2)


def test_a_saved_policy_goes_on_to_the_same_bytes(folder: Path, adapter: Path, tmp_path: Path) -> None:
    row = make_row(FAMILIES)
    policy = Policy.load(folder, "cpu", "float32")
    policy.restore(adapter, "rl")
    policy.state.kind = "rl"
    before = policy.score(lay_out(row, CPU), 1024)[0].mean().item()
    places = [tmp_path / name for name in ("half", "whole", "again")]
    for place in places:
        place.mkdir()
    steps(policy, row, 2)
    policy.save(places[0])
    steps(policy, row, 3)
    policy.save(places[1])
    assert policy.score(lay_out(row, CPU), 1024)[0].mean().detach().item() > before + 0.1
    other = Policy.load(folder, "cpu", "float32")
    other.restore(places[0], "rl")
    steps(other, row, 3)
    other.save(places[2])
    for name in ("adapter_model.safetensors", "optimizer.safetensors", "adapter_config.json", "training_state.json"):
        assert (places[1] / name).read_bytes() == (places[2] / name).read_bytes(), name
    assert (places[0] / "adapter_model.safetensors").read_bytes() != (
        places[1] / "adapter_model.safetensors"
    ).read_bytes()


def test_the_optimizer_starts_anew_for_another_kind_of_job(folder: Path, adapter: Path, tmp_path: Path) -> None:
    policy = Policy.load(folder, "cpu", "float32")
    policy.restore(adapter, "rl")
    policy.state.kind = "rl"
    steps(policy, make_row(FAMILIES), 1)
    policy.save(tmp_path)
    policy.restore(tmp_path, "rl")
    assert (policy.optimizer.steps, policy.optimizer.weight_decay) == (1, 0.1)
    assert any(bool(first.any()) for first, _ in policy.optimizer.moments)
    policy.restore(tmp_path, "sft")
    assert (policy.optimizer.steps, policy.optimizer.weight_decay) == (0, 0.0)
    assert not any(bool(first.any()) for first, _ in policy.optimizer.moments)


def test_a_published_folder_gives_the_engines_logits_in_peft(folder: Path, adapter: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    row = make_row(FAMILIES)
    policy = Policy.load(folder, "cpu", "float32")
    policy.restore(adapter, "rl")
    steps(policy, row, 2)
    policy.save(tmp_path)
    assert all(tensor.dtype == torch.float32 for tensor in load_file(tmp_path / "adapter_model.safetensors").values())
    ids = torch.tensor(sequences_of(row)[0][0])
    model = load_model(folder, dtype="float32")
    model.load_adapter("a", tmp_path)
    runner = Runner(model)
    found = runner.prefill(runner.open(len(ids)), ids, adapter="a")
    assert gap(found, reference_logprobs(reference(folder, adapter=tmp_path), ids)) <= 2e-5


@pytest.mark.parametrize("model_type", ["gpt2", "gpt_neox"])
def test_models_that_the_engine_runs_through_transformers(model_type: str, tmp_path: Path) -> None:
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    folder = make_unknown_model(tmp_path / "model", model_type)
    targets = ["c_attn", "c_proj", "c_fc"] if model_type == "gpt2" else ["query_key_value", "dense"]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=targets, task_type="CAUSAL_LM", init_lora_weights=False)
    peft.get_peft_model(model, config).save_pretrained(tmp_path / "adapter")
    row = make_row(FAMILIES)
    policy = Policy.load(folder, "cpu", "float32")
    policy.restore(tmp_path / "adapter", "rl")
    layout = lay_out(row, CPU)
    for chunk in (1024, 60):
        found, _ = policy.score(layout, chunk)
        assert gap(found, engine_logprobs(folder, tmp_path / "adapter", row)) <= 2e-5
    found.sum().backward()
    assert all(bool(tensor.grad.any()) for tensor in policy.adapter.parameters())
    steps(policy, row, 2)
    (tmp_path / "next").mkdir()
    policy.save(tmp_path / "next")
    trained, _ = policy.score(layout, 1024)
    assert gap(trained, engine_logprobs(folder, tmp_path / "next", row)) <= 2e-5
    assert gap(trained, found) > 0.01


def test_an_adapter_that_does_not_fit_is_refused_by_name(folder: Path, adapter: Path, tmp_path: Path) -> None:
    other = make_model(tmp_path / "other", size="3m")
    policy = Policy.load(other, "cpu", "float32")
    with pytest.raises(ModelError, match=r"model\.layers\.0\.mlp\.down_proj: the matrix pair does not match a linear"):
        policy.restore(adapter, "rl")
    strange = make_adapter(tmp_path / "strange", folder, use_rslora=True)
    with pytest.raises(ModelError, match="use_rslora"):
        policy.restore(strange, "rl")
    settings = json.loads((adapter / "adapter_config.json").read_text()) | {"r": 3}
    (strange / "adapter_config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelError, match="no matrix pair of rank 3"):
        policy.restore(strange, "rl")


def test_answers_of_the_policy_itself_are_recognised() -> None:
    """Every token of an answer must be within rounding; one that is not takes only its own answer away."""
    new = torch.tensor([-1.0, -2.0, -3.0, -4.0, -5.0], dtype=torch.float64)
    owners = torch.tensor([0, 0, 2, 2, 3])
    sampled = new + torch.tensor([1e-5, -1e-4, 0.0, 1e-2, 0.0])
    assert find_sampled(new, sampled, owners, torch.float32).tolist() == [True, True, False, False, True]
    assert find_sampled(new, sampled, owners, torch.bfloat16).all()
    assert find_sampled(new[:0], sampled[:0], owners[:0], torch.float32).tolist() == []
