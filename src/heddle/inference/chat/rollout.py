"""Answers of trainable models: what each of them carries so that it can be trained on, asked for or not."""

from dataclasses import dataclass, replace

from heddle.inference.chat.request import ChatRequest
from heddle.inference.chat.response import Shape
from heddle.inference.chat.sampling import is_greedy, temperature_of
from heddle.inference.engine.base import EngineInfo, Sampling
from heddle.inference.tokenization.tokenizer import Tokenizer

_ASKED = {"logprobs": True, "return_token_ids": True}
_CLOCK = "strftime_now"
"""What templates call to write the date."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """A request to a trainable model, with log-probabilities and token ids switched on."""

    request: ChatRequest
    wants_prompt_ids: bool
    """The request itself asked for token ids."""
    needs_prompt_ids: bool
    """Rendering messages and tools again would not give the prompt."""

    @classmethod
    def of(cls, request: ChatRequest, tokenizer: Tokenizer) -> "Rollout":
        """The same request; a form of the tokens that it names (`return_tokens_as_token_ids`) is kept."""
        named = {} if request.return_tokens_as_token_ids is not None else {"return_tokens_as_token_ids": True}
        has_clock = any(_CLOCK in template for template in tokenizer.chat_templates.values())
        return cls(
            request=request.model_copy(update=_ASKED | named),
            wants_prompt_ids=bool(request.return_token_ids),
            needs_prompt_ids=has_clock or _shapes_prompt(request),
        )

    def sampling(self, sampling: Sampling, info: EngineInfo) -> Sampling:
        """Log-probabilities of the distribution that was drawn from: after the temperature, where it is not 1.

        Greedy answers keep the raw ones, as all others would be 0; so do those of an engine that has no others.
        """
        if is_greedy(sampling.temperature) or not info.scales_logprobs:
            return sampling
        return replace(sampling, logprobs_temperature=temperature_of(sampling.temperature))

    def shape(self, shape: Shape, sampling: Sampling) -> Shape:
        """What the answer carries."""
        temperature = sampling.logprobs_temperature
        return replace(
            shape,
            prompt_ids=self.wants_prompt_ids,
            prompt_ids_in_choices=self.wants_prompt_ids or self.needs_prompt_ids,
            logprobs_temperature=temperature if temperature != 1.0 else None,
        )


def _shapes_prompt(request: ChatRequest) -> bool:
    """True when the prompt is more than the messages and tools, or another part of them."""
    return bool(
        request.chat_template is not None
        or request.chat_template_kwargs
        or request.documents
        or request.reasoning_effort is not None
        or request.add_generation_prompt is False
        or request.continue_final_message
        or request.add_special_tokens
        or request.truncate_prompt_tokens is not None
        or (request.tools and request.tool_choice == "none")
    )
