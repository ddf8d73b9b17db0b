"""The tokenizer of a model folder: `tokenizer.json` and the settings beside it. No torch, no transformers."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heddle.errors import ExtraMissing, Unavailable
from heddle.extras import install_command
from heddle.inference.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer, read_rule

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend


DEFAULT_TEMPLATE = "default"
_USUAL_CHARS = 8
_CHARS_AT_ONCE = 1 << 18
"""Reading one takes up to 300 bytes."""
_AT_THE_CUT = 64
"""A word that is cut may have more tokens than the whole."""
_PROBE = 'Ab, cd!  "x" 1.5\n\tü 你好 \U0001f642 end'


class Tokenizer:
    """Text to ids and back, special tokens, and the chat templates of one model."""

    def __init__(self, backend: Backend, special_tokens: dict[str, str], chat_templates: dict[str, str]) -> None:
        """`special_tokens` maps names such as `bos_token` to texts; prefer `load`."""
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.special_tokens = special_tokens
        self.chat_templates = chat_templates
        vocabulary = backend.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        """One more than the greatest id."""
        self.longest_token = max(map(len, vocabulary), default=1)
        """Characters; a text of more than n times as many has more than n tokens."""
        added = backend.get_added_tokens_decoder()
        self.added_tokens = {token_id: token.content for token_id, token in added.items()}
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._bytes: dict[int, bytes] = {}
        decoder = backend.decoder
        self._rule = read_rule(json.loads(decoder.__getstate__()) if decoder is not None else None)
        ids = self.encode(_PROBE)
        if self.decode(ids, skip_special_tokens=False) != self._decode_plainly(ids):
            self._rule = None

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Read a Hugging Face model folder; Unavailable when it has no usable `tokenizer.json`."""
        try:
            from tokenizers import Tokenizer as Backend
        except ImportError as error:
            raise ExtraMissing(f"inference is not installed: {install_command('inference')}") from error
        # One text at a time is read; and parallelism would warn about every process that is started later.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise Unavailable(f"the model folder {folder.name} has no tokenizer.json")
        try:
            backend = Backend.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise Unavailable(f"the tokenizer.json of {folder.name} cannot be read: {error}") from error
        config = read_json(folder / "tokenizer_config.json")
        special_tokens: dict[str, str] = {}
        for name, value in (read_json(folder / "special_tokens_map.json") | config).items():
            text = value.get("content") if isinstance(value, dict) else value
            if name.endswith("_token") and isinstance(text, str):
                special_tokens[name] = text
        return cls(backend, special_tokens, _chat_templates(folder, config))

    def token_id(self, text: str) -> int | None:
        """The id of one vocabulary entry."""
        found: int | None = self.backend.token_to_id(text)
        return found

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Ids of a text; special tokens written in it are read as such. Other threads go on meanwhile."""
        # `encode` would keep them waiting, and finds out offsets that nobody needs.
        [encoded] = self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return list(encoded.ids)

    def exceeds(self, text: str, tokens: int) -> bool:
        """True when a text shows that it has more tokens, of which no more is read, and only a part at once."""
        if len(text) > tokens * self.longest_token:
            return True
        if len(text) <= min(tokens * _USUAL_CHARS, 4 * _CHARS_AT_ONCE):
            return False  # to read all of it costs no more
        found = 0
        for start in range(0, min(len(text), tokens * _USUAL_CHARS), _CHARS_AT_ONCE):
            found += len(self.encode(text[start : start + _CHARS_AT_ONCE])) - _AT_THE_CUT
            if found > tokens:
                return True
        return False

    def decode(
        self, ids: Sequence[int], skip_special_tokens: bool = True, spaces_between_special_tokens: bool = True
    ) -> str:
        """The text of a whole sequence; equal to what a detokenizer shows piece by piece."""
        detokenizer = self.detokenizer(skip_special_tokens, spaces_between_special_tokens)
        return detokenizer.push(ids) + detokenizer.flush()

    def token_text(self, token_id: int) -> str:
        """One token as it is shown beside a logprob; U+FFFD where it holds a part of a character."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes that the token adds in the middle of a text; none for an id outside the vocabulary."""
        if token_id in self.added_tokens:
            return self.added_tokens[token_id].encode("utf-8", "replace")
        if self._rule is not None:
            return self._bytes_by_rule(token_id)
        return self._decode_plainly([token_id]).encode("utf-8", "replace")

    def piece(self, token_id: int) -> str | None:
        """The vocabulary entry of an id, as the vocabulary spells it."""
        found: str | None = self.backend.id_to_token(token_id)
        return found

    def bad_word_ids(self, word: str) -> list[tuple[int, ...]]:
        """The sequences that a bad word is: as it is, and with a space before it when that is another first token."""
        plain = tuple(self.encode(word.lstrip() or word))
        spaced = tuple(self.encode(" " + word.lstrip()))
        if not plain:
            return []
        if spaced and spaced[0] != plain[0] and len(spaced) == len(plain):
            return [plain, spaced]
        return [plain]

    def detokenizer(
        self,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
        before: Sequence[int] = (),
        keep: frozenset[int] = frozenset(),
    ) -> Detokenizer:
        """A detokenizer for one sequence.

        `before`: last ids of a text that goes on (its first space is kept then); `keep`: special tokens that are shown
        in any case, such as the marks of tool calls.
        """
        skip = self.special_ids - keep if skip_special_tokens else frozenset()
        if self._rule is not None:
            return ByteDetokenizer(self.piece, self._bytes_by_rule, self._rule, skip, at_start=not before)
        raw = {} if skip_special_tokens or spaces_between_special_tokens else self.added_tokens
        return WindowDetokenizer(self._decode_plainly, skip, raw, before[-4:])

    def _bytes_by_rule(self, token_id: int) -> bytes:
        known = self._bytes.get(token_id)
        if known is None:
            piece = self.piece(token_id)
            known = self._rule.bytes_of(piece) if self._rule is not None and piece is not None else b""
            self._bytes[token_id] = known
        return known

    def _decode_plainly(self, ids: list[int]) -> str:
        return self.backend.decode(ids, skip_special_tokens=False)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, {} where there is no file; raises Unavailable when it cannot be read."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Unavailable(f"{path.parent.name}/{path.name} cannot be read: {error}") from None
    return value if isinstance(value, dict) else {}


def _chat_templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Templates by name; a file of its own wins over the settings."""
    stated = config.get("chat_template") or read_json(folder / "chat_template.json").get("chat_template")
    templates: dict[str, str] = {}
    if isinstance(stated, str):
        templates[DEFAULT_TEMPLATE] = stated
    elif isinstance(stated, list):
        templates |= {item["name"]: item["template"] for item in stated}
    if (folder / "chat_template.jinja").is_file():
        templates[DEFAULT_TEMPLATE] = (folder / "chat_template.jinja").read_text("utf-8")
    for path in sorted((folder / "chat_templates").glob("*.jinja")):
        templates[path.stem] = path.read_text("utf-8")
    return templates
