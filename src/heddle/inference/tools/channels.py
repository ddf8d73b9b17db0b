"""The marks of Harmony messages, which models write them, and grammars around what such a model writes."""

from typing import TYPE_CHECKING

from heddle.inference.structured.guidance import LLTokenizer
from heddle.inference.structured.lark import literal, mark, name_grammar, text_up_to

if TYPE_CHECKING:
    from heddle.inference.tokenizer import Tokenizer

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
MARKS = (START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN)


def speaks_harmony(tokenizer: "Tokenizer", template: str | None = None) -> bool:
    """Whether a model writes its outputs in channels, as its templates (or one of the request) have it."""
    sources = tokenizer.chat_templates.values() if template is None else (template,)
    return {CHANNEL, MESSAGE} <= set(tokenizer.added_tokens.values()) and any(
        CHANNEL in source and MESSAGE in source for source in sources
    )


def mark_ids(tokenizer: "Tokenizer") -> frozenset[int]:
    """The marks as tokens; the detokenizer must show them although they are special."""
    return frozenset(token_id for token_id, text in tokenizer.added_tokens.items() if text in MARKS)


def message_rules(tokenizer: LLTokenizer) -> list[str]:
    """Lark rules by which `thoughts` matches messages of thoughts, each with the beginning of the next message."""
    marked = {text: mark(tokenizer, text) for text in (CHANNEL, MESSAGE, END, START)}
    return [
        "thoughts: thought*",
        f'thought: {marked[CHANNEL]} ("analysis" | "commentary") {marked[MESSAGE]} thought_text next',
        f'next: {marked[START]} "assistant"',
        *text_up_to(tokenizer, "thought_text", END),
    ]


def answer_head(tokenizer: LLTokenizer) -> str:
    """Lark for what goes before the text of an answer."""
    return f'{mark(tokenizer, CHANNEL)} "final" {mark(tokenizer, MESSAGE)}'


def call_head(tokenizer: LLTokenizer, name: str) -> str:
    """Lark for what goes before the arguments of a call."""
    recipient = literal(f"commentary to=functions.{name} ")
    return f'{mark(tokenizer, CHANNEL)} {recipient} {mark(tokenizer, CONSTRAIN)} "json" {mark(tokenizer, MESSAGE)}'


def put_into_answer(grammar: str, tokenizer: LLTokenizer) -> str:
    """A grammar (JSON form) that wants what `grammar` matches as the answer, after any thoughts."""
    rules = [f"start: thoughts {answer_head(tokenizer)} @format", *message_rules(tokenizer)]
    return name_grammar(grammar, "format", "\n".join(rules))
