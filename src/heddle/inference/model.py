"""The served model as the front sees it: tokenizer, formats, defaults and its engine; no weights."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from heddle.errors import InvalidRequest
from heddle.inference.adapters import Version
from heddle.inference.engine.base import Engine, EngineInfo
from heddle.inference.prompt.tokenizer import Tokenizer
from heddle.inference.reasoning import ReasoningMarks, detect_marks
from heddle.inference.sampling import Defaults
from heddle.inference.source import ModelSource
from heddle.inference.structured.compiler import grammar_tokenizer


@dataclass(frozen=True)
class ServedModel:
    """One base model with its engine."""

    source: ModelSource
    tokenizer: Tokenizer
    defaults: Defaults
    reasoning: ReasoningMarks | None
    engine: Engine

    @classmethod
    def open(cls, source: ModelSource, engine: Engine) -> "ServedModel":
        """Read the small files of the folder; raises Unavailable when one is missing or broken."""
        tokenizer = Tokenizer.load(source.folder)
        return cls(
            source=source,
            tokenizer=tokenizer,
            defaults=Defaults.of(source.generation_config),
            reasoning=detect_marks(tokenizer),
            engine=engine,
        )

    @property
    def info(self) -> EngineInfo:
        """What the engine says about itself; its longest context may become smaller with its start."""
        return self.engine.info()

    @cached_property
    def grammar_tokenizer(self) -> Any:
        """The tokenizer as llguidance wants it, made at the first constraint (which takes up to a second).

        Raises InvalidRequest for a tokenizer that it cannot read.
        """
        try:
            return grammar_tokenizer(self.source.folder, self.info.vocab_size, self.info.eos_token_ids)
        except ValueError as error:
            raise InvalidRequest(
                f"The output cannot be constrained: the tokenizer of {self.source.name} fits no grammar "
                f"({str(error)[:200]})",
                param="structured_outputs",
            ) from None

    def fingerprint(self, version: Version | None) -> str:
        """Which weights answer: engine, digest of the base model, and the adapter version.

        Of a trainable model it begins with `policy-step-N`, which clients of training look for.
        """
        base = f"{self.info.name}-{self.source.digest}"
        if version is None:
            return base
        weights = f"{base}-{version.label}"
        return f"policy-step-{version.row.step}-{weights}" if version.is_trainable else weights

    def policy(self, version: Version | None) -> str:
        """The name of the weights for the header `x-heddle-policy`."""
        return self.source.name if version is None else version.policy
