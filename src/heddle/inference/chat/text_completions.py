"""POST /v1/completions: prompts as they stand, without messages and templates; answers as `text_completion`."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from heddle.errors import InvalidRequest
from heddle.inference.chat.fields import Integer, StreamOptions, Texts, split_texts, unknown_fields
from heddle.inference.chat.generation import Choice, Delta, Facts
from heddle.inference.chat.request import ChatRequest, SamplingFields, parse_body
from heddle.inference.chat.response import ChunkedAnswer, show_prompt_logprobs, usage
from heddle.inference.chat.wire import ParsedRequest, Shape, TokenCounts, Wire, count_tokens
from heddle.inference.engine.base import TokenLogprobs
from heddle.inference.structured.constraints import ResponseFormat
from heddle.wire.jsontypes import Json

DEFAULT_MAX_TOKENS = 16
MOST_CHOICES = 1024
_SAME_FIELDS = (
    *("model", "prompt_logprobs", "n", "stream", "stream_options", "response_format"),
    *("return_tokens_as_token_ids", "return_token_ids"),
)
"""Besides those of sampling, what is the same in chat."""
_LEAST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON does not have."""


class TextCompletionRequest(SamplingFields):
    """The body of `POST /v1/completions`."""

    prompt: Texts
    model: str | None = None
    best_of: Integer | None = None
    echo: bool | None = False
    logprobs: Integer | None = None
    max_tokens: Integer | None = DEFAULT_MAX_TOKENS
    n: Integer | None = 1
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    suffix: str | None = None
    prompt_logprobs: Integer | None = None
    add_special_tokens: bool | None = True
    response_format: ResponseFormat | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None


class TextAnswer(ChunkedAnswer):
    """A `text_completion`, or its chunks."""

    def __init__(
        self,
        request: TextCompletionRequest,
        prompts: Sequence[str | tuple[int, ...]],
        shape: Shape,
        facts: Sequence[Facts],
        choices: Sequence[Choice],
    ) -> None:
        super().__init__("text_completion", shape, facts, choices)
        self._request = request
        self._prompts = prompts
        self._is_prompt_only = bool(request.echo) and request.max_tokens == 0
        self._written = [0] * len(choices)
        """Characters that the chunks of each choice have told so far."""
        self._begun = [False] * len(choices)
        self._counts = [0] * len(choices)

    def body(self) -> Json:
        """The answer as a whole."""
        return {
            **self._head,
            "choices": [self._choice(choice) for choice in self.choices],
            "service_tier": None,
            "system_fingerprint": self.shape.fingerprint,
            "usage": usage(self.shape, count_tokens(self.facts, self.choices)),
            "kv_transfer_params": self.facts[0].kv_transfer_params,
        }

    def _choice(self, choice: Choice) -> Json:
        facts = self._facts_of(choice.index)
        text = "" if self._is_prompt_only else choice.content
        return {
            "index": choice.index,
            "text": self._echo(choice.index) + text,
            "logprobs": self._logprobs([*self._echoed(facts), *self._told(choice.logprobs)], 0),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            "token_ids": choice.token_ids if self.shape.token_ids else None,
            "prompt_logprobs": show_prompt_logprobs(self.shape, facts),
            "prompt_token_ids": list(facts.prompt_token_ids) if self.shape.prompt_ids else None,
        }

    def _facts_of(self, index: int) -> Facts:
        return self.facts[index // (len(self.choices) // len(self.facts))]

    def _echo(self, index: int) -> str:
        """The text of the prompt, where it is wanted before the answer."""
        if not self._request.echo:
            return ""
        given = self._prompts[index // (len(self.choices) // len(self.facts))]
        if isinstance(given, str) and self._request.truncate_prompt_tokens is None:
            return given
        return self.shape.tokenizer.decode(self._facts_of(index).prompt_token_ids, skip_special_tokens=False)

    def _echoed(self, facts: Facts) -> list[tuple[int, TokenLogprobs | None]]:
        """The tokens of the prompt with their log-probabilities, where it is echoed; the first has none."""
        if not self._request.echo or facts.prompt_logprobs is None:
            return []
        return list(zip(facts.prompt_token_ids, facts.prompt_logprobs, strict=True))

    def _told(self, items: Sequence[TokenLogprobs]) -> list[tuple[int, TokenLogprobs | None]]:
        return [] if self._is_prompt_only else [(item.token_id, item) for item in items]

    def _logprobs(self, items: Sequence[tuple[int, TokenLogprobs | None]], offset: int) -> Json | None:
        """Four lists side by side; `offset` is that of the first token in the text, in characters."""
        if not self.shape.logprobs or not items:
            return None
        tokens = [self.shape.name_token(token) for token, _ in items]
        offsets = []
        for token in tokens:
            offsets.append(offset)
            offset += len(token)
        return {
            "text_offset": offsets,
            "token_logprobs": [None if item is None else max(item.logprob, _LEAST_LOGPROB) for _, item in items],
            "tokens": tokens,
            "top_logprobs": [None if item is None else self._best(item) for _, item in items],
        }

    def _best(self, item: TokenLogprobs) -> dict[str, float]:
        """The token that was taken, and the best ones."""
        ranked = [(item.token_id, item.logprob), *item.top[: self._request.logprobs]]
        best: dict[str, float] = {}
        for token, logprob in ranked:
            best.setdefault(self.shape.name_token(token), max(logprob, _LEAST_LOGPROB))
        return best

    def opening(self) -> list[Json]:
        """Nothing: a prompt that is echoed comes with the first token of each choice."""
        return []

    def delta(self, index: int, delta: Delta) -> list[Json]:
        """The chunk of a new token; the first of a choice brings the prompt."""
        shape, facts = self.shape, self._facts_of(index)
        self._counts[index] = delta.completion_tokens
        is_first, self._begun[index] = not self._begun[index], True
        told = self._told(delta.logprobs)
        text = "" if self._is_prompt_only else delta.content
        if is_first:
            text = self._echo(index) + text
            told = [*self._echoed(facts), *told]
        is_told = delta.token_ids and (shape.token_ids or shape.logprobs)
        if not (text or delta.finish_reason or is_told or (is_first and shape.prompt_ids)):
            return []
        chunk: Json = {
            **self._head,
            "choices": [
                {
                    "index": index,
                    "text": text,
                    "logprobs": self._logprobs(told, self._written[index]),
                    "finish_reason": delta.finish_reason,
                    "stop_reason": delta.stop_reason,
                    "prompt_token_ids": list(facts.prompt_token_ids) if is_first and shape.prompt_ids else None,
                    "token_ids": delta.token_ids if shape.token_ids else None,
                }
            ],
        }
        self._written[index] += len(text)
        if delta.finish_reason is not None and not shape.include_usage:
            chunk["system_fingerprint"] = shape.fingerprint
        if shape.usage_in_every_chunk:
            prompt = sum(len(fact.prompt_token_ids) for fact in self.facts)
            chunk["usage"] = usage(shape, TokenCounts(prompt, 0, sum(self._counts), 0), brief=True)
        return [chunk]


class TextWire(Wire):
    """POST /v1/completions."""

    op_name = "heddle.completions"
    id_prefix = "cmpl-"
    last_event = b"data: [DONE]\n\n"
    names_events = False
    field_names = {"messages": "prompt", "top_logprobs": "logprobs"}  # noqa: RUF012 (declared by the base class)

    def read(self, body: Any) -> ParsedRequest:
        """The same sampling as in chat, on prompts that no template touches."""
        request = parse_body(TextCompletionRequest, body)
        prompts = split_texts(request.prompt)
        for reason, param in _find_problems(request, prompts):
            raise InvalidRequest(reason, param=param)
        most = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
        wants_logprobs = request.logprobs is not None
        chat = ChatRequest(
            messages=[],
            logprobs=wants_logprobs,
            top_logprobs=request.logprobs or 0,
            echo=bool(request.echo) and wants_logprobs,
            # An engine that reads a prompt also draws a token, which is not shown then.
            max_tokens=1 if request.echo and most == 0 else most,
            add_special_tokens=request.add_special_tokens is not False,
            **{name: getattr(request, name) for name in _SAME_FIELDS},
            **request.sampling_fields(),
        )
        ignored = tuple(unknown_fields(TextCompletionRequest, body))
        return ParsedRequest(chat, partial(TextAnswer, request, prompts), prompts, ignored)


def _find_problems(
    request: TextCompletionRequest, prompts: Sequence[str | tuple[int, ...]]
) -> Iterator[tuple[str, str]]:
    choices = 1 if request.n is None else request.n
    if not all(prompts):
        yield "prompt must not be empty", "prompt"
    if len(prompts) * choices > MOST_CHOICES:
        yield f"prompt: {len(prompts)} prompts with n={choices} exceed {MOST_CHOICES} choices", "prompt"
    if request.suffix:
        yield (
            "suffix is not supported; to fill in the middle, put the markers that the model was trained with "
            "(such as <|fim_prefix|>) into the prompt",
            "suffix",
        )
    if request.best_of is not None and request.best_of != choices:
        yield (
            f"best_of={request.best_of}: every choice is returned, so it must equal n={choices} or be omitted",
            "best_of",
        )


TEXT = TextWire()
