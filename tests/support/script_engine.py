"""An engine that plays what a script says, in place of a model: `--script FILE` of the look-alike of vLLM.

A script is a JSON list of rules. The first rule whose conditions hold for a prompt is played; every condition may be
left out:

    {"last": "a pattern in the last message", "prompt": "one in the whole prompt", "role": "tool", "results": 2,
     "think": "...", "say": "...", "calls": [{"name": "...", "arguments": {}}]}

`role` is that of the last message, `results` the number of tool results in the prompt. `say` may be a list of texts;
what the request's constraint does not allow is passed over. `{name}` in texts and arguments is what the group of that
name found in the patterns. Prompts are read, and calls written, as the template of
`heddle-tiny` has them; tokens are those of the model's tokenizer, and a prompt's beginning counts as cached where an
earlier prompt had it.
"""

import asyncio
import json
import re
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from shutil import copytree
from typing import Any

from heddle.inference.engine.base import AdapterRef, EngineInfo, EngineStats, RequestRefused, TokenEvent, TokenRequest
from heddle.inference.served_model import TINY_FOLDER
from heddle.inference.structured.guidance import Constraint, grammar_tokenizer, make_matcher
from heddle.inference.tokenizer import Tokenizer
from tests.support.vllm_server import COMMAND

BLOCK = 16
"""Tokens are cached in blocks of so many."""
KEPT_PROMPTS = 64
LONG_CONTEXT = 4_000_000
_MESSAGE = re.compile(r"<\|im_start\|>(\w+)([^\n]*)\n(.*?)(?:<\|im_end\|>|\Z)", re.DOTALL)


@dataclass(frozen=True)
class Prompt:
    """A prompt as rules see it: its text, and its messages as roles and texts."""

    text: str
    messages: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, text: str) -> "Prompt":
        """The messages of a rendered prompt, without the head of the answer."""
        found = [(role, body) for role, _, body in _MESSAGE.findall(text.removesuffix("<|im_start|>assistant\n"))]
        return cls(text, tuple(found) or (("user", text),))

    @property
    def results(self) -> int:
        """How many tools have answered."""
        return sum(role == "tool" for role, _ in self.messages)


@dataclass(frozen=True)
class Rule:
    """What is played, and when; a key that is none of these is an error."""

    say: str | list[str] = ""
    think: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    last: str | None = None
    prompt: str | None = None
    role: str | None = None
    results: int | None = None

    def texts(self, prompt: Prompt) -> Iterator[str]:
        """The complete outputs, the one to be preferred first; none where a condition does not hold."""
        role, text = prompt.messages[-1]
        found = [
            re.search(pattern, where) for pattern, where in ((self.last, text), (self.prompt, prompt.text)) if pattern
        ]
        if None in found or self.role not in (None, role) or self.results not in (None, prompt.results):
            return
        groups = {name: said for match in found if match is not None for name, said in match.groupdict().items()}
        thought = f"<think>{self.think}</think>" if self.think else ""
        calls = [f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in self.calls]
        for own in [self.say] if isinstance(self.say, str) else self.say:
            whole = thought + "\n".join([own, *calls] if own else calls)
            for name, said in groups.items():
                whole = whole.replace(f"{{{name}}}", said)
            yield whole


class ScriptEngine:
    """Plays the rules of a file."""

    def __init__(self, script: Path, folder: Path, info: EngineInfo) -> None:
        self._rules = [Rule(**rule) for rule in json.loads(script.read_text(encoding="utf-8"))]
        self._tokenizer = Tokenizer.load(folder)
        self._grammar_tokenizer = grammar_tokenizer(folder / "tokenizer.json", info.vocab_size, info.eos_token_ids)
        self._end = info.eos_token_ids[0]
        self._prompts: deque[tuple[int, ...]] = deque(maxlen=KEPT_PROMPTS)
        self._stats = EngineStats(state="ready")

    async def start(self) -> None:
        """Nothing to load."""

    async def stop(self) -> None:
        """Nothing to end."""

    async def generate(self, request: TokenRequest) -> AsyncIterator[TokenEvent]:
        """The tokens of the first rule that fits; raises RequestRefused where none does."""
        played = self._play(request)
        cached: int | None = self._cached(request.prompt)
        self._prompts.append(request.prompt)
        for number, token in enumerate(played, 1):
            finish = "stop" if number == len(played) else "length" if number == request.sampling.max_tokens else None
            yield TokenEvent((token,), cached_tokens=cached, finish_reason=finish)
            if finish is not None:
                return
            cached = None
            await asyncio.sleep(0)

    async def load_adapter(self, adapter: AdapterRef, start: bool = True) -> None:
        """Every adapter will do."""

    async def unload_adapter(self, adapter_id: str) -> None:
        """Nothing is held."""

    async def stats(self) -> EngineStats:
        """Nothing is counted."""
        return self._stats

    def _play(self, request: TokenRequest) -> list[int]:
        prompt = Prompt.of(self._tokenizer.decode(request.prompt, skip_special_tokens=False))
        for rule in self._rules:
            for text in rule.texts(prompt):
                tokens = self._tokenizer.encode(text)
                if request.constraint is None or self._allows(request.constraint, tokens):
                    return [*tokens, self._end]
        raise RequestRefused(f"the script has nothing for {prompt.messages[-1]} under {request.constraint}")

    def _allows(self, constraint: Constraint, tokens: list[int]) -> bool:
        matcher = make_matcher(self._grammar_tokenizer, constraint.grammar)
        return matcher.try_consume_tokens(tokens) == len(tokens) and bool(matcher.is_accepting())

    def _cached(self, prompt: tuple[int, ...]) -> int:
        """Tokens in whole blocks that some earlier prompt began with, too; never all of the prompt."""
        longest = max((_common(prompt, earlier) for earlier in self._prompts), default=0)
        return min(longest, len(prompt) - 1) // BLOCK * BLOCK


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """How many tokens both begin with."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low


def scripted_settings(script: Path, folder: Path) -> dict[str, object]:
    """Settings of a heddle whose model plays a script, with room for the prompts of agents.

    The model's folder, with a longer context, is made below `folder`.
    """
    model = copytree(TINY_FOLDER, folder / "heddle-tiny")
    for name, key in (("config.json", "max_position_embeddings"), ("tokenizer_config.json", "model_max_length")):
        values = json.loads((model / name).read_text(encoding="utf-8"))
        (model / name).write_text(json.dumps(values | {key: LONG_CONTEXT}), encoding="utf-8")
    return {
        "model": model,
        "model_name": "heddle-tiny",
        "engine": "vllm",
        "vllm_command": COMMAND,
        "vllm_arguments": f"--script {script}",
    }


def write_script(folder: Path, rules: list[dict[str, Any]]) -> Path:
    """A script file with these rules."""
    path = folder / "script.json"
    path.write_text(json.dumps(rules), encoding="utf-8")
    return path
