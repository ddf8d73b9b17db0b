"""What the engine refuses before it does any work for a request."""

from collections.abc import Iterable

from heddle.inference.engine.base import RequestRefused, TokenRequest


def check_tokens(request: TokenRequest, vocab_size: int) -> None:
    """Raises RequestRefused for ids that the model does not have: one of them would fail a whole step."""
    sampling = request.sampling
    if not request.prompt:
        raise RequestRefused("the prompt has no tokens", param="prompt")
    named: list[tuple[str, Iterable[int]]] = [
        ("prompt", request.prompt),
        ("logit_bias", sampling.logit_bias),
        ("allowed_token_ids", sampling.allowed_token_ids or ()),
        ("bad_words", (token for word in sampling.bad_words for token in word)),
        ("stop_token_ids", sampling.stop_token_ids),
    ]
    for name, tokens in named:
        wrong = next((token for token in tokens if not 0 <= token < vocab_size), None)
        if wrong is not None:
            raise RequestRefused(f"{name}: token id {wrong} is not in the vocabulary of {vocab_size}", param=name)
    if sampling.allowed_token_ids is not None and not sampling.allowed_token_ids:
        raise RequestRefused("allowed_token_ids is empty", param="allowed_token_ids")
    if not all(sampling.bad_words):
        raise RequestRefused("bad_words: a word has no tokens", param="bad_words")


def check_length(request: TokenRequest, max_model_len: int) -> None:
    """Raises RequestRefused when prompt and output are more than the engine holds."""
    prompt, output = len(request.prompt), request.sampling.max_tokens
    if output < 1:
        raise RequestRefused(f"max_tokens is {output}, at least 1 is needed", param="max_tokens")
    if prompt + output > max_model_len:
        raise RequestRefused(
            f"the prompt has {prompt} tokens and max_tokens is {output}: together {prompt + output}, "
            f"and this engine takes {max_model_len}",
            param="max_tokens" if prompt < max_model_len else "prompt",
        )
