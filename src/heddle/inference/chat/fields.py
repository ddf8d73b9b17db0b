"""What the bodies of all inference requests have in common: types of values, and the keys that nobody knows."""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr

from heddle.errors import InvalidRequest
from heddle.wire.lazy_model import LazyModel

LARGEST = 9_223_372_036_854_776_000
"""The bound that the interface gives for 64-bit integers: what JSON numbers of 53 bits make of 2**63."""


def _read_whole_number(value: Any) -> Any:
    """A JSON number such as 3.0 is an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Integer = Annotated[int, BeforeValidator(_read_whole_number)]
Number = Annotated[float, Field(allow_inf_nan=False)]
ExtraValue = str | Integer | Number | list[str | Integer | Number]


class Part(LazyModel):
    """A nested object of the request; keys that it does not know are ignored and named in a response header."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())
    _older_names: dict[str, str] = PrivateAttr(default_factory=dict)

    @property
    def older_names(self) -> dict[str, str]:
        """The older names under which the request has values of today's fields, by today's name."""
        return self._older_names


class StreamOptions(Part):
    """What a stream says beside the text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = False


class RepetitionDetection(Part):
    """When to end an output that repeats itself; both sizes 0 is off."""

    max_pattern_size: Integer = 0
    min_pattern_size: Integer = 0
    min_count: Integer = 0


TextOrTokens = str | list[str] | list[Integer] | list[list[Integer]]


def _check_texts(value: Any) -> Any:
    """Name the four forms once, where the union would name what is wrong with each of them."""
    items = value if isinstance(value, list) else [value]
    kinds = {_kind(item) for item in items}
    if not items or len(kinds) > 1 or None in kinds or (kinds == {"token"} and not isinstance(value, list)):
        raise ValueError("must be a string, a list of strings, a list of token ids, or a list of lists of token ids")
    return value


def _kind(item: Any) -> str | None:
    if isinstance(item, str):
        return "text"
    if isinstance(item, list) and item and all(_kind(token) == "token" for token in item):
        return "tokens"
    return "token" if isinstance(item, int) and not isinstance(item, bool) else None


Texts = Annotated[TextOrTokens, BeforeValidator(_check_texts)]


def split_texts(value: TextOrTokens) -> tuple[str | tuple[int, ...], ...]:
    """The single texts, or lists of token ids, of such a field."""
    if isinstance(value, str):
        return (value,)
    tokens = tuple(item for item in value if isinstance(item, int))
    if tokens:
        return (tokens,)
    return tuple(item if isinstance(item, str) else tuple(item) for item in value if not isinstance(item, int))


def unknown_fields(model: type[BaseModel], body: Any) -> list[str]:
    """The keys of a body that its model does not know, nested ones as `outer.inner`, those of lists as `outer.0.inner`.

    What a model takes with `extra="allow"` is known.
    """
    return list(_find_unknown(model, body)) if isinstance(body, Mapping) else []


def _find_unknown(model: type[BaseModel], body: Mapping[str, Any]) -> Iterator[str]:
    takes_all, nested = _describe(model)
    for key, value in body.items():
        if key not in nested:
            if not takes_all:
                yield str(key)
            continue
        for place, item in _objects(value) if nested[key] else ():
            found = min((list(_find_unknown(part, item)) for part in nested[key]), key=len)
            yield from (f"{key}.{place}{name}" for name in found)


def _objects(value: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The value itself when it is an object, else the objects of a list, each with its place."""
    if isinstance(value, Mapping):
        yield "", value
    elif isinstance(value, list):
        yield from ((f"{index}.", item) for index, item in enumerate(value) if isinstance(item, Mapping))


@cache
def _describe(model: type[BaseModel]) -> tuple[bool, dict[str, tuple[type[BaseModel], ...]]]:
    """Whether a model takes every key, and the models of its fields in which something may be unknown."""
    nested: dict[str, tuple[type[BaseModel], ...]] = {}
    for name, field in model.model_fields.items():
        parts = tuple(part for part in _models(field.annotation) if not _takes_everything(part))
        nested |= dict.fromkeys((name, field.alias or name), parts)
    return model.model_config.get("extra") == "allow", nested


def _takes_everything(model: type[BaseModel]) -> bool:
    takes_all, nested = _describe(model)
    return takes_all and not any(nested.values())


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


_HARMLESS = frozenset((
    "cache_control", "diagnostics", "inference_geo", "metadata", "prompt_cache_key", "prompt_cache_retention",
    "safety_identifier", "service_tier", "session_id", "store", "stream_options.include_obfuscation",
    "tools.cache_control", "tools.eager_input_streaming", "user", "user_profile_id", "workspace_id",
))  # fmt: skip
"""Fields of related interfaces that change no answer."""


def refuse_ignored(names: Iterable[str], body: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for the first field without effect that would change the answer if it had one."""
    for name in names:
        if name in _HARMLESS or (name in body and body[name] is None):
            continue
        raise InvalidRequest(f"{name}: this server ignores the field, which the request does not allow", param=name)
