"""Tools: what a request may ask for, how models write calls, grammars that force calls, parsers that find them."""

from heddle.inference.tools.formats import ToolFormat, detect_format
from heddle.inference.tools.plan import ToolPlan, check_parameters

__all__ = ["ToolFormat", "ToolPlan", "check_parameters", "detect_format"]
