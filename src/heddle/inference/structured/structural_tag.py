"""Structural tags (free text with constrained parts) as Lark grammars.

Two forms of the request: a tree of `format` nodes, and the older list of `structures` begun by `triggers`.
A part that may hold any text ends where its delimiter first appears, so delimiters are matched together with the
text before them, lazily.
"""

from collections.abc import Callable
from typing import Any

from heddle.inference.structured.checks import Refused, read_count, read_list, read_object, read_text
from heddle.inference.structured.guidance import LLTokenizer, llguidance, refusal, shorten
from heddle.inference.structured.lark import json_rule, literal, text_without, to_lark, whole_grammar
from heddle.inference.structured.schema import MAX_DEPTH, JsonStyle

MAX_REPEAT = 10_000


def structural_tag_grammar(
    tag: dict[str, Any], style: JsonStyle, param: str, tokenizer: LLTokenizer | None = None
) -> str:
    """The grammar in JSON form; InvalidRequest names the node that is wrong or unknown."""
    translator = _Translator(style, param, tokenizer)
    try:
        return translator.build(tag)
    except Refused as refused:
        raise refusal(param, refused) from None


Node = dict[str, Any]
Ends = list[str] | None


class _Translator:
    """Collects the rules of one grammar; `ends` are the delimiters that must follow a node, matched with it."""

    def __init__(self, style: JsonStyle, param: str, tokenizer: LLTokenizer | None) -> None:
        self.style = style
        self.param = param
        self.tokenizer = tokenizer
        self.rules: list[str] = []
        self.others: dict[str, str] = {}

    def build(self, tag: Node) -> str:
        """The grammar of a request's `structural_tag`."""
        if tag.get("type", "structural_tag") != "structural_tag":
            raise Refused("type", "must be 'structural_tag'")
        if "format" in tag:
            start = self.node(tag["format"], "format", None, 0)
        elif "structures" in tag or "triggers" in tag:
            structures = read_list(tag.get("structures"), "structures")
            tags = []
            for index, item in enumerate(structures):
                structure = read_object(item, f"structures/{index}")
                content = {"type": "json_schema", "json_schema": structure.get("schema", structure.get("json_schema"))}
                tags.append(
                    {"type": "tag", "begin": structure.get("begin"), "content": content, "end": structure.get("end")}
                )
            start = self.node(
                {"type": "triggered_tags", "triggers": tag.get("triggers"), "tags": tags}, "structures", None, 0
            )
        else:
            raise Refused("structural_tag", "requires 'format', or 'structures' with 'triggers'")
        lark = f"start: {start}\n" + "\n".join(self.rules)
        return whole_grammar(lark, self.others)

    def rule(self, body: str, attributes: str = "") -> str:
        """The name of a new rule."""
        name = f"n{len(self.rules)}"
        self.rules.append(f"{name}{attributes}: {body}")
        return name

    def terminal(self, body: str) -> str:
        """The name of a new terminal."""
        name = f"T{len(self.rules)}"
        self.rules.append(f"{name}: {body}")
        return name

    def node(self, node: Any, place: str, ends: Ends, depth: int) -> str:
        """An expression that matches the node and then one of `ends`."""
        kind = read_object(node, place).get("type")
        translate = _NODES.get(kind) if isinstance(kind, str) else None
        if translate is None:
            raise Refused(place, f"{shorten(repr(kind))} is not a node type; expected one of {', '.join(_NODES)}")
        if depth > MAX_DEPTH:
            raise Refused(place, f"nested more than {MAX_DEPTH} levels deep")
        return translate(self, node, place, ends, depth + 1)

    def add_ends(self, expression: str, ends: Ends) -> str:
        """The expression and then one of the delimiters."""
        return self.rule(f"{expression} {one_of(ends)}") if ends is not None else expression

    # parts of text

    def const_string(self, node: Node, place: str, ends: Ends, _depth: int) -> str:
        return self.add_ends(literal(read_text(node.get("value"), f"{place}/value")), ends)

    def json_schema(self, node: Node, place: str, ends: Ends, _depth: int) -> str:
        if node.get("style", "json") != "json":
            raise Refused(f"{place}/style", "only 'json' is supported")
        if node.get("any_order", False) is not False:
            raise Refused(f"{place}/any_order", "is not supported: properties are generated in the order of the schema")
        if not isinstance(node.get("json_schema"), dict | bool):
            raise Refused(f"{place}/json_schema", "must be a schema")
        return self.add_ends(self.rule(json_rule(node["json_schema"], self.style, self.param)), ends)

    def regex(self, node: Node, place: str, ends: Ends, _depth: int) -> str:
        pattern = f"/{llguidance().regex_to_lark(read_text(node.get('pattern'), f'{place}/pattern'))}/"
        if ends is None or "" in ends:
            return self.add_ends(self.rule(pattern), ends)
        return self.rule(f"{self.terminal(pattern)} {one_of(ends)}", "[lazy]")

    def grammar(self, node: Node, place: str, ends: Ends, _depth: int) -> str:
        name = f"g{len(self.others)}"
        self.others[name] = to_lark(read_text(node.get("grammar"), f"{place}/grammar"), self.param)
        return self.add_ends(self.rule(f"@{name}"), ends)

    def any_text(self, node: Node, place: str, ends: Ends, _depth: int) -> str:
        if node.get("max_tokens") is not None:
            raise Refused(f"{place}/max_tokens", "is not supported; use max_chars")
        found = node.get("max_chars")
        return self.free_text(
            _texts(node, "excludes", place), ends, (None if found is None else read_count(found, f"{place}/max_chars"))
        )

    def free_text(self, excludes: list[str], ends: Ends, limit: int | None = None) -> str:
        """Any text without `excludes` up to the first delimiter, or up to the end of the output."""
        length = "" if limit is None else f" & /(?s:.{{0,{limit}}})/"
        if ends is None:
            return self.terminal(text_without(excludes) + length)
        if "" in ends:
            raise Refused("end", "must not be empty after a part that can contain any text")
        text = self.terminal(text_without([*excludes, *ends] if limit is not None else excludes) + length)
        return self.rule(f"{text} {one_of(ends)}", "[lazy]")

    # combinations

    def sequence(self, node: Node, place: str, ends: Ends, depth: int) -> str:
        elements = read_list(node.get("elements"), f"{place}/elements")
        parts = []
        for index, element in enumerate(elements):
            last = index == len(elements) - 1
            if not last and _is_free(element):
                raise Refused(
                    f"{place}/elements/{index}", "a part that can contain any text must be last, or inside a tag"
                )
            parts.append(self.node(element, f"{place}/elements/{index}", ends if last else None, depth))
        return self.rule(" ".join(parts))

    def alternatives(self, node: Node, place: str, ends: Ends, depth: int) -> str:
        elements = read_list(node.get("elements"), f"{place}/elements")
        return self.rule(
            " | ".join(
                self.node(element, f"{place}/elements/{index}", ends, depth) for index, element in enumerate(elements)
            )
        )

    def repetition(self, node: Node, place: str, ends: Ends, depth: int) -> str:
        if _is_free(node.get("content")):
            raise Refused(f"{place}/content", "a part that can contain any text cannot be repeated or optional")
        content = self.node(node.get("content"), f"{place}/content", None, depth)
        return self.add_ends(self.rule(f"({content}){_times(node, place)}"), ends)

    def tag(self, node: Node, place: str, ends: Ends, depth: int) -> str:
        return self.add_ends(self.tag_after("", node, place, depth), ends)

    def tag_after(self, trigger: str, node: Node, place: str, depth: int) -> str:
        """A tag of which the trigger has been matched already."""
        if node.get("type", "tag") != "tag":
            raise Refused(f"{place}/type", "must be 'tag'")
        begin, end = node.get("begin"), node.get("end")
        opening = literal(begin[len(trigger) :]) if isinstance(begin, str) else self.token(begin, f"{place}/begin")
        if isinstance(end, dict):
            content = self.node(node.get("content"), f"{place}/content", None, depth)
            if _is_free(node.get("content")):
                raise Refused(f"{place}/end", "must be a string after a part that can contain any text")
            return self.rule(f"{opening} {content} {self.token(end, f'{place}/end')}")
        delimiters = [end] if isinstance(end, str) else read_list(end, f"{place}/end")
        for delimiter in delimiters:
            read_text(delimiter, f"{place}/end")
        return self.rule(f"{opening} {self.node(node.get('content'), f'{place}/content', delimiters, depth)}")

    def token(self, node: Any, place: str) -> str:
        """One token, by its id or its text."""
        if read_object(node, place).get("type") != "token":
            raise Refused(place, "must be a string or a node of type 'token'")
        token = node.get("token")
        if isinstance(token, str) and self.tokenizer is not None:
            found = self.tokenizer.tokenize_str(token, parse_special=True)
            if len(found) != 1:
                raise Refused(place, f"{shorten(repr(token))} is not one token of this model")
            token = found[0]
        if isinstance(token, bool) or not isinstance(token, int) or token < 0:
            raise Refused(place, "must be a token of this model, given as its id or its text")
        return f"<[{token}]>"

    # tags in free text

    def triggered_tags(self, node: Node, place: str, ends: Ends, depth: int) -> str:
        triggers = _texts(node, "triggers", place)
        tags = read_list(node.get("tags"), f"{place}/tags")
        if not triggers or "" in triggers:
            raise Refused(f"{place}/triggers", "must be a non-empty list of non-empty strings")
        excludes = _texts(node, "excludes", place)
        triggered, whole = [], []
        for index, tag in enumerate(tags):
            begin = read_text(read_object(tag, f"{place}/tags/{index}").get("begin"), f"{place}/tags/{index}/begin")
            matching = [trigger for trigger in triggers if begin.startswith(trigger)]
            if len(matching) != 1:
                raise Refused(f"{place}/tags/{index}/begin", "must start with exactly one of the triggers")
            head = self.free_text([*excludes], [matching[0]])
            triggered.append(f"{head} {self.tag_after(matching[0], tag, f'{place}/tags/{index}', depth)}")
            whole.append(self.tag_after("", tag, f"{place}/tags/{index}", depth))
        one, first = self.rule(" | ".join(triggered)), self.rule(" | ".join(whole))
        text = self.free_text([*excludes, *triggers], ends)
        done = one_of(ends) if ends is not None else '""'
        if _flag(node, "stop_after_first", place):
            return self.rule(f"{first} {done}" if _flag(node, "at_least_one", place) else f"{one} {done} | {text}")
        return self.rule(f"{first} {one}* {text}" if _flag(node, "at_least_one", place) else f"{one}* {text}")

    def tags_with_separator(self, node: Node, place: str, ends: Ends, depth: int) -> str:
        tags = read_list(node.get("tags"), f"{place}/tags")
        separator = literal(read_text(node.get("separator"), f"{place}/separator"))
        one = self.rule(
            " | ".join(
                self.tag_after("", read_object(tag, place), f"{place}/tags/{index}", depth)
                for index, tag in enumerate(tags)
            )
        )
        several = one if _flag(node, "stop_after_first", place) else f"{one} ({separator} {one})*"
        return self.add_ends(self.rule(several if _flag(node, "at_least_one", place) else f"({several})?"), ends)


def one_of(texts: list[str]) -> str:
    """An expression for one of the literals."""
    return literal(texts[0]) if len(texts) == 1 else f"({' | '.join(literal(text) for text in texts)})"


def _is_free(node: Any) -> bool:
    """Whether the node's own end cannot be seen: free text, or a combination that ends with it."""
    if not isinstance(node, dict):
        return False
    kind, elements = node.get("type"), node.get("elements")
    if kind in ("any_text", "triggered_tags"):
        return True
    if not isinstance(elements, list) or not elements:
        return False
    return any(map(_is_free, elements)) if kind == "or" else kind == "sequence" and _is_free(elements[-1])


def _times(node: Node, place: str) -> str:
    kind = node["type"]
    if kind != "repeat":
        return {"optional": "?", "plus": "+", "star": "*"}[str(kind)]
    least, most = read_count(node.get("min"), f"{place}/min"), node.get("max")
    if most == -1:
        return f"{{{least},}}"
    most = read_count(most, f"{place}/max")
    if most < least or most > MAX_REPEAT:
        raise Refused(f"{place}/max", f"must be between min and {MAX_REPEAT}, or -1")
    return f"{{{least},{most}}}"


def _texts(node: Node, key: str, place: str) -> list[str]:
    found = node.get(key, [])
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise Refused(f"{place}/{key}", "must be a list of strings")
    return found


def _flag(node: Node, key: str, place: str) -> bool:
    found = node.get(key, False)
    if not isinstance(found, bool):
        raise Refused(f"{place}/{key}", "must be true or false")
    return found


_NODES: dict[str, Callable[[_Translator, Node, str, Ends, int], str]] = {
    "const_string": _Translator.const_string,
    "json_schema": _Translator.json_schema,
    "regex": _Translator.regex,
    "grammar": _Translator.grammar,
    "any_text": _Translator.any_text,
    "sequence": _Translator.sequence,
    "or": _Translator.alternatives,
    "optional": _Translator.repetition,
    "plus": _Translator.repetition,
    "star": _Translator.repetition,
    "repeat": _Translator.repetition,
    "tag": _Translator.tag,
    "triggered_tags": _Translator.triggered_tags,
    "tags_with_separator": _Translator.tags_with_separator,
}
