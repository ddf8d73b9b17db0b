"""How each family of instrumentation libraries writes models, messages, tools and tokens; one file per family.

Tokens are normalised: `input_tokens` has the cached tokens inside, and each family's file says what its libraries send.
"""

from heddle.trace.otel.conventions import (
    adk,
    genai,
    langfuse,
    logfire,
    mlflow,
    openinference,
    openllmetry,
    vercel,
    weave,
)
from heddle.trace.otel.conventions.convention import Convention

CONVENTIONS: tuple[Convention, ...] = tuple(
    module.CONVENTION for module in (weave, vercel, openllmetry, openinference, logfire, mlflow, adk, langfuse, genai)
)
"""In the order of reading: those with names of their own before the general one, whose names many of them write too."""
