"""The parts of a message: blocks of any library in the form of the OpenTelemetry GenAI conventions.

`{"type": "text", "content"}`, `reasoning` and `refusal` alike; `{"type": "tool_call", "id", "name", "arguments"}`;
`{"type": "tool_call_response", "id", "response"}`. Blocks of other types stay as they were written; `media` reads those
that hold a picture, a sound or a file.
"""

from collections.abc import Collection, Iterable
from typing import Any

import orjson

from heddle.wire import jsontext
from heddle.wire.jsontypes import Json

MAX_DEPTH = 100
"""JSON text that is nested deeper stays text."""
_FIRST = ("{", "[", '"')


def parse_json(value: Any) -> Any:
    """The value of a JSON text that holds an object, a list or a quoted text; everything else as it is."""
    if not isinstance(value, str) or value[:1] not in _FIRST:
        return value
    try:
        found = orjson.loads(value)
    except orjson.JSONDecodeError:
        return value
    if value.count("[") + value.count("{") > MAX_DEPTH and jsontext.depth(found) > MAX_DEPTH:
        return value
    return found


def arguments_of(value: Any) -> Any:
    """What a function was called with, out of the record of decorators, `{"args": […], "kwargs": {…}}`.

    A single argument without a name stands for itself; records of both kinds and all other values stay as they are.
    """
    if not isinstance(value, dict) or value.keys() != {"args", "kwargs"}:
        return value
    given, named = value["args"], value["kwargs"]
    if not isinstance(given, list) or not isinstance(named, dict) or (given and named):
        return value
    return given[0] if len(given) == 1 else given or named


def as_object(value: Any) -> Json:
    """An object, also out of its JSON text; empty for anything else."""
    found = parse_json(value)
    return found if isinstance(found, dict) else {}


def as_list(value: Any) -> list[Any]:
    """A list, also out of its JSON text; empty for anything else."""
    found = parse_json(value)
    return found if isinstance(found, list) else []


def as_text(value: Any) -> str:
    """A text as it is, anything else as JSON text."""
    if isinstance(value, str):
        return value
    try:
        return orjson.dumps(value, default=str).decode()
    except orjson.JSONEncodeError:
        return jsontext.dumps(value)


def objects(value: Any) -> list[Json]:
    """The objects of a list; empty for anything else."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def first_of(holder: Json, names: Collection[str]) -> Any:
    """The value of the first of these keys that holds any; None without one."""
    return next((holder[name] for name in names if holder.get(name) is not None), None)


TEXTS = ("text", "input_text", "output_text")
THOUGHTS = ("reasoning", "thinking", "redacted_thinking")
CALLS = ("tool_call", "tool_use", "tool-call", "function_call", "server_tool_use", "functionCall")
RESULTS = (
    *("tool_call_response", "tool_result", "tool-result", "function_call_output", "tool-error"),
    *("function_response", "functionResponse"),
)
_ONLY_KEY = frozenset(("text", "toolUse", "toolResult", "reasoningContent", "image", "document", "video"))
"""Keys of blocks without a type: those of Amazon's Converse API."""
_CALL_IDS = ("call_id", "id", "toolCallId", "toolUseId")
_RESULT_IDS = ("tool_use_id", "call_id", "id", "toolCallId", "toolUseId")
_ARGUMENTS = ("arguments", "input", "args")
_RESPONSES = ("response", "result", "output", "content")
_GOOGLE_CALLS = ("function_call", "functionCall")
_GOOGLE_RESULTS = ("function_response", "functionResponse")


def text_part(content: str) -> Json:
    """Plain text."""
    return {"type": "text", "content": content}


def reasoning_part(content: str) -> Json:
    """What the model thought."""
    return {"type": "reasoning", "content": content}


def refusal_part(content: str) -> Json:
    """What the model said instead of an answer."""
    return {"type": "refusal", "content": content}


def call_part(call_id: Any, name: Any, arguments: Any) -> Json:
    """A tool that the model wants called."""
    part = {"type": "tool_call", "id": call_id, "name": name, "arguments": parse_json(arguments)}
    return {key: value for key, value in part.items() if value is not None}


def result_part(call_id: Any, response: Any) -> Json:
    """What a tool answered, as it was written."""
    part = {"type": "tool_call_response", "id": call_id, "response": response}
    return {key: value for key, value in part.items() if value is not None}


def named_result(part: Json, holder: Json) -> Json:
    """The part, with the tool's name where no id tells which call it answers."""
    name = holder.get("name")
    return part if "id" in part or not isinstance(name, str) or not name else {**part, "name": name}


def call_of(call: Json) -> Json:
    """An entry of `tool_calls`, of any library."""
    function = call.get("function")
    inner = function if isinstance(function, dict) else call
    return call_part(_id(call, _CALL_IDS), inner.get("name") or inner.get("toolName"), _held(inner, _ARGUMENTS))


def parts_of(content: Any) -> list[Json]:
    """The content of a message, whatever it is, as parts."""
    content = blocks_of(content)
    if content is None or content == "" or content == []:
        return []
    if isinstance(content, dict):
        content = [content]
    if not isinstance(content, list):
        return [text_part(as_text(content))]
    return [
        part_of(block) if isinstance(block, dict) else text_part(as_text(block))
        for block in content
        if block not in (None, "")
    ]


def blocks_of(content: Any) -> Any:
    """A list of blocks that came as JSON text; anything else as it is.

    A text may be the JSON of a list of blocks (OpenLLMetry writes Anthropic's contents so), or an answer in JSON.
    """
    if isinstance(content, str) and content[:2] == "[{":
        found = parse_json(content)
        if isinstance(found, list) and all(isinstance(block, dict) and is_block(block) for block in found):
            return found
    return content


def is_block(block: Json) -> bool:
    """True for what stands in a list of blocks, by its type or its only key."""
    return "type" in block or (len(block) == 1 and not _ONLY_KEY.isdisjoint(block))


def has_results(content: list[Any]) -> bool:
    """True when some of the blocks are what tools answered."""
    return any(
        block.get("type") in RESULTS or "toolResult" in block or any(key in block for key in _GOOGLE_RESULTS)
        for block in objects(content)
    )


def part_of(block: Json) -> Json:
    """One block of any library as a part; one whose type is no text is a text itself."""
    told = block.get("type")
    if not isinstance(told, str | None):
        return text_part(as_text(block))
    kind = told or str(block.get("kind") or "")
    if not kind:
        return _untyped(block)
    if kind in TEXTS:
        said = as_text(block.get("content", block.get("text", "")))
        return reasoning_part(said) if block.get("thought") is True else text_part(said)
    if kind in THOUGHTS:
        return reasoning_part(_thought(block))
    if kind in CALLS:
        return _tool_call(block)
    if kind in RESULTS:
        return _tool_result(block)
    if kind == "function" and isinstance(block.get("function"), dict):
        # Langtrace has the entries of `tool_calls` for content.
        return call_of(block)
    if kind == "refusal":
        return refusal_part(as_text(block.get("refusal", block.get("content", ""))))
    return block


def _untyped(block: Json) -> Json:
    """A block of Amazon's Converse API, of Google's or of LlamaIndex, whose keys say what it is."""
    if isinstance(call := first_of(block, ("toolUse", *_GOOGLE_CALLS)), dict):
        return _tool_call(call)
    if "tool_name" in block and "tool_kwargs" in block:
        return call_part(block.get("tool_call_id"), block["tool_name"], block["tool_kwargs"])
    if isinstance(came := block.get("toolResult"), dict):
        return result_part(came.get("toolUseId"), came.get("content"))
    if isinstance(came := first_of(block, _GOOGLE_RESULTS), dict):
        return named_result(_tool_result(came), came)
    if isinstance(thought := block.get("reasoningContent"), dict):
        told = thought.get("reasoningText")
        return reasoning_part(as_text(told.get("text", "") if isinstance(told, dict) else thought))
    if "text" in block:
        said = as_text(block["text"])
        return reasoning_part(said) if block.get("thought") is True else text_part(said)
    return block


def _tool_call(block: Json) -> Json:
    inner = first_of(block, _GOOGLE_CALLS)
    if isinstance(inner, dict):
        return _tool_call({**inner, "id": _id(block, _CALL_IDS) or inner.get("id")})
    return call_part(_id(block, _CALL_IDS), block.get("name") or block.get("toolName"), _held(block, _ARGUMENTS))


def _tool_result(block: Json) -> Json:
    call_id = _id(block, _RESULT_IDS)
    response = _held(block, _RESPONSES)
    if isinstance(response, dict) and set(response) == {"type", "value"}:
        response = response["value"]  # the Vercel AI SDK says of its results whether they are text or JSON
    return result_part(call_id, response)


def _id(block: Json, names: Iterable[str]) -> Any:
    return next((block[name] for name in names if block.get(name)), None)


def _held(holder: Json, names: Iterable[str]) -> Any:
    return next((holder[name] for name in names if name in holder), None)


def _thought(block: Json) -> str:
    content = next(
        (block[key] for key in ("content", "thinking", "text", "summary", "reasoning") if block.get(key)), ""
    )
    content = blocks_of(content)
    if isinstance(content, list):
        return "\n".join(as_text(item.get("text", item)) for item in objects(content))
    return as_text(content)


_MEDIA = {
    **dict.fromkeys(("image_url", "input_image", "image"), "image"),
    **dict.fromkeys(("input_audio", "audio"), "audio"),
    **dict.fromkeys(("video",), "video"),
    **dict.fromkeys(("blob", "uri", "file", "input_file", "document", "media"), ""),
}
_MEDIA_KEYS = ("inlineData", "inline_data", "fileData", "file_data", "image", "document", "video")
_SOURCES = (
    *("image_url", "source", "image", "input_audio", "audio", "video", "document", "data", "bytes", "url", "uri"),
    *("fileUri", "file_uri", "file_data", "file", "content", "blob"),
)
_TYPES = ("mime_type", "mimeType", "media_type", "mediaType", "mediatype")
_NAMES = ("filename", "file_id", "name")
_ADDRESSES = ("data:", "http://", "https://", "blob:", "gs://", "s3://", "file:")
_STORED = "CustomWeaveType"
_EXTENSIONS = {
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".gif", ".webp"), "image"),
    **dict.fromkeys((".wav", ".mp3", ".ogg", ".flac"), "audio"),
}
_MAX_LEVELS = 5


def media(block: Json) -> Json | None:
    """The part of a block that holds a picture, a sound or a file; None for any other block.

    `uri` has an address, `blob` base64 text, `file` the name of a file elsewhere or the digests of a stored one.
    """
    kind = block.get("type")
    modality = _MEDIA.get(kind) if isinstance(kind, str) else None
    if stored := _stored(block):
        return stored
    if kind is None:
        key = next((key for key in _MEDIA_KEYS if isinstance(block.get(key), dict)), None)
        if key is None:
            return None
        block, modality = block[key], key if key in ("image", "video") else ""
    if modality is None:
        return None
    found = _source(block, _MAX_LEVELS)
    told = block.get("modality") or modality or str(found.get("mime_type", "")).partition("/")[0]
    found["modality"] = told if told in ("image", "audio", "video") else "file"
    return found


def transcript(block: Json) -> str:
    """What is said in a sound, where the block tells; else empty."""
    inner = as_object(block.get("audio") or block.get("input_audio"))
    said = first_of(block, ("transcript",)) or inner.get("transcript")
    return said if isinstance(said, str) else ""


def _stored(value: Any) -> Json | None:
    """The part of a file that an SDK or the server stored."""
    if not isinstance(value, dict) or value.get("_type") != _STORED or not isinstance(value.get("files"), dict):
        return None
    name = as_object(value.get("weave_type")).get("type")
    told = " ".join([*map(str, value["files"]), str(name)]).lower()
    kinds = (kind for ending, kind in _EXTENSIONS.items() if ending in told)
    modality = next(kinds, "image" if "pil.image" in told else "audio" if "audio" in told else "file")
    return {"type": "file", "modality": modality, "files": value["files"], "name": str(name or "")}


def _source(raw: Json, levels: int) -> Json:
    """Where the bytes are."""
    value = first_of(raw, _SOURCES)
    named = first_of(raw, _TYPES)
    mime = {"mime_type": named} if isinstance(named, str) else {}
    if stored := _stored(value):
        return {**stored, **mime}
    if isinstance(value, dict) and levels:
        return {**mime, **_source({**value, **({"format": raw["format"]} if "format" in raw else {})}, levels - 1)}
    if not isinstance(value, str) or not value:
        name = first_of(raw, _NAMES)
        return {"type": "file", "name": name if isinstance(name, str) else "", **mime}
    if value.startswith(_ADDRESSES):
        return {"type": "uri", "uri": value, **mime}
    form = raw.get("format")
    if isinstance(form, str) and form and not mime:
        mime = {"mime_type": f"{'image' if form in ('png', 'jpeg', 'jpg', 'gif', 'webp') else 'audio'}/{form}"}
    return {"type": "blob", "content": value, **mime}
