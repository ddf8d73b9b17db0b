"""Detectors find what is planted and little else; paths take out values; what is harmless stays as it is."""

import json

import pytest

from benchmarks.redaction import SECRETS, measure
from heddle.errors import InvalidRequest
from heddle.wire.redaction import KINDS, RedactionRules, Redactor

ALL = RedactionRules(KINDS)


def test_planted_secrets_are_found() -> None:
    found = measure()
    assert sum(counts["planted"] for counts in found.values()) == SECRETS
    for kind, counts in found.items():
        assert counts["found"] >= 0.99 * counts["planted"], (kind, counts)
        assert counts["wrong"] <= 0.01 * counts["planted"], (kind, counts)


@pytest.mark.parametrize(
    "text",
    [
        '{"created": 1795000000, "at": 1795435506241563, "seconds": 0.123456789012}',
        '{"usage": {"prompt_tokens": 12, "max_tokens": 4096}}',
        '{"ref": "weave:///team/app/object/x:AbCdEfGhIjKlMnOpQrStUvWxYz0123456789abcdefg"}',
        '{"id": "0192f3a4-7b1c-7000-a000-000000000001", "ip": "10.0.0.1:8470"}',
    ],
)
def test_harmless_texts_stay_the_same_object(text: str) -> None:
    assert Redactor(ALL).json(text, "inputs") is text


def test_secrets_behind_escapes_and_in_members_are_found() -> None:
    redactor = Redactor(ALL)
    value = {"text": 'line\n4111 1111 1111 1111\t"ada@example.com"', "Authorization": "Basic YWRhOnNlY3JldA==", "n": 3}
    redacted = json.loads(redactor.json(json.dumps(value), "inputs"))
    assert redacted["text"] == 'line\n[redacted card]\t"[redacted email]"'
    assert redacted["Authorization"] == "[redacted key]" and redacted["n"] == 3
    assert redactor.found == {"card": 1, "email": 1, "key": 1}


def test_paths_take_out_values_and_dumps_lose_them_too() -> None:
    redactor = Redactor(RedactionRules((), ("inputs.messages.*.content", "attributes.user.email")))
    inputs = json.dumps({"messages": [{"role": "user", "content": "my flat is small"}], "content": "kept"})
    assert json.loads(redactor.json(inputs, "inputs")) == {
        "messages": [{"role": "user", "content": "[redacted path]"}],
        "content": "kept",
    }
    assert json.loads(redactor.json('{"user.email": "a", "user": {"email": "b"}}', "attributes")) == {
        "user.email": "[redacted path]",
        "user": {"email": "[redacted path]"},
    }
    dump = json.dumps({"attributes": {"gen_ai.prompt": "he said: my flat is small"}})
    assert "flat" not in redactor.json(dump, "otel_dump")
    assert redactor.json(inputs, "output") == inputs


@pytest.mark.parametrize("path", ["inputs", "inputs.", "name.x", ".x", "inputs..x"])
def test_a_path_that_is_none_is_refused(path: str) -> None:
    with pytest.raises(InvalidRequest):
        RedactionRules((), (path,)).check()
