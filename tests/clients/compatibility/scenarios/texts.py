"""Shared by the scenarios of text completions and embeddings: the same request over plain HTTP, to compare with."""

import json
import math
import os
import urllib.request
from typing import Any

from weather import MISSING, SERVED, refused, report, status_of

__all__ = ["MISSING", "SERVED", "refused", "report", "status_of"]

PROMPT, OTHER = "the sum of two and three is", "say it again"
OPTIONS: dict[str, Any] = {"temperature": 0, "max_tokens": 8}
ADDRESS = os.environ["OPENAI_BASE_URL"]
KEY = os.environ["OPENAI_API_KEY"]


def post(path: str, **body: Any) -> Any:
    """The answer to a request without any client."""
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    request = urllib.request.Request(ADDRESS + path, json.dumps({"model": SERVED, **body}).encode(), headers)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        return json.loads(answer.read())


def texts(prompt: Any = PROMPT, **more: Any) -> list[str]:
    """The texts of a completion."""
    return [choice["text"] for choice in post("/completions", prompt=prompt, **{**OPTIONS, **more})["choices"]]


def vectors(*given: str, **more: Any) -> list[list[float]]:
    """The embeddings of texts."""
    return [entry["embedding"] for entry in post("/embeddings", input=list(given), **more)["data"]]


def are_near(one: Any, other: Any) -> bool:
    """Whether two lists of numbers are the same but for the last bits."""
    return len(one) == len(other) and all(math.isclose(a, b, abs_tol=1e-5) for a, b in zip(one, other, strict=True))


def cosine(one: list[float], other: list[float]) -> float:
    """How near two vectors of length 1 are."""
    return sum(a * b for a, b in zip(one, other, strict=True))
