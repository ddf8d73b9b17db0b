"""Texts against constraints, byte by byte."""

import random
from typing import Any

from llguidance import LLMatcher

from heddle.inference.structured.constraints import ResponseFormat, StructuredOutputs, constraint_for
from heddle.inference.structured.guidance import byte_tokenizer

END = 256
WEIGHTS = [0.3] * 257
for _byte in b'"}]':
    WEIGHTS[_byte] = 6.0
for _byte in b",:0123456789":
    WEIGHTS[_byte] = 1.0
for _value in range(128, 256):
    WEIGHTS[_value] = 0.15
WEIGHTS[END] = 8.0


def grammar(response_format: dict[str, Any] | None = None, **outputs: Any) -> str:
    """The grammar of a request; keys as they stand in it."""
    constraint = constraint_for(
        StructuredOutputs.model_validate(outputs) if outputs else None,
        ResponseFormat.model_validate(response_format) if response_format else None,
    )
    assert constraint is not None
    return constraint.grammar


def accepts(compiled: str, text: str) -> bool:
    """Whether the whole text may be generated, and nothing has to follow."""
    matcher = LLMatcher(byte_tokenizer(), compiled, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    data = text.encode()
    return bool(matcher.try_consume_tokens(list(data)) == len(data) and matcher.is_accepting())


def matching(compiled: str, *texts: str) -> list[str]:
    """Those of the texts that may be generated."""
    return [text for text in texts if accepts(compiled, text)]


def random_text(compiled: str, seed: str, limit: int = 1500) -> str | None:
    """What a model that knows nothing would write; None when it does not come to an end."""
    choose = random.Random(seed)
    matcher = LLMatcher(byte_tokenizer(), compiled, log_level=0)
    written = bytearray()
    while not matcher.is_stopped() and len(written) < limit:
        mask = matcher.compute_bitmask()
        assert not matcher.is_error(), (matcher.get_error(), bytes(written))
        allowed = [value for value in range(257) if mask[value // 8] >> (value % 8) & 1]
        assert allowed, f"no way on after {bytes(written)!r}"
        taken = choose.choices(allowed, [WEIGHTS[value] for value in allowed])[0]
        if taken == END:
            return written.decode()
        matcher.consume_token(taken)
        assert not matcher.is_error(), (matcher.get_error(), bytes(written))
        written.append(taken)
    return written.decode() if matcher.is_stopped() else None
