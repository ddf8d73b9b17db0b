"""Whether a new token is the last one."""

from collections.abc import Sequence as Rows

from heddle.inference.engine.base import FinishReason, RepetitionRule
from heddle.inference.engine.local.sequence import Sequence

End = tuple[FinishReason, int | str | None]


def end_of(sequence: Sequence, eos: tuple[int, ...]) -> End | None:
    """Finish and stop reason after the newest token, or None to go on."""
    sampling = sequence.request.sampling
    output, token = sequence.output_count, sequence.tokens[-1]
    if output >= sampling.min_tokens:
        if token in eos and not sampling.ignore_eos:
            return ("stop", None)
        if token in sampling.stop_token_ids:
            return ("stop", token)
    if output >= sampling.max_tokens:
        return ("length", None)
    if sequence.matcher is not None and sequence.matcher.complete and not _can_draw_end(sequence, eos):
        return ("stop", None)
    rule = sampling.repetition
    if rule is not None and output >= sampling.min_tokens and repeats(sequence.tokens, sequence.prompt_tokens, rule):
        return ("repetition", "repetition_detected")
    return None


def _can_draw_end(sequence: Sequence, eos: tuple[int, ...]) -> bool:
    """Whether a finished grammar may be followed by an end-of-sequence token that ends the request."""
    sampling = sequence.request.sampling
    allowed = sampling.allowed_token_ids
    possible = eos if allowed is None else [token for token in eos if token in allowed]
    return bool(possible) and not sampling.ignore_eos and sequence.output_count >= sampling.min_tokens


def repeats(tokens: Rows[int], start: int, rule: RepetitionRule) -> bool:
    """Whether `tokens[start:]` ends with one pattern `min_count` times, of a length that the rule names."""
    output = len(tokens) - start
    for size in range(max(rule.min_pattern_size, 1), rule.max_pattern_size + 1):
        length = size * rule.min_count
        if length > output:
            return False
        if tokens[-1] == tokens[-1 - size] and all(
            tokens[place] == tokens[place - size] for place in range(len(tokens) - length + size, len(tokens))
        ):
            return True
    return False
