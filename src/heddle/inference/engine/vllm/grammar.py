"""A constraint as vLLM takes it: one Lark text, which its compiler `guidance` hands to llguidance as it is."""

import json
import re

_PIECE = re.compile(r'"(?:\\.|[^"\\])*"|/(?:\\.|[^/\\\n])+/|@(\w+)')
"""A string, a regular expression, or a reference to another grammar."""


def one_lark(grammar: str) -> str:
    """The Lark text of a grammar in JSON form; those that it refers to as `@name` become rules with a nested one."""
    first, *others = json.loads(grammar)["grammars"]
    texts = {str(other["name"]): str(other["lark_grammar"]) for other in others}
    return _joined(str(first["lark_grammar"]), texts)


def _joined(lark: str, texts: dict[str, str]) -> str:
    found: list[str] = []

    def rule(match: re.Match[str]) -> str:
        name = match[1]
        if name not in texts:
            return match[0]
        if name not in found:
            found.append(name)
        return f"other_{name}"

    main = _PIECE.sub(rule, lark)
    # What a text refers to comes after it, so no text ever holds itself.
    names = list(texts)
    later = {name: {other: texts[other] for other in names[names.index(name) + 1 :]} for name in found}
    nested = [f"other_{name}: %lark {{\n{_joined(texts[name], later[name])}\n}}" for name in found]
    return "\n".join([main, *nested]) + "\n" if nested else main
