"""The served model as the front sees it: tokenizer, formats, defaults and its engine; no weights."""

from dataclasses import dataclass

from heddle.inference.adapters.registry import Version
from heddle.inference.engine.base import Engine, EngineInfo
from heddle.inference.models.source import Defaults, ModelSource
from heddle.inference.prompt.reasoning import ReasoningMarks, detect_marks
from heddle.inference.tokenization.tokenizer import Tokenizer


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
