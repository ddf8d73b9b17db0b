"""Lists of models in the shape that catalogues of models publish, filled with what this server knows; nobody is asked.

The served model has an entry in each; the models of the providers in the settings are named with their prices of the
data file, in the one list whose form does not also want what heddle does not know of them. Public, as the published
lists are, except for the hardware. Contract: trace-evals, section 10.
"""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from math import prod
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from heddle.http.routing import BearerReader, SettingsDep, StoreDep, answer, group
from heddle.inference.api.catalog_schemas import CatalogModelsRes, HardwareRes, ModelsDevRes, RouterModelsRes
from heddle.inference.providers import find_providers
from heddle.inference.served_model import ServedModel
from heddle.inference.service import Inference, InferenceDep
from heddle.settings import Settings
from heddle.wire import times
from heddle.wire.calls import CostOf, Usage
from heddle.wire.inference import ModelPrice
from heddle.wire.jsontypes import Json
from heddle.wire.tensors import folder_shapes

router: APIRouter = group("Model information")
PROVIDER = "heddle"
SAMPLING = ["temperature", "top_p", "top_k", "repetition_penalty", "frequency_penalty", "presence_penalty", "stop"]
SAMPLING += ["seed"]
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_MANY = 1_000_000
_TEXT = {"input": ["text"], "output": ["text"]}


@dataclass(frozen=True, slots=True)
class Served:
    """What the lists say about the served model; prices are US dollars per token."""

    model: ServedModel
    parameters: int
    precision: str
    device: str
    threads: int
    prompt: float
    completion: float
    cached: float
    is_trainable: bool

    @property
    def name(self) -> str:
        """What clients call it."""
        return self.model.source.name

    @property
    def reasons(self) -> bool:
        """Whether it has reasoning blocks."""
        return self.model.reasoning is not None

    @property
    def hub_id(self) -> str:
        """The name on the hub, empty for a folder."""
        return self.name if self.name.count("/") == 1 else ""


@router.get("/inference/analysis/artificialanalysis/models", response_model=RouterModelsRes)
@router.get("/inference/router/openrouter/models", response_model=RouterModelsRes)
async def router_models(settings: SettingsDep, inference: InferenceDep) -> Response:
    """The served model as routers and analysts of models list theirs."""
    return answer({"data": [_router_entry(served) for served in await _read_served(settings, inference)]})


@router.get("/inference/nvidia/v2/hardware", response_model=HardwareRes)
async def hardware(
    model: Annotated[str, Query()],
    caller: BearerReader,  # noqa: ARG001
    settings: SettingsDep,
    inference: InferenceDep,
) -> Response:
    """What a model runs on here; `model` is its name without the publisher. Empty for an unknown one."""
    known = [
        served
        for served in await _read_served(settings, inference)
        if model in (served.name, served.name.rpartition("/")[2])
    ]
    return answer({"hardware": [_hardware_entry(served) for served in known]})


@router.get("/inference/catalog/models", response_model=CatalogModelsRes, response_model_exclude_none=True)
async def catalog_models(settings: SettingsDep, inference: InferenceDep) -> Response:
    """The served model as the service's own catalogue lists its models."""
    return answer({"models": [_catalog_entry(served) for served in await _read_served(settings, inference)]})


@router.get("/inference/modelsdev/models", response_model=ModelsDevRes)
async def modelsdev_models(
    request: Request, settings: SettingsDep, store: StoreDep, inference: InferenceDep
) -> Response:
    """Providers and their models: this server, and those of the settings whose names the price file knows.

    Of the latter only names and prices are known: what is said of them beyond is false or left out.
    """
    models = {entry.name: _own_entry(entry) for entry in (await _read_served(settings, inference))}
    providers = {PROVIDER: {**_provider(PROVIDER, models), "env": ["WANDB_API_KEY"], "api": f"{request.base_url}v1"}}
    for name in await find_providers(settings, store):
        if prices := inference.accounts.prices.of_provider(name):
            providers[name] = _provider(name, {price.model: _priced_entry(price) for price in prices})
    return answer(providers)


async def _read_served(settings: Settings, inference: Inference) -> list[Served]:
    """The served model, none where inference is off; raises Unavailable when it cannot be read."""
    if inference.is_off:
        return []
    model = await inference.model()
    stats = await model.engine.stats()
    cost, name = await inference.accounts.prices(""), model.source.name
    shapes = await asyncio.to_thread(folder_shapes, model.source.folder)
    stored = str(model.source.config.get("dtype") or model.source.config.get("torch_dtype") or "float32")
    return [
        Served(
            model=model,
            parameters=sum(map(prod, shapes.values())),
            # Before it is loaded, the precision of its files.
            precision=_DTYPES.get(stats.dtype or stored, "fp32"),
            device=stats.device or settings.engine_device,
            threads=stats.threads,
            prompt=_price(cost, name, prompt=_MANY),
            completion=_price(cost, name, completion=_MANY),
            cached=_price(cost, name, prompt=_MANY, cached=_MANY),
            is_trainable=settings.training == "on",
        )
    ]


def _price(cost: CostOf, model: str, prompt: int = 0, completion: int = 0, cached: int = 0) -> float:
    return (cost(Usage(model, 1, prompt, completion, None, cached, 0), times.now()) or 0.0) / _MANY


def _router_entry(served: Served) -> Json:
    length = served.model.info.max_model_len
    return {
        "id": served.name,
        "hugging_face_id": served.hub_id,
        "name": served.name,
        "created": served.model.source.created,
        "input_modalities": _TEXT["input"],
        "output_modalities": _TEXT["output"],
        "quantization": served.precision,
        "context_length": length,
        "max_output_length": length,
        "pricing": {
            "prompt": _dollars(served.prompt),
            "completion": _dollars(served.completion),
            "image": "0",
            "request": "0",
            "input_cache_read": _dollars(served.cached),
        },
        "supported_sampling_parameters": SAMPLING,
        "supported_features": ["tools", "json_mode", "structured_outputs", *(["reasoning"] * served.reasons)],
        "datacenters": [],
        "deprecation_date": None,
    }


def _hardware_entry(served: Served) -> Json:
    is_gpu = served.device.startswith("cuda")
    return {
        "id": served.device,
        "name": served.device,
        "type": "gpu" if is_gpu else "cpu",
        "pricing": {
            "cents_per_million_input_tokens": served.prompt * _MANY * 100,
            "cents_per_million_output_tokens": served.completion * _MANY * 100,
        },
        "specs": {
            "precision": served.precision,
            "threads": str(served.threads),
            "context_length": str(served.model.info.max_model_len),
        },
    }


def _catalog_entry(served: Served) -> Json:
    launched = datetime.fromtimestamp(served.model.source.created, UTC)
    said = f"{served.parameters:,} parameters, served by heddle"
    return {
        "provider": PROVIDER,
        "id": served.name,
        "idPlayground": served.name,
        "idHuggingFace": served.hub_id,
        "label": served.name,
        "labelOpenRouter": served.name,
        "status": "available",
        "lifecycleStage": "general-availability",
        "availableIn": [],
        "launchedQuarter": f"{launched.year}-Q{(launched.month + 2) // 3}",
        "descriptionShort": said,
        "descriptionMedium": said,
        "launchDate": launched.date().isoformat(),
        "featureReasoning": served.reasons,
        "featureJsonMode": True,
        "featureStructuredOutput": True,
        "featureToolCalling": True,
        "featureLoRA": True,
        "featureTrainableServerlessRL": served.is_trainable,
        "reasoningSupport": "default-on" if served.reasons else "unsupported",
        "parameterCountTotal": served.parameters,
        "contextWindow": served.model.info.max_model_len,
        "quantization": served.precision,
        "priceCentsPerBillionTokensInput": _cents_per_billion(served.prompt),
        "priceCentsPerBillionTokensCached": _cents_per_billion(served.cached),
        "priceCentsPerBillionTokensOutput": _cents_per_billion(served.completion),
        "isAvailableOpenRouter": False,
        "apiStyle": "openai",
        "modalities": ["text"],
        "modalitiesInput": _TEXT["input"],
        "modalitiesOutput": _TEXT["output"],
        "tags": [],
        "likesHuggingFace": 0,
        "downloadsHuggingFace": 0,
        "license": "",
    }


def _provider(name: str, models: dict[str, Json]) -> Json:
    return {
        "id": name,
        "name": name,
        "npm": "@ai-sdk/openai-compatible",
        "env": [],
        "doc": "/docs",
        "api": None,
        "models": models,
    }


def _own_entry(served: Served) -> Json:
    length = served.model.info.max_model_len
    day = datetime.fromtimestamp(served.model.source.created, UTC).date().isoformat()
    return {
        "id": served.name,
        "name": served.name,
        "attachment": False,
        "reasoning": served.reasons,
        "tool_call": True,
        "structured_output": True,
        "temperature": True,
        "release_date": day,
        "last_updated": day,
        "open_weights": True,
        "cost": {
            "input": served.prompt * _MANY,
            "output": served.completion * _MANY,
            "cache_read": served.cached * _MANY,
        },
        "limit": {"context": length, "input": length, "output": length},
        "modalities": _TEXT,
    }


def _priced_entry(price: ModelPrice) -> Json:
    return {
        "id": price.model,
        "name": price.model,
        "attachment": False,
        "reasoning": False,
        "tool_call": False,
        "release_date": price.since,
        "last_updated": price.since,
        "open_weights": False,
        "cost": {
            "input": round(price.prompt * _MANY, 9),
            "output": round(price.completion * _MANY, 9),
            "cache_read": round(price.cache_read * _MANY, 9),
            "cache_write": round(price.cache_creation * _MANY, 9),
        },
    }


def _dollars(price: float) -> str:
    """US dollars per token as a plain decimal."""
    return f"{price:.15f}".rstrip("0").rstrip(".")


def _cents_per_billion(price: float) -> int:
    return round(price * 100 * 1_000_000_000)
