"""The two fields of a chat request that constrain its output."""

from typing import Any, Literal

from pydantic import BaseModel, Field, StrictBool, StrictStr


class StructuredOutputs(BaseModel):
    """Exactly one constraint, and switches that say how it is met."""

    json_schema: StrictStr | dict[str, Any] | StrictBool | None = Field(
        default=None, alias="json", description="A JSON Schema, as an object or as its text."
    )
    regex: StrictStr | None = Field(default=None, description="A regular expression for the whole output.")
    choice: list[StrictStr] | None = Field(default=None, description="The output is one of these texts.")
    grammar: StrictStr | None = Field(default=None, description="A grammar in EBNF (GBNF) or Lark syntax.")
    json_object: StrictBool | None = Field(default=None, description="Any JSON object.")
    structural_tag: StrictStr | dict[str, Any] | None = Field(
        default=None, description="Free text with constrained parts, as an object or as its text."
    )
    disable_fallback: StrictBool | None = Field(
        default=None, description="Refuse the request when the compiler named in `_backend` is not the one used."
    )
    disable_any_whitespace: StrictBool | None = Field(
        default=None, description="Compact JSON: no whitespace between tokens."
    )
    disable_additional_properties: StrictBool | None = Field(
        default=None, description="Objects hold only the properties that the schema names, unless it says otherwise."
    )
    whitespace_pattern: StrictStr | None = Field(
        default=None, description="A regular expression for the whitespace between two tokens of JSON."
    )
    backend: StrictStr | None = Field(default=None, alias="_backend", description="auto, guidance or llguidance.")
    backend_was_auto: StrictBool | None = Field(
        default=None, alias="_backend_was_auto", description="`_backend` was not chosen by the client."
    )


class JsonSchemaFormat(BaseModel):
    """A named JSON Schema."""

    name: StrictStr
    description: StrictStr | None = None
    json_schema: dict[str, Any] | StrictBool | None = Field(default=None, alias="schema")
    strict: StrictBool | None = None


class ResponseFormat(BaseModel):
    """What form the answer has; decides over `structured_outputs`."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    format: dict[str, Any] | None = Field(default=None, description="Tree of a structural tag.")
    structures: list[dict[str, Any]] | None = Field(default=None, description="Older form of a structural tag.")
    triggers: list[StrictStr] | None = None
