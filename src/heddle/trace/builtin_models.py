"""The object classes that the server itself knows; names, order of inheritance, fields and defaults are on the wire."""

import ipaddress
import re
import socket
from collections.abc import Mapping
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from heddle.ipc.json_schemas import check_schema
from heddle.trace.builtin_views import (
    AgentDashboard,
    BaseObject,
    ChartConfig,
    ComparisonView,
    Dashboard,
    Leaderboard,
    SavedView,
    without_classes,
)

_HEADER_OF_MACHINES = re.compile(r"metadata-flavor|x-aws-ec2-metadata-token(-ttl-seconds)?", re.IGNORECASE)
_HOST_OF_MACHINES = re.compile(
    r"(.*\.)?metadata\.(google\.internal|goog|internal|azure\.com|tencentyun\.com)", re.IGNORECASE
)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_ADDRESSES_OF_MACHINES = frozenset(
    map(ipaddress.ip_address, ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254"))
)
"""Beside the link-local ones: of Alibaba, Azure, Oracle, AWS and Google."""


class TestOnlyNestedBaseModel(BaseModel):
    """A part with an aliased field."""

    __test__: ClassVar[bool] = False

    a: int
    aliased_property: int = Field(alias="aliased_property_alias")


class TestOnlyNestedBaseObject(BaseObject):
    """An object with one field."""

    __test__: ClassVar[bool] = False

    b: int


class TestOnlyInheritedBaseObject(TestOnlyNestedBaseObject):
    """An object below another."""

    c: int
    additional_field: str = "default_value"


class TestOnlyExample(BaseObject):
    """An object with a part and a ref."""

    __test__: ClassVar[bool] = False

    primitive: int
    nested_base_model: TestOnlyNestedBaseModel
    nested_base_object: str


class WeaveMetricThresholdSpec(BaseModel):
    """When an alert fires; keys that it does not know are passed over."""

    alert_condition: str = "THRESHOLD"
    source_type: Literal["calls", "spans"] = "calls"
    comparison_operator: Literal["GREATER_THAN", "LESS_THAN", "EQUAL"] = "GREATER_THAN"
    metric_path: str = ""
    op_str: str = ""
    threshold: float = 0.0
    window_size: int | None = None
    window_duration: int | None = None
    monitor_ref: str | None = None
    scorer_ref: str | None = None
    aggregation_function: Literal["mean", "median", "min", "max", "mode", "percentage", "count"] = "mean"
    status_match_value: str | None = None


class AlertSpec(BaseObject):
    """An alert on a metric of calls."""

    op_scope: list[str] | None = None
    spec: WeaveMetricThresholdSpec = Field(default_factory=WeaveMetricThresholdSpec)


class AnnotationSpec(BaseObject):
    """A question that people answer about calls; `field_schema` is the JSON Schema of an answer."""

    field_schema: dict[str, Any] = Field(default_factory=dict)
    unique_among_creators: bool = False
    op_scope: list[str] | None = None

    @field_validator("field_schema")
    @classmethod
    def _is_a_schema(cls, schema: dict[str, Any]) -> dict[str, Any]:
        problem = check_schema(schema)
        if problem is not None:
            raise ValueError(f"field_schema is not a valid JSON Schema: {problem}")
        return schema


class Provider(BaseObject):
    """Where models are served, and by which name the key is known."""

    base_url: str
    api_key_name: str
    extra_headers: dict[str, str] = Field(default_factory=dict)
    return_type: Literal["openai"] = "openai"

    @field_validator("base_url")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        if not is_provider_address(url):
            raise ValueError("base_url is not a valid provider URL")
        return url

    @field_validator("extra_headers")
    @classmethod
    def _opens_no_machine(cls, headers: dict[str, str]) -> dict[str, str]:
        if any(_HEADER_OF_MACHINES.fullmatch(name) for name in headers):
            raise ValueError("extra_headers contains a disallowed header")
        return headers


class ProviderModel(BaseObject):
    """A model of a provider."""

    provider: str
    max_tokens: int


class Object(BaseModel):
    """The root of the classes that clients define; refuses keys it does not know."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, protected_namespaces=())

    name: str | None = None
    description: str | None = None
    ref: None = None

    @model_validator(mode="before")
    @classmethod
    def _without_weave_keys(cls, value: Any) -> Any:
        return without_classes(value)


class Model(Object):
    """Something that predicts."""


class Message(BaseModel):
    """A message of a chat."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    function_call: dict[str, Any] | None = None
    tool_call_id: str | None = None


class LLMStructuredCompletionModelDefaultParams(BaseModel):
    """With which parameters a model is asked."""

    messages_template: list[Message] | None = None
    prompt: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stop: list[str] | None = None
    n_times: int | None = None
    functions: list[dict[str, Any]] | None = None
    response_format: Literal["json_object", "json_schema", "text"] | None = None


class LLMStructuredCompletionModel(Model):
    """A chat model with its parameters."""

    llm_model_id: str
    default_params: LLMStructuredCompletionModelDefaultParams = Field(
        default_factory=LLMStructuredCompletionModelDefaultParams
    )


def is_provider_address(url: str) -> bool:
    """True for an HTTP address that a provider may have.

    Addresses of this machine and of private networks are fine here, as people host their own models. The services by
    which machines in a cloud learn their own secrets are not.
    """
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").lower().rstrip(".")
    except ValueError:
        return False
    if parts.scheme.lower() not in ("http", "https") or not host or parts.fragment or "?" in url:
        return False
    address = _address(host)
    return not _HOST_OF_MACHINES.fullmatch(host) if address is None else _may_serve(address)


def _may_serve(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address):
        within = address.ipv4_mapped or address.sixtofour or _translated(address)
        if within is not None:
            return _may_serve(within)
    is_special = address.is_link_local or address.is_multicast or address.is_unspecified
    return not is_special and address not in _ADDRESSES_OF_MACHINES


def _translated(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that a NAT64 gateway makes of one, https://www.rfc-editor.org/rfc/rfc6052."""
    return ipaddress.IPv4Address(address.packed[-4:]) if address in _NAT64 else None


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that a host literally is, in any of the spellings of IPv4."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    try:
        return ipaddress.ip_address(socket.inet_aton(host))
    except (OSError, ValueError):
        return None


REGISTRY: Mapping[str, type[BaseModel]] = {
    model.__name__: model
    for model in (
        TestOnlyExample,
        TestOnlyNestedBaseObject,
        TestOnlyInheritedBaseObject,
        Leaderboard,
        AlertSpec,
        AnnotationSpec,
        Provider,
        ProviderModel,
        SavedView,
        ComparisonView,
        LLMStructuredCompletionModel,
        ChartConfig,
        AgentDashboard,
        Dashboard,
    )
}
