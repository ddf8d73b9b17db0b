"""Every precision serves everything: adapters, log-probabilities, grammars, draws, known prefixes and preemption."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
compiled = pytest.importorskip("heddle.models.compiled")

from heddle.inference.engine.local.engine import EngineCore  # noqa: E402
from heddle.inference.engine.local.options import LocalOptions  # noqa: E402
from heddle.models.load import load_model  # noqa: E402
from tests.unit.inference.engine.exact import PROMPTS, TIGHT  # noqa: E402
from tests.unit.inference.engine.helpers import Result, request, run  # noqa: E402
from tests.unit.inference.engine.test_constraint import regex  # noqa: E402

NO_INT8 = pytest.mark.skipif(not compiled.HAS_INT8, reason="the processor has no products of 8 bits")


@pytest.fixture(scope="module", params=["float32", "bfloat16", pytest.param("int8", marks=NO_INT8)])
def loaded(request: pytest.FixtureRequest, folder: Path) -> Iterator[Any]:
    """The small model in a precision."""
    yield load_model(folder, device="cpu", dtype=request.param)


def bits_of(result: Result) -> Any:
    assert result.failure is None
    return result.tokens, result.logprobs, result.prompt_logprobs


def test_every_kind_of_request_gets_the_same_bits_alone_together_known_and_preempted(
    loaded: Any, folder: Path, adapters: list[Path]
) -> None:
    def make_core(blocks: int = 4096, **options: Any) -> EngineCore:
        kv_bytes = blocks * loaded.new_cache().block_bytes
        return EngineCore(loaded, LocalOptions(folder=folder, **options), (2,), kv_bytes)

    several = [
        request(PROMPTS[8], logprobs=3, ignore_eos=True),
        request(PROMPTS[9], logprobs=1, ignore_eos=True, adapter=adapters[0]),
        request(PROMPTS[10], logprobs=0, ignore_eos=True, adapter=adapters[1], temperature=1.2, top_p=0.8),
        request(PROMPTS[6], logprobs=2, constraint=regex("[0-9]{3}-[a-c]{2}")),
        request(PROMPTS[5], logprobs=1, temperature=1.0, prompt_logprobs=1),
    ]
    expected = [bits_of(run(make_core(), one)[0]) for one in several]
    assert all(tokens for tokens, _, _ in expected)
    roomy, pieces, tight = make_core(), make_core(max_prefill=24, max_prefill_beside=16), make_core(blocks=TIGHT)
    for core in (roomy, roomy, pieces, tight):
        assert [bits_of(result) for result in run(core, *several)] == expected
    assert roomy.scheduler.prefix_hit_tokens > 0
    assert tight.scheduler.preemptions > 0
