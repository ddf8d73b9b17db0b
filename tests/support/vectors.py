"""The recorded numbers of the corpus beside the repository: losses, advantages, packed rows."""

import json
from pathlib import Path
from typing import Any

import pytest

PATH = Path(__file__).parents[2].parent / "shared" / "corpus" / "loss-vectors.json"
VECTORS: dict[str, Any] = (
    json.loads(PATH.read_text(encoding="utf-8")) if PATH.is_file() else {"loss": [], "advantages": [], "packing": []}
)
needs_vectors = pytest.mark.skipif(not VECTORS["loss"], reason="the corpus is not beside the repository")
