"""Media as stored values: the object that SDKs read as `Content`, and the two files behind it."""

import hashlib
import json
import mimetypes
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from heddle.wire import digests

CONTENT_TYPE = "weave.type_wrappers.Content.content.Content"
File = tuple[str, str, bytes]
"""Digest, name and content."""


@dataclass(frozen=True)
class ContentObject:
    """One piece of media; `content_type` says in which form it came: `base64`, `data_url:base64` or `url`."""

    content: bytes
    mimetype: str
    content_type: str

    @cached_property
    def files(self) -> list[File]:
        """The files that must be stored."""
        contents = {"content": self.content, "metadata.json": self._described()}
        return [(digests.bytes_digest(content), name, content) for name, content in contents.items()]

    @property
    def value(self) -> dict[str, Any]:
        """What stands for the media in an input or output."""
        return {
            "_type": "CustomWeaveType",
            "weave_type": {"type": CONTENT_TYPE},
            "files": {name: digest for digest, name, _ in self.files},
        }

    def _described(self) -> bytes:
        extension = mimetypes.guess_extension(self.mimetype) or ""
        sha256 = hashlib.sha256(self.content).hexdigest()
        family = self.mimetype.partition("/")[0]
        metadata = {
            "size": len(self.content),
            "mimetype": self.mimetype,
            "digest": sha256,
            "filename": f"{'file' if family == 'application' else family}-{sha256[:4]}{extension}",
            "content_type": self.content_type,
            "input_type": "str",
            "encoding": "base64",
            "metadata": None,
            "extension": extension,
        }
        return json.dumps(metadata).encode()


def sniff(content: bytes) -> str:
    """The media type that the first bytes tell, empty when they tell none."""
    import puremagic

    try:
        return str(puremagic.from_string(content[:4096], mime=True) or "")
    except (puremagic.PureError, ValueError):
        return ""
