"""The kept description of the API is that of the modules that there are, or it is made anew in a process of its own."""

import json
from pathlib import Path

import pytest

from heddle.compat import description
from tests.support.description import make_openapi


@pytest.mark.thorough
def test_a_description_is_kept_until_a_module_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "openapi.json"
    monkeypatch.setattr(description, "KEPT", file)
    described = json.dumps(make_openapi()).encode()
    description._read.cache_clear()
    file.write_bytes(b'{"made_of":"others","description":{}}')
    made = description.read_description()
    assert json.loads(made) == json.loads(described)

    description._read.cache_clear()
    monkeypatch.setattr(description, "Child", None)
    description.keep(made, file)
    assert description.read_description() == made
    description._read.cache_clear()
