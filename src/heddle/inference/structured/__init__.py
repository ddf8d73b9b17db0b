"""Structured outputs: from the fields of a request to a grammar, checked before it reaches an engine."""

from heddle.inference.structured.build import constraint_for
from heddle.inference.structured.lark import json_rule
from heddle.inference.structured.models import ResponseFormat, StructuredOutputs

__all__ = ["ResponseFormat", "StructuredOutputs", "constraint_for", "json_rule"]
