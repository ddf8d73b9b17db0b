"""What people read of a call: its name, cost and failure; and what failures have in common."""

import hashlib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from heddle.wire import jsontext
from heddle.wire.refs import operation_name

Call = Mapping[str, Any]
_COSTS = (
    "prompt_tokens_total_cost",
    "completion_tokens_total_cost",
    "cache_read_input_tokens_total_cost",
    "cache_creation_input_tokens_total_cost",
)
NO_MODEL = "usage"
"""The entry of `summary.usage` for a span that names no model."""


def name_of(call: Call) -> str:
    """The name that the call is shown under."""
    weave = call["summary"].get("weave") or {}
    return str(call.get("display_name") or weave.get("trace_name") or operation_name(call["op_name"]))


def cost_of(costs: Mapping[str, Mapping[str, Any]] | None) -> float | None:
    """US dollars of `summary.weave.costs`, all models together; None where none has a price."""
    found = [entry.get(name) for entry in (costs or {}).values() for name in _COSTS]
    return sum(value for value in found if value is not None) if costs else None


def problem_of(exception: str) -> str:
    """The message of an exception; SDKs send it as JSON text or as a traceback whose last line says what happened."""
    try:
        body = jsontext.loads_text(exception) if exception.lstrip()[:1] == "{" else None
    except ValueError:
        body = None
    if body is None:
        lines = exception.strip().splitlines()
        return lines[-1] if lines and lines[0].startswith("Traceback") else exception
    if not isinstance(body, dict) or "message" not in body:
        return exception
    return f"{body['type']}: {body['message']}" if body.get("type") else str(body["message"])


_MOST_TEXT = 100_000
_MOST_MESSAGE = 2000
_PYTHON_FRAME = re.compile(r'^[ \t]*File "([^"\n]{1,1000})", line \d+(?:, in (.{1,200}))?$', re.MULTILINE)
_OTHER_FRAME = re.compile(r"^[ \t]+at (.{1,1000})$", re.MULTILINE)
_PLACE = re.compile(r"(.*?)\s*\((.*?)[:\d)]*$")
_TYPED = re.compile(r"((?:[A-Za-z_$][\w$]*\.)*([A-Z][\w$]*)): ?(.*)", re.DOTALL)
_BARE = re.compile(r"(?:[A-Za-z_$][\w$]*\.)*([A-Z][\w$]*(?:Error|Exception|Interrupt|Exit|Warning|Iteration))")
_DAYS = "(?:mon|tue|wed|thu|fri|sat|sun)[a-z]{0,6}"
_MONTHS = "(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{0,6}"
_CLOCK = r"\d\d?:\d\d(?::\d\d(?:[.,]\d+)?)?"
_UNITS = "[nuµm]?s|secs?|min|[hdm%]|[KMGTkmgt]?i?[bB]"
_REPLACED = tuple(
    (re.compile(pattern), f"<{name}>")
    for name, pattern in (
        ("url", r"\b[a-zA-Z][a-zA-Z0-9+.-]{1,20}://[^\s'\"<>)\]},]+"),
        ("email", r"[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64}){0,8}"),
        ("id", r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"),
        ("ip", r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?(?![\w.]*\d)"),
        ("time", rf"\b\d{{4}}-\d\d?-\d\d?(?:[T ]{_CLOCK}(?: ?(?:Z|UTC|GMT|[+-]\d\d:?\d\d))?)?(?!\w)"),
        ("time", rf"(?<![\w:]){_CLOCK}(?: ?[AaPp]\.?[Mm]\b\.?)?(?![\w:])"),
        ("date", rf"(?i)\b(?:{_DAYS},? )?(?:\d{{1,2}} {_MONTHS}|{_MONTHS} \d{{1,2}})(?:,? \d{{4}})?\b"),
        ("ip", r"(?<![\w:])(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4}(?![\w:])"),
        ("value", r"(?<!\w)'[^'\n]{0,500}'(?!\w)|\"[^\"\n]{0,500}\"|`[^`\n]{0,500}`|“[^”\n]{0,500}”|«[^»\n]{0,500}»"),
        ("path", r"(?<![\w<./\\])(?:~|\.{1,2}|[A-Za-z]:)?(?:[/\\][\w.@+%=~-]+)+[/\\]?"),
        ("path", r"(?<![\w./\\-])[\w.-]{1,100}(?:[/\\][\w.@+%=~-]{1,100})+\.[A-Za-z]\w{0,7}\b"),
        ("id", r"\b0[xX][0-9a-fA-F]+\b|\b[a-f]{12,}\b"),
        ("n", rf"(?<![\w.])[-+]?\d+(?:[.,_]\d+)*(?:[eE][-+]?\d+)?(?=(?:{_UNITS})?(?!\w))"),
    )
)
_WORD = re.compile(r"(?<![A-Za-z0-9])[A-Za-z]*\d[A-Za-z0-9]*")
_TURNS = re.compile(r"\d+|[A-Za-z]+")
_DIGITS = re.compile(r"\d+(?:[.,]\d+)*")
_LONG_WORD, _LONG_HEX = 8, 6
_HEX = re.compile(r"[0-9a-fA-F]+")
_BACKSLASH = "\\"
_REPEATED = re.compile(r"(<\w+>)(?:(?:, ?|; ?|:? )\1)+")


class CallError(NamedTuple):
    """Why a call failed; parts that the exception does not tell are empty."""

    type: str
    message: str
    frame: str

    @property
    def template(self) -> str:
        """The message without what differs from call to call."""
        return normalise(self.message)

    @property
    def group(self) -> str:
        """The value of the field `error_group`: the same for alike errors of the same place."""
        parts = (self.type, self.template, normalise(self.frame))
        return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()[:16]


def read_error(exception: str) -> CallError:
    """Type, message and innermost frame: SDKs send JSON with a traceback, spans a head line and a stack trace."""
    text = exception[:_MOST_TEXT].strip()
    if text.startswith("{") and (told := _read_json(exception)) is not None:
        return told
    frames = [*_PYTHON_FRAME.finditer(text)]
    if frames:
        last = frames[-1]
        ending = text[last.end() :].split("\n")
        # The source line and its marks are indented, the exception is not.
        start = next((place for place, line in enumerate(ending) if line and not line[0].isspace()), None)
        head = "\n".join(ending[start:]) if start is not None else text[: frames[0].start()].split("\nTraceback")[0]
        return CallError(*_split(head), _frame(last[1], last[2] or ""))
    other = _OTHER_FRAME.search(text)
    if other is not None:
        found = _PLACE.match(other[1])
        name, file = (found[1], found[2]) if found else ("", re.sub(r"[:\d]*$", "", other[1]))
        return CallError(*_split(text[: other.start()]), _frame(file, name))
    lines = text.split("\n")
    if lines[0].startswith("Traceback"):
        return CallError(*_split(lines[-1]), "")
    return CallError(*_split(text), "")


def _read_json(text: str) -> CallError | None:
    try:
        body = jsontext.loads_text(text)
    except ValueError:
        return None
    if not isinstance(body, dict) or "message" not in body:
        return None
    kind = str(body.get("type") or body.get("name") or "")
    frames = body.get("traceback")
    last = frames[-1] if isinstance(frames, list) and frames else None
    frame = ""
    if isinstance(last, dict):
        frame = _frame(str(last.get("filename") or ""), str(last.get("function_name") or ""))
    elif isinstance(stack := body.get("stack"), str):
        frame = read_error(stack).frame
    return CallError(kind.rpartition(".")[2], str(body["message"]), frame)


def _frame(file: str, function: str) -> str:
    """The file without its folder, and the function: lines and folders differ between versions and machines."""
    return f"{file.replace(_BACKSLASH, '/').rpartition('/')[2]}:{function.strip()}"


def _split(text: str) -> tuple[str, str]:
    """Type and message of `Type: message`."""
    text = text.strip()
    if found := _TYPED.fullmatch(text):
        return found[2], found[3]
    found = _BARE.fullmatch(text)
    return (found[1], "") if found else ("", text)


def normalise(message: str) -> str:
    """The message with `<n>`, `<id>`, `<value>` and so on for numbers, ids, quoted values, paths, times, addresses."""
    text = " ".join(message[:_MOST_MESSAGE].split())
    for pattern, name in _REPLACED:
        text = pattern.sub(name, text)
    return _REPEATED.sub(r"\1", _WORD.sub(_replace_word, text))


def _replace_word(found: re.Match[str]) -> str:
    """A word with digits: an id where it is long or mixed, else its digits as `<n>`."""
    word = found[0]
    turns = len(_TURNS.findall(word))
    if turns > 2 or (turns == 2 and len(word) >= (_LONG_HEX if _HEX.fullmatch(word) else _LONG_WORD)):
        return "<id>"
    return _DIGITS.sub("<n>", word)
