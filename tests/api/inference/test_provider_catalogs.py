"""The lists of models in the published shapes: filled from what is here, and from no one else."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.server import HeddleProcess

ROUTERS = ("/inference/router/openrouter/models", "/inference/analysis/artificialanalysis/models")
BEARER = {"authorization": "Bearer key"}


def get(server: HeddleProcess, path: str, **options: Any) -> Any:
    """The JSON of a list."""
    answer = httpx.get(server.url + path, timeout=60, **options)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeddleProcess]:
    """A server without a model, with a provider that the price file knows and one that it does not, behind keys."""
    entries = "openai=http://127.0.0.1:9/v1,NO_SUCH_KEY; mine=http://127.0.0.1:9/v1"
    folder = tmp_path_factory.mktemp("information")
    with HeddleProcess(folder / "data", providers=entries, model="none") as process:
        yield process


@pytest.mark.parametrize("path", ROUTERS)
def test_the_served_model_is_listed(server: HeddleProcess, path: str) -> None:
    (entry,) = get(server, path)["data"]
    (known,) = get(server, "/v1/models", headers=BEARER)["data"][:1]
    assert (entry["id"], entry["created"]) == (known["id"], known["created"])
    assert entry["context_length"] == known["max_model_len"]
    assert entry["quantization"] in ("bf16", "fp32")
    assert set(entry["pricing"].values()) == {"0"}
    assert {"tools", "json_mode", "structured_outputs"} <= set(entry["supported_features"])


def test_the_catalogue_counts_parameters(server: HeddleProcess) -> None:
    (entry,) = get(server, "/inference/catalog/models")["models"]
    assert entry["id"] == "heddle-tiny"
    assert 1_000_000 < entry["parameterCountTotal"] < 100_000_000
    assert entry["featureTrainableServerlessRL"] is True
    assert entry["launchedQuarter"] == f"{entry['launchDate'][:4]}-Q{(int(entry['launchDate'][5:7]) + 2) // 3}"


def test_hardware_needs_a_bearer_and_a_model(server: HeddleProcess) -> None:
    path = "/inference/nvidia/v2/hardware"
    assert httpx.get(server.url + path, params={"model": "heddle-tiny"}).status_code == 401
    assert httpx.get(server.url + path, headers=BEARER).status_code == 422
    (option,) = get(server, path, params={"model": "heddle-tiny"}, headers=BEARER)["hardware"]
    assert option["type"] in ("cpu", "gpu")
    assert option["pricing"] == {"cents_per_million_input_tokens": 0.0, "cents_per_million_output_tokens": 0.0}
    assert get(server, path, params={"model": "nobody"}, headers=BEARER) == {"hardware": []}


def test_providers_of_the_settings_are_named_with_their_prices(named: HeddleProcess) -> None:
    providers = get(named, "/inference/modelsdev/models")
    assert list(providers) == ["heddle", "openai"]
    assert providers["heddle"]["models"] == {}
    assert providers["heddle"]["api"] == f"{named.url}/v1"
    assert providers["openai"]["models"]["babbage-002"]["cost"] == {
        "input": 0.4, "output": 0.4, "cache_read": 0.4, "cache_write": 0.4,
    }  # fmt: skip
    assert "127.0.0.1:9" not in httpx.get(named.url + "/inference/modelsdev/models").text
    for path in ROUTERS:
        assert get(named, path) == {"data": []}
    assert get(named, "/inference/catalog/models") == {"models": []}


def test_the_served_model_is_in_the_map(server: HeddleProcess) -> None:
    entry = get(server, "/inference/modelsdev/models")["heddle"]["models"]["heddle-tiny"]
    assert entry["tool_call"] is True
    assert entry["limit"]["context"] == entry["limit"]["output"] > 0
