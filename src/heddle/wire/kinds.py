"""What a call is, as people sort calls: decided here, when it is written, from what it says and from its op.

What the calls below it are or used says nothing about it.
"""

import re
from functools import lru_cache
from typing import Any

import orjson

from heddle.wire.refs import operation_name

PLAIN = "fn"
KINDS = ("agent", "tool", "llm", "scorer", "chain", PLAIN)
WORDS = {
    **dict.fromkeys(("agent", "create_agent", "invoke_agent"), "agent"),
    **dict.fromkeys(("tool", "execute_tool", "search", "retriever", "retrieval", "reranker", "rerank"), "tool"),
    **dict.fromkeys(("llm", "chat", "chat_model", "generation", "completion", "text_completion"), "llm"),
    **dict.fromkeys(("generate_content", "embedding", "embeddings"), "llm"),
    **dict.fromkeys(("scorer", "guardrail", "evaluator"), "scorer"),
    **dict.fromkeys(("chain", "workflow", "invoke_workflow", "evaluation"), "chain"),
}
"""What SDKs and conventions of spans call them, in lower case."""
PLACES = (("weave", "kind"), ("kind",))
"""Where the attributes of a call say it; the first word that is known counts."""
NAMES = (
    (r"^Evaluation\.|\.predict_and_score$", "chain"),
    (r"(?i)(^|[._])(scorer?|judge)$", "scorer"),
    (
        r"(?i)(^|[._])(chat\.completions?|completions|responses|messages|embeddings?)[._](create|parse|stream)$"
        r"|(^|\.)(generate_content|chat\.complete|a?completion|completions_create)$",
        "llm",
    ),
)
"""Names of ops that give it away."""
_NAMES = tuple((re.compile(pattern), kind) for pattern, kind in NAMES)


def kind_of(op_name: str, attributes: str) -> str:
    """The kind of a call by its op (a ref or a name) and the JSON text of its attributes."""
    if '"kind"' in attributes:
        said = orjson.loads(attributes)
        for path in PLACES:
            word = _at(said, path)
            if isinstance(word, str) and (known := WORDS.get(word.lower())):
                return known
    return _kind_of_op(op_name)


@lru_cache(maxsize=4096)
def _kind_of_op(op_name: str) -> str:
    name = operation_name(op_name)
    return next((kind for pattern, kind in _NAMES if pattern.search(name)), PLAIN)


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value
