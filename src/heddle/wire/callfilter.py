"""The conditions by which calls are chosen, as every request that chooses calls writes them."""

from typing import Literal

from pydantic import BaseModel


class CallConditions(BaseModel):
    """All conditions must hold; each list is an alternative."""

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


class OrderTerm(BaseModel):
    """One term of an order."""

    field: str
    direction: Literal["asc", "desc"]
