"""One line for what went into a call and what came out: the last words of a chat before the JSON around them."""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

LENGTH = 100
_TEXT_KEYS: tuple[str, ...] = ("question", "query", "prompt", "input", "text", "message", "content")
_TEXT_KEYS += ("answer", "response", "result", "output")
_MOST_ITEMS = 8


def of_inputs(inputs: Any) -> str:
    """The last user message, else the text that a person would look for, else the arguments in a row."""
    if not isinstance(inputs, Mapping):
        return line(inputs)
    named = {name: value for name, value in inputs.items() if name != "self"}
    for name in ("messages", "input", "contents"):
        if isinstance(messages := named.get(name), list) and (said := _last_said(messages)):
            return _cut(said)
    texts = [value for name in _TEXT_KEYS if isinstance(value := named.get(name), str) and value]
    if texts:
        return _cut(texts[0])
    if len(named) == 1:
        return line(next(iter(named.values())))
    return _cut(_pairs(named))


def of_output(output: Any) -> str:
    """The first text of an answer, a call of a tool by name, else the value in a row."""
    return _cut(_text_of(output, 4) or line(output))


def line(value: Any, length: int = LENGTH) -> str:
    """Any JSON value on one line, cut."""
    if value is None:
        return ""
    if isinstance(value, str):
        return _cut(value, length)
    if isinstance(value, Mapping):
        return _cut(_pairs(value), length)
    return _cut(orjson.dumps(_bounded(value, length)).decode(), length)


def _pairs(values: Mapping[str, Any]) -> str:
    shown = ((name, value) for name, value in values.items() if not name.startswith("_"))
    return ", ".join(f"{name}: {line(value, 60)}" for (name, value), _ in zip(shown, range(_MOST_ITEMS), strict=False))


def _bounded(value: Any, length: int) -> Any:
    """The beginning of a large value: what cannot be seen is not written."""
    if isinstance(value, str):
        return value[:length]
    if isinstance(value, list):
        return [_bounded(item, length) for item in value[:_MOST_ITEMS]]
    if isinstance(value, Mapping):
        items: Iterable[tuple[str, Any]] = list(value.items())[:_MOST_ITEMS]
        return {name: _bounded(item, length) for name, item in items}
    return value


def _last_said(messages: list[Any]) -> str:
    known = [message for message in messages if isinstance(message, Mapping)]
    chosen = next((message for message in reversed(known) if message.get("role") == "user"), None)
    chosen = chosen or (known[-1] if known and "role" in known[-1] else None)
    return _text_of(chosen, 3) if chosen is not None else ""


def _text_of(value: Any, levels: int) -> str:
    """The first text inside an answer or a message; empty where there is none within some levels."""
    if isinstance(value, str):
        return value
    if levels == 0:
        return ""
    if isinstance(value, list):
        return next((text for item in value[:_MOST_ITEMS] if (text := _text_of(item, levels - 1))), "")
    if not isinstance(value, Mapping):
        return ""
    if isinstance(function := value.get("function"), Mapping) and isinstance(name := function.get("name"), str):
        return f"{name}({function.get('arguments') or ''})"
    if value.get("type") == "tool_use" and isinstance(value.get("name"), str):
        return f"{value['name']}({line(value.get('input'), 80)})"
    if value.get("type") == "reasoning":
        return ""
    for name in ("choices", "message", "delta", "parts", "candidates", *_TEXT_KEYS, "tool_calls"):
        if name in value and (text := _text_of(value[name], levels - 1)):
            return text
    return ""


def _cut(text: str, length: int = LENGTH) -> str:
    short = " ".join(text[: length * 3].split())
    return short if len(short) <= length else f"{short[: length - 1]}…"
