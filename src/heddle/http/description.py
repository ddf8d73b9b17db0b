"""What the OpenAPI description tells of routes."""

from collections.abc import Iterable
from functools import cache
from typing import Any

from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

import heddle
from heddle.http.routing import Route


def body_schema(model: type[BaseModel]) -> Any:
    """The OpenAPI request body of a route that decodes its body itself, made when the description is asked for."""

    @cache
    def with_description() -> dict[str, Any]:
        schema = model.model_json_schema()
        schema = _inline(schema, schema.get("$defs", {}))
        return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}

    return with_description


def _inline(schema: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_inline(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inline(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {key: _inline(item, definitions) for key, item in schema.items() if key not in ("$defs", "discriminator")}


def describe_routes(routes: Iterable[Route]) -> dict[str, Any]:
    """The OpenAPI description of routes, with what is left out of serving them; it takes seconds for all."""
    described = [route.with_description() for route in routes]
    return get_openapi(title="heddle", version=heddle.__version__, routes=described)
