"""What is taken out of texts before they are stored: values at paths, and what detectors of secrets find."""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import Any, Literal, get_args

import orjson

from heddle.errors import InvalidRequest
from heddle.text_cache import cache_texts
from heddle.wire import jsontext

RedactionKind = Literal["email", "phone", "card", "key"]
KINDS: tuple[RedactionKind, ...] = get_args(RedactionKind)
PATH, TOKENS = "path", "tokens"
"""What values at paths, and tokens, are counted as."""
MOST_PATHS = 100
FIELDS = ("inputs", "output", "attributes", "summary", "payload", "val", "row")
"""What a path begins with: fields of calls, the payload of feedback, the value of an object, a row of a table."""

_LOCAL_PART = re.compile(r"[\w.%+'-]{1,64}\Z")
_AT_HOST = re.compile(r"@(?<=[\w.%+'-]@)(?:[A-Za-z0-9][A-Za-z0-9-]{0,62}\.){1,8}[A-Za-z]{2,24}(?![\w-])")
_PHONE = re.compile(
    r"[+(2-9](?<![\w.+/-].)(?:(?<=\+)[1-9]\d{0,2}[ .-]?(?:\(\d{1,4}\)[ .-]?)?\d{1,5}(?:[ .-]?\d{2,5}){1,4}"
    r"|(?<=\()\d{3}\)[ ]?\d{3}[ .-]\d{4}|(?<=[2-9])\d{2}([ .-])\d{3}\1\d{4})(?![\w-])(?!\.\d)"
)
_CARD = re.compile(
    r"[2-6](?<![\w.+-].)(?:(?<=3)[47]\d{2}[ -]?\d{6}[ -]?\d{5}|\d{3}(?:[ -]?\d{4}){2}[ -]?\d{1,7})(?![\w-])(?!\.\d)"
)
_NUMBER = re.compile(r"[+(2-9](?:(?<=[+(])\d[\d ().-]{6}|\d\d[ .-]\d{3}[ .-]\d{4}|(?:[ -]?\d){12})")
"""A part of every phone number and card. What begins with a set of characters is searched for quickly."""


def _sign_of(prefix: str) -> str:
    return next((sign for sign in "_-." if sign in prefix), "")


_PLAIN, _OPAQUE = "[A-Za-z0-9]{16,}", "[A-Za-z0-9_-]{20,}"
_BEHIND_PREFIX: dict[str, tuple[str, ...]] = {
    _OPAQUE: (
        "sk-", "xai-", "pplx-", "nvapi-", "csk-", "tvly-", "glpat-", "pypi-", "GOCSPX-", "PMAK-", "ya29.", "hvs.",
        "gsk_", "pcsk_", "github_pat_", "lsv2_pt_", "lsv2_sk_", "figd_", "dckr_pat_", "glsa_", "sbp_", "ntn_",
        "wandb_v1_",
    ),
    _PLAIN: (
        "sk_live_", "sk_test_", "rk_live_", "rk_test_", "pk_live_", "pk_test_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_",
        "hf_", "npm_", "r8_", "lin_api_", "shpat_", "shpss_", "rubygems_", "NRAK-",
    ),
    "[A-Za-z0-9+/=]{16,}": ("whsec_",),
    "[a-f0-9]{32}": ("dapi",),
    "[a-f0-9]{64}": ("dop_v1_", "heddle-"),
    "[A-Z0-9]{16}": ("AKIA", "ASIA"),
    "[A-Za-z0-9_-]{35}": ("AIza",),
    r"[a-z]?-[A-Za-z0-9-]{10,}": ("xox", "xapp"),
    r"[A-Za-z0-9_-]{16,200}\.[A-Za-z0-9_-]{16,}": ("SG.",),
    r"[A-Za-z0-9_-]{8,4000}\.eyJ[A-Za-z0-9_-]{8,20000}\.[A-Za-z0-9_-]{8,}": ("eyJ",),
    r"T[A-Z0-9]{6,60}/B[A-Z0-9]{6,60}/[A-Za-z0-9]{16,}": ("hooks.slack.com/services/",),
    r"[ ][A-Za-z0-9._~+/-]{20,}=*": ("Bearer", "bearer"),
}  # fmt: skip
"""What stands behind the beginnings of keys of known services."""
_TELEGRAM = re.compile(r"(?<![A-Za-z0-9])[0-9]{8,10}:AA[A-Za-z0-9_-]{33}")
_PREFIXES = {
    sign: {prefix: rest for rest, known in _BEHIND_PREFIX.items() for prefix in known if _sign_of(prefix) == sign}
    for sign in ("_", "-", ".", "")
}
"""Those beginnings by the sign in them: they are looked for only in texts that have it."""
_PEM_NAME = "PRIVATE KEY"
_PEM, _PEM_END = (re.compile(rf"-----{word} [A-Z ]{{0,60}}{_PEM_NAME}-----") for word in ("BEGIN", "END"))
_SECRET = (
    r"(?:(?:api|access|account|private|secret|signing|encryption)[_-]?key|secret|passphrase|passw(?:or)?d"
    r"|(?:access|auth|refresh|session)[_-]?token)"
)
_SECRET_NAME = re.compile(rf"(?i)(?:{_SECRET}|authorization)\Z")
"""Ends the names of members of objects whose texts are secrets, whatever they are."""
_LONGEST_NAME = 20
_ASSIGNED = re.compile(
    rf"""(?i)(?<![A-Za-z])((?:{_SECRET}|token|authorization(?=\W{{1,6}}(?:basic|bearer|token)\s))"""
    r"""\\?["']?\s{0,99}[:=]\s{0,99}\\?["']?(?:(?:basic|bearer|token)\s{1,99})?)"""
    r"""(?!\[redacted )([^\s"'\\,;&]{8,})"""
)
_URL = re.compile(r"(:(?:\\?/){2}[^\s/:@]{1,64}:)([^\s/@]{3,128})(?=@)")
_WORDS = ("key", "secret", "token", "passw", "passphrase", "authorization")
_BEHIND = re.compile(r"(?:(?:or)?d)?(?:\\[nrt]|[^a-z:=]){0,8}[:=]")
_SLICE, _MARGIN = 1 << 17, 1 << 15
"""Characters that are searched at once, as no other thread runs meanwhile, and those behind them that a match may need
to begin among them."""
_SHORTEST = 4
"""Characters of a text that can hold anything: a value at a path is taken out of other texts from these on."""
_IDS = ("prompt", "input", "prompt_token_ids", "token_ids")
"""Members that may be lists of token ids; the first two are, in requests to a model."""
_ID_LISTS = (re.compile(r'prompt\\*"\s*:\s*\[[\s\[]*\d'), re.compile(r'input\\*"\s*:\s*\[[\s\[]*\d'))
Replace = Callable[[str], tuple[str, int]]


def _is_card(digits: str) -> bool:
    """Luhn's check."""
    total = sum(
        int(digit) if place % 2 == 0 else sum(divmod(2 * int(digit), 10)) for place, digit in enumerate(digits[::-1])
    )
    return total % 10 == 0


def _search(pattern: re.Pattern[str], text: str, place: int = 0) -> re.Match[str] | None:
    """The first match from a place on; a long text is searched in slices."""
    while place + _SLICE + _MARGIN < len(text):
        edge = place + _SLICE
        found = pattern.search(text, place, edge + _MARGIN)
        if found is None or found.start() >= edge:
            place = edge
        elif whole := pattern.match(text, found.start()):
            return whole
        else:
            place = found.start() + 1
    return pattern.search(text, place)


def _replace(pattern: re.Pattern[str], text: str, marked: str | Callable[[re.Match[str]], str]) -> tuple[str, int]:
    """The text with a mark (a template, or made) in place of each match, and how many these are."""
    parts: list[str] = []
    end = 0
    while found := _search(pattern, text, end):
        parts += text[end : found.start()], found.expand(marked) if isinstance(marked, str) else marked(found)
        end = found.end()
    return ("".join((*parts, text[end:])), len(parts) // 2) if parts else (text, 0)


@cache_texts()
def _is_secret_name(name: str) -> bool:
    return _SECRET_NAME.search(name[-_LONGEST_NAME:]) is not None


def _marked(kind: str) -> str:
    return f"[redacted {kind}]"


def _only_if(pattern: re.Pattern[str], kind: str, is_one: Callable[[str], bool]) -> Replace:
    def replace(text: str) -> tuple[str, int]:
        count = 0

        def one(match: re.Match[str]) -> str:
            nonlocal count
            if not is_one(match[0]):
                return match[0]
            count += 1
            return _marked(kind)

        return _replace(pattern, text, one)[0], count

    return replace


_cards = _only_if(_CARD, "card", lambda found: _is_card(re.sub(r"\D", "", found)))
_phones = _only_if(_PHONE, "phone", lambda found: 8 <= sum(map(str.isdigit, found)) <= 15)


def _emails(text: str) -> tuple[str, int]:
    parts, end, place = [], 0, 0
    while host := _search(_AT_HOST, text, place):
        place = host.end()
        if local := _LOCAL_PART.search(text, max(end, host.start() - 64), host.start()):
            parts.append(text[end : local.start()])
            end = place
    return _marked("email").join((*parts, text[end:])), len(parts)


def _pems(text: str) -> tuple[str, int]:
    """A text without private keys; one that does not end takes the rest of the text."""
    parts, place = [], 0
    while begin := _search(_PEM, text, place):
        parts.append(text[place : begin.start()])
        end = _search(_PEM_END, text, begin.end())
        place = len(text) if end is None else end.end()
    return _marked("key").join((*parts, text[place:])), len(parts)


def _prefixes_in(text: str) -> Iterator[tuple[str, str]]:
    """The beginnings of known keys that stand in a text, each with what must come behind it."""
    for sign, known in _PREFIXES.items():
        if sign in text:
            for prefix, rest in known.items():
                if prefix in text:
                    yield prefix, rest


@cache
def _key_pattern(prefix: str, rest: str) -> re.Pattern[str]:
    """Keys with a beginning, which is searched for first: that is quick."""
    return re.compile(f"{re.escape(prefix)}(?<![A-Za-z0-9]{re.escape(prefix)}){rest}")


def _assigns(text: str) -> bool:
    """Whether something is given to what is called a key, secret, token or password."""
    folded = text.lower()
    for word in _WORDS:
        at = folded.find(word)
        while at >= 0:
            if _BEHIND.match(folded, at + len(word)):
                return True
            at = folded.find(word, at + 1)
    return False


_KEY_PATTERNS: tuple[tuple[re.Pattern[str], Callable[[str], bool], str], ...] = (
    (_TELEGRAM, lambda text: ":AA" in text, _marked("key")),
    (_ASSIGNED, _assigns, rf"\1{_marked('key')}"),
    (_URL, lambda text: "@" in text and ("://" in text or ":\\/" in text), rf"\1{_marked('key')}"),
)


def _keys(text: str) -> tuple[str, int]:
    found = 0
    for prefix, rest in _prefixes_in(text):
        text, count = _replace(_key_pattern(prefix, rest), text, _marked("key"))
        found += count
    if _PEM_NAME in text:
        text, count = _pems(text)
        found += count
    for pattern, is_possible, marked in _KEY_PATTERNS:
        if is_possible(text):
            text, count = _replace(pattern, text, marked)
            found += count
    return text, found


def _may_hold_key(text: str) -> bool:
    return (
        _PEM_NAME in text
        or any(True for _ in _prefixes_in(text))
        or any(is_possible(text) for _, is_possible, _ in _KEY_PATTERNS)
    )


_REPLACE: dict[str, Replace] = {
    "key": _keys,
    "email": _emails,
    "card": _cards,
    "phone": _phones,
}
"""In this order: what one detector leaves the next ones look at."""


_LOOKS: tuple[tuple[Callable[[str], bool], tuple[str, ...]], ...] = (
    (lambda text: len(text) > 8 and _may_hold_key(text), ("key",)),
    (lambda text: "@" in text, ("email",)),
    (lambda text: _search(_NUMBER, text) is not None, ("card", "phone")),
)


def _find_possible(kinds: Collection[str], text: str) -> list[str]:
    """Those of the kinds that may be in a text, also in JSON, after a fast look; in the order of `_REPLACE`."""
    return [
        kind
        for may_hold, looked_for in _LOOKS
        if any(kind in kinds for kind in looked_for) and may_hold(text)
        for kind in looked_for
        if kind in kinds
    ]


def _may_hold_tokens(text: str) -> bool:
    """A fast look whether a JSON text can hold sampled tokens or token ids."""
    return "logprob" in text or "token_ids" in text or any(pattern.search(text) for pattern in _ID_LISTS)


def _has_ids(value: Any) -> bool:
    while isinstance(value, list) and value:
        value = value[0]
    return isinstance(value, int) and not isinstance(value, bool)


def _read_tokens(entries: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """What tokens with log-probabilities say together, as text and as bytes; nothing where one has only an id."""
    names, said = [], bytearray()
    for entry in entries:
        token, data = str(entry["token"]), entry.get("bytes")
        try:
            part = bytes(data) if isinstance(data, list) else token.encode()
        except (TypeError, ValueError):
            return ()
        if part.startswith(b"token_id:"):
            return ()
        names.append(token)
        said += part
    return "".join(names), said.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class RedactionRules:
    """Which detectors look at what a project is sent, and the paths of values that are taken out."""

    kinds: Sequence[str] = ()
    paths: Sequence[str] = ()

    @classmethod
    def of_json(cls, found: Any) -> "RedactionRules":
        """Rules as they are stored; raises InvalidRequest where they are none."""
        if not isinstance(found, dict) or found.keys() != {"kinds", "paths"}:
            raise InvalidRequest("Redaction rules must be an object with the fields kinds and paths")
        if not all(isinstance(part, list) and all(isinstance(item, str) for item in part) for part in found.values()):
            raise InvalidRequest("The kinds and paths of redaction rules must be lists of strings")
        rules = cls(tuple(found["kinds"]), tuple(found["paths"]))
        rules.check()
        return rules

    def check(self) -> None:
        """Raise InvalidRequest for a rule that is none."""
        if unknown := set(self.kinds) - set(KINDS):
            raise InvalidRequest(
                f"Unknown kind {min(unknown)[:200]!r}; expected one of {', '.join(KINDS)}", param="kinds"
            )
        if len(self.paths) > MOST_PATHS:
            raise InvalidRequest(f"At most {MOST_PATHS} paths are allowed, got {len(self.paths)}", param="paths")
        for path in self.paths:
            first, _, rest = path.partition(".")
            if first not in FIELDS or not rest or not all(rest.split(".")):
                known = ", ".join(FIELDS)
                raise InvalidRequest(
                    f"Invalid path {path[:200]!r}; expected one such as inputs.user.name, starting with one of {known}"
                )


@dataclass(slots=True)
class Redactor:
    """Takes out what the rules of one project say; `found` counts it by kind. For one request."""

    rules: RedactionRules
    found: Counter[str] = field(default_factory=Counter)
    taken: set[str] = field(default_factory=set)
    """The texts that stood at paths: they are taken out of the dumps of spans, too."""
    _longest_first: list[str] = field(default_factory=list)

    def text(self, text: str, kinds: Collection[str] | None = None) -> str:
        """A text without what detectors (those of the rules, or these) find; JSON in it without tokens that say it."""
        if len(text) < _SHORTEST:
            return text
        if text[0] in "{[" and _may_hold_tokens(text):
            text = self._packed(text)
        for kind in _find_possible(self.rules.kinds if kinds is None else kinds, text):
            text, count = _REPLACE[kind](text)
            if count:
                self.found[kind] += count
        return self._without_taken(text) if self.taken else text

    def _without_taken(self, text: str) -> str:
        if text in self.taken:
            return _marked(PATH)
        if len(self._longest_first) != len(self.taken):
            self._longest_first = sorted(self.taken, key=len, reverse=True)
        # A short one may be a part of a longer one, the rest of which would stay.
        first = bisect_left(self._longest_first, -len(text), key=lambda taken: -len(taken))
        for taken in islice(self._longest_first, first, None):
            text = text.replace(taken, _marked(PATH))
        return text

    def json(self, text: str, name: str) -> str:
        """A JSON text, a field of that name, without what the rules say; the same text where that is nothing."""
        kinds = _find_possible(self.rules.kinds, text)
        paths = [path.split(".")[1:] for path in self.rules.paths if path.partition(".")[0] == name]
        if not (kinds or paths or (self.taken and name == "otel_dump") or _may_hold_tokens(text)):
            return text
        value = orjson.loads(text)
        changed = self.value(value, kinds)
        for path in paths:
            changed = self._take(changed, path)
        return text if changed == value else jsontext.dumps(changed)

    def row(self, row: Mapping[str, Any], values: Iterable[str], texts: Iterable[str] = ()) -> dict[str, Any]:
        """A row without what the rules say of its columns: `values` hold JSON texts, `texts` plain ones, or nothing."""
        changed = {name: self.json(row[name], name) for name in values if row.get(name)}
        return {**row, **changed, **{name: self.text(row[name]) for name in texts if row.get(name)}}

    def content(self, content: bytes) -> bytes:
        """The content of a file, where it is text, without what detectors find."""
        try:
            text = content.decode()
        except UnicodeDecodeError:
            return content
        return self.text(text).encode()

    def value(self, value: Any, kinds: Collection[str] | None = None) -> Any:
        """A JSON value without what detectors (those of the rules, or these) find in its texts."""
        if isinstance(value, str):
            return self.text(value, kinds)
        if isinstance(value, dict):
            changed = {self.text(key, kinds): self._member(key, item, kinds) for key, item in value.items()}
            return self._without_ids(changed)
        if isinstance(value, list):
            is_sampled = value and all(isinstance(item, dict) and item.keys() >= {"token", "logprob"} for item in value)
            if is_sampled and not self._is_clean(*_read_tokens(value)):
                return None
            return [self.value(item, kinds) for item in value]
        return value

    def _packed(self, text: str) -> str:
        """JSON as a text, or lines of it, without tokens that say what detectors find."""
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            lines = text.split("\n")
            return text if len(lines) == 1 else "\n".join(map(self.text, lines))
        changed = self.value(value)
        return text if changed == value else jsontext.dumps(changed)

    def _is_clean(self, *said: str) -> bool:
        """Whether it is known what tokens say, and nothing of it is taken out."""
        other = Redactor(self.rules, taken=self.taken)
        if said and all(other.text(text) == text for text in said):
            return True
        self.found[TOKENS] += 1
        return False

    def _without_ids(self, value: dict[str, Any]) -> dict[str, Any]:
        """An object without ids of tokens, unless the same tokens stand beside them as text."""
        texts, sampled = value.get("tokens"), value.get("logprobs")
        if "token_logprobs" in value and isinstance(texts, list) and not self._is_clean("".join(map(str, texts))):
            value["tokens"] = value["top_logprobs"] = None
        lists = [sampled.get(name) for name in ("content", "refusal", "tokens")] if isinstance(sampled, dict) else []
        for name in _IDS if "model" in value else _IDS[2:]:
            if isinstance(ids := value.get(name), list) and _has_ids(ids):
                beside = name == "token_ids" and any(isinstance(one, list) and len(one) == len(ids) for one in lists)
                if not beside:
                    value[name] = None
                    self.found[TOKENS] += 1
        return value

    def _member(self, name: str, value: Any, kinds: Collection[str] | None) -> Any:
        if "key" in (self.rules.kinds if kinds is None else kinds) and _is_secret_name(name):
            return self._without_texts(value)
        return self.value(value, kinds)

    def _without_texts(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._without_texts(item) for item in value]
        if not isinstance(value, str) or not value:
            return self.value(value)
        self.found["key"] += 1
        return _marked("key")

    def _take(self, value: Any, path: list[str]) -> Any:
        """The value without what stands at a path; `*` is any member or item, and names may hold dots."""
        if not path:
            self._note(value)
            self.found[PATH] += 1
            return _marked(PATH)
        if isinstance(value, list):
            if path[0] == "*":
                return [self._take(item, path[1:]) for item in value]
            return [self._take(item, path) for item in value]
        if not isinstance(value, dict):
            return value
        changed = dict(value)
        for key in value:
            for length in range(1, len(path) + 1):
                if (path[0] == "*" and length == 1) or ".".join(path[:length]) == key:
                    changed[key] = self._take(changed[key], path[length:])
                    break
        return changed

    def _note(self, value: Any) -> None:
        if isinstance(value, str):
            if len(value) >= _SHORTEST:
                self.taken.add(value)
        elif isinstance(value, dict):
            for item in value.values():
                self._note(item)
        elif isinstance(value, list):
            for item in value:
                self._note(item)
