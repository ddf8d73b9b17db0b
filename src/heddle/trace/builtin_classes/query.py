"""Queries as parts of stored objects: the same operators as the query language, here as values with classes."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from heddle.trace.builtin_classes.base import BaseModelStrict


class LiteralOperation(BaseModel):
    """A constant."""

    model_config = ConfigDict(populate_by_name=True)
    literal_: str | int | float | bool | dict[str, "LiteralOperation"] | list["LiteralOperation"] | None = Field(
        alias="$literal"
    )


class GetFieldOperator(BaseModel):
    """A dotted path into a row."""

    model_config = ConfigDict(populate_by_name=True)
    get_field_: str = Field(alias="$getField")


class ConvertSpec(BaseModel):
    """An operand and the type to read it as."""

    input: "Operand"
    to: Literal["double", "string", "int", "bool", "exists"]


class ConvertOperation(BaseModel):
    """An operand read as another type."""

    model_config = ConfigDict(populate_by_name=True)
    convert_: ConvertSpec = Field(alias="$convert")


class SizeOperation(BaseModel):
    """The length of a list or a text."""

    model_config = ConfigDict(populate_by_name=True)
    size_: "Operand" = Field(alias="$size")


class AndOperation(BaseModel):
    """All of them."""

    model_config = ConfigDict(populate_by_name=True)
    and_: list["Operand"] = Field(alias="$and")


class OrOperation(BaseModel):
    """At least one of them."""

    model_config = ConfigDict(populate_by_name=True)
    or_: list["Operand"] = Field(alias="$or")


class NotOperation(BaseModel):
    """The opposite."""

    model_config = ConfigDict(populate_by_name=True)
    not_: tuple["Operand"] = Field(alias="$not")


class EqOperation(BaseModel):
    """Equal."""

    model_config = ConfigDict(populate_by_name=True)
    eq_: tuple["Operand", "Operand"] = Field(alias="$eq")


class GtOperation(BaseModel):
    """Greater."""

    model_config = ConfigDict(populate_by_name=True)
    gt_: tuple["Operand", "Operand"] = Field(alias="$gt")


class LtOperation(BaseModel):
    """Less."""

    model_config = ConfigDict(populate_by_name=True)
    lt_: tuple["Operand", "Operand"] = Field(alias="$lt")


class GteOperation(BaseModel):
    """Greater or equal."""

    model_config = ConfigDict(populate_by_name=True)
    gte_: tuple["Operand", "Operand"] = Field(alias="$gte")


class LteOperation(BaseModel):
    """Less or equal."""

    model_config = ConfigDict(populate_by_name=True)
    lte_: tuple["Operand", "Operand"] = Field(alias="$lte")


class InOperation(BaseModel):
    """Membership in a list."""

    model_config = ConfigDict(populate_by_name=True)
    in_: tuple["Operand", list["Operand"]] = Field(alias="$in")


class ContainsSpec(BaseModel):
    """A text to look in and a text to look for."""

    input: "Operand"
    substr: "Operand"
    case_insensitive: bool | None = False


class ContainsOperation(BaseModel):
    """A text inside a text."""

    model_config = ConfigDict(populate_by_name=True)
    contains_: ContainsSpec = Field(alias="$contains")


Operation = (
    AndOperation
    | OrOperation
    | NotOperation
    | EqOperation
    | GtOperation
    | LtOperation
    | GteOperation
    | LteOperation
    | InOperation
    | ContainsOperation
)
Operand = LiteralOperation | GetFieldOperator | ConvertOperation | SizeOperation | Operation


class Query(BaseModel):
    """One operation at the top."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)
    expr_: Operation = Field(alias="$expr")


class SortBy(BaseModelStrict):
    """One term of an order."""

    field: str
    direction: Literal["asc", "desc"]


class CallsFilter(BaseModelStrict):
    """Which calls a view shows."""

    op_names: list[str] | None = None
    input_refs: list[str] | None = None
    output_refs: list[str] | None = None
    parent_ids: list[str] | None = None
    trace_ids: list[str] | None = None
    call_ids: list[str] | None = None
    thread_ids: list[str] | None = None
    turn_ids: list[str] | None = None
    trace_roots_only: bool | None = None
    wb_user_ids: list[str] | None = None
    wb_run_ids: list[str] | None = None


_types: dict[str, Any] = globals()
for _model in (ConvertSpec, ContainsSpec, *Operand.__args__, Query):
    _model.model_rebuild(_types_namespace=_types)
