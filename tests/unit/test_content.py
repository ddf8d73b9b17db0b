"""Long base64 texts of inputs and outputs become files, and everything else stays the same object."""

import base64
import hashlib
import json
from typing import Any

import pytest

from heddle.wire.content import LONG_STRING, replace_content

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40
ENCODED = base64.b64encode(PNG).decode()


def replaced(value: Any) -> tuple[Any, dict[str, bytes]]:
    kept: dict[str, bytes] = {}

    def keep(_digest: str, name: str, content: bytes) -> None:
        kept[name] = content

    return replace_content(value, keep), kept


@pytest.mark.parametrize(
    ("text", "mimetype", "content_type"),
    [
        (ENCODED, "image/png", "base64"),
        (f"data:image/png;base64,{ENCODED}", "image/png", "data_url:base64"),
        (f"data:audio/wav;rate=8000;base64,{ENCODED}", "audio/wav", "data_url:base64"),
        (
            f"data:;base64,{base64.b64encode(b' ' * LONG_STRING).decode()}",
            "application/octet-stream",
            "data_url:base64",
        ),
    ],
)
def test_media_become_files(text: str, mimetype: str, content_type: str) -> None:
    value = {"deep": [text, {"same": 1}], "kept": "short"}
    found, kept = replaced(value)
    assert value["deep"] == [text, {"same": 1}], "what was given stays as it was"
    made = found["deep"][0]
    assert found == {"deep": [made, {"same": 1}], "kept": "short"}
    assert made["weave_type"] == {"type": "weave.type_wrappers.Content.content.Content"}
    content, described = kept["content"], json.loads(kept["metadata.json"])
    assert base64.b64encode(content).decode() == text.rpartition(",")[2]
    assert (described["mimetype"], described["content_type"]) == (mimetype, content_type)
    assert (described["size"], described["digest"]) == (len(content), hashlib.sha256(content).hexdigest())
    assert set(made["files"]) == set(kept) == {"content", "metadata.json"}


@pytest.mark.parametrize(
    "text",
    [
        ENCODED[:LONG_STRING],
        ENCODED + "A",
        ENCODED[:-4] + "A===",
        "words and spaces " * 600,
        "A" * (LONG_STRING + 4),
        f"data:image/png;base64,{ENCODED}!",
        f"data:image/png,{ENCODED}",
    ],
)
def test_what_is_no_media_stays_the_same_object(text: str) -> None:
    value = {"a": [text, 5, None], "b": {"c": text}}
    found, kept = replaced(value)
    assert found is value and not kept
