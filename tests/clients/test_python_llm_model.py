"""LLMStructuredCompletionModel of the Python SDK, whose completions run on this server."""

import pytest

from tests.conftest import Client, Wire

pytestmark = pytest.mark.thorough


def test_a_model_of_settings_completes_on_the_server(sdk: Client, wire: Wire) -> None:
    """With messages from a template, from a stored prompt as a JSON object, and for a model that nobody serves."""
    seen = sdk.run("llm_model.py", timeout=180)
    calls = wire.calls(filter={"op_names": ["weave.completions_create"]})
    assert [call["exception"] is None for call in calls] == [True, True, False]
    first, second, third = calls
    assert first["inputs"]["messages"] == [
        {"role": "system", "content": "You know looms."},
        {"role": "user", "content": "hello"},
    ]
    assert first["output"]["choices"][0]["message"]["content"] == seen["plain"]
    assert first["output"]["usage"]["completion_tokens"] <= 5
    assert first["summary"]["usage"]["heddle-tiny"]["requests"] == 1
    assert second["inputs"]["prompt"].startswith(f"weave:///{wire.project}/object/lover:")
    assert second["inputs"]["template_vars"] == {"topic": "wool"}
    assert isinstance(seen["json"], dict)
    assert "nobody" in seen["failure"] and "nobody" in third["exception"]
