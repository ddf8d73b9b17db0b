"""Models in the shapes that catalogues of models publish."""

from typing import Literal

from pydantic import Field, RootModel

from heddle.http.routing import ResponseModel
from heddle.wire.lazy_model import LAZY

Quantization = Literal["int4", "int8", "fp4", "fp6", "fp8", "fp16", "bf16", "fp32"]


class Pricing(ResponseModel):
    """US dollars per token (per image, per request), as decimal texts."""

    prompt: str
    completion: str
    image: str
    request: str
    input_cache_read: str


class Datacenter(ResponseModel):
    """Where a model runs."""

    country_code: str


class RouterModel(ResponseModel):
    """A model that can be asked."""

    id: str
    hugging_face_id: str
    name: str
    created: int
    input_modalities: list[str]
    output_modalities: list[str]
    quantization: Quantization
    context_length: int
    max_output_length: int
    pricing: Pricing
    supported_sampling_parameters: list[
        Literal[
            "temperature", "top_p", "top_k", "repetition_penalty", "frequency_penalty", "presence_penalty",
            "stop", "seed",
        ]
    ]  # fmt: skip
    supported_features: list[Literal["tools", "json_mode", "structured_outputs", "web_search", "reasoning"]]
    datacenters: list[Datacenter]
    deprecation_date: str | None = None


class RouterModelsRes(ResponseModel):
    """The models."""

    data: list[RouterModel]


class HardwarePricing(ResponseModel):
    """US cents per million tokens."""

    cents_per_million_input_tokens: float
    cents_per_million_output_tokens: float


class HardwareOption(ResponseModel):
    """What a model runs on."""

    id: str
    name: str
    type: str
    pricing: HardwarePricing
    specs: dict[str, str] | None = None


class HardwareRes(ResponseModel):
    """The hardware of a model; empty for an unknown one."""

    hardware: list[HardwareOption]


class CatalogModel(ResponseModel):
    """A model of the catalogue."""

    provider: str
    id: str
    idPlayground: str
    idHuggingFace: str
    label: str
    labelOpenRouter: str
    status: str
    lifecycleStage: Literal["experimental", "general-availability", "deprecated", "retired"]
    availableIn: list[Literal["cw-prod", "cw-qa"]]
    launchedQuarter: str
    descriptionShort: str
    descriptionMedium: str
    launchDate: str
    featureReasoning: bool
    featureJsonMode: bool
    featureStructuredOutput: bool
    featureToolCalling: bool
    featureLoRA: bool
    featureTrainableServerlessRL: bool
    reasoningSupport: Literal["unsupported", "default-off", "adaptive", "default-on", "always-on"] = "unsupported"
    reasoningEfforts: list[Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]] = Field(
        default_factory=list
    )
    reasoningArgument: str = ""
    parameterCountTotal: int
    parameterCountActive: int = 0
    contextWindow: int
    quantization: Quantization
    priceCentsPerBillionTokensInput: int
    priceCentsPerBillionTokensCached: int
    priceCentsPerBillionTokensOutput: int
    isAvailableOpenRouter: bool
    apiStyle: str
    modalities: list[str]
    modalitiesInput: list[str]
    modalitiesOutput: list[str]
    tags: list[str]
    likesHuggingFace: int
    downloadsHuggingFace: int
    license: str


class CatalogModelsRes(ResponseModel):
    """The catalogue."""

    models: list[CatalogModel]


class ReasoningToggle(ResponseModel):
    """Reasoning can be switched."""

    type: Literal["toggle"] = "toggle"


class ReasoningEffortOption(ResponseModel):
    """Reasoning has degrees."""

    type: Literal["effort"] = "effort"
    values: list[Literal["none", "minimal", "low", "medium", "high", "xhigh", "max", "default"] | None]


class ReasoningBudgetTokens(ResponseModel):
    """Reasoning has a budget of tokens."""

    type: Literal["budget_tokens"] = "budget_tokens"
    min: int | None = None
    max: int | None = None


class Interleaved(ResponseModel):
    """Reasoning comes between other parts, in this field."""

    field: Literal["reasoning_content", "reasoning_details"]


class Cost(ResponseModel):
    """US dollars per million tokens."""

    input: float
    output: float
    reasoning: float | None = None
    cache_read: float | None = None
    cache_write: float | None = None
    input_audio: float | None = None
    output_audio: float | None = None


class Limit(ResponseModel):
    """Tokens at most."""

    context: int
    input: int
    output: int


class Modalities(ResponseModel):
    """What goes in and comes out."""

    input: list[str]
    output: list[str]


class ModelsDevModel(ResponseModel):
    """A model of a provider."""

    id: str
    name: str
    description: str | None = None
    attachment: bool
    reasoning: bool
    reasoning_options: list[ReasoningToggle | ReasoningEffortOption | ReasoningBudgetTokens] | None = None
    tool_call: bool
    structured_output: bool | None = None
    temperature: bool | None = None
    knowledge: str | None = None
    release_date: str
    last_updated: str
    open_weights: bool
    status: Literal["alpha", "beta", "deprecated"] | None = None
    interleaved: bool | Interleaved | None = None
    cost: Cost | None = None
    limit: Limit | None = None
    modalities: Modalities | None = None


class ModelsDevProvider(ResponseModel):
    """A provider with its models by id."""

    id: str
    name: str
    npm: str
    env: list[str]
    doc: str
    api: str | None = None
    models: dict[str, ModelsDevModel] = Field(default_factory=dict)


class ModelsDevRes(RootModel[dict[str, ModelsDevProvider]]):
    """Providers by id."""

    model_config = LAZY
