"""How each instrumentation library writes models, messages, tools and tokens.

Tokens are normalised: `input_tokens` has the cached tokens inside, and each convention says what its libraries send.
"""

from heddle.trace.otel.conventions.convention import Convention
from heddle.trace.otel.conventions.frameworks import (
    AG2,
    CLAUDE_CODE,
    LIVEKIT,
    MASTRA,
    NEMO_GUARDRAILS,
    PIPECAT,
    SPRING_AI,
    VERCEL,
    VOLTAGENT,
)
from heddle.trace.otel.conventions.genai import GENAI, OPENLLMETRY, WEAVE
from heddle.trace.otel.conventions.google import ADK, GEMINI_CLI, GENKIT
from heddle.trace.otel.conventions.platforms import (
    AGENTOPS,
    BRAINTRUST,
    DEEPEVAL,
    FUTURE_AGI,
    HONEYHIVE,
    LAMINAR,
    LANGWATCH,
    PROMPTFOO,
    TRULENS,
)
from heddle.trace.otel.conventions.products import LANGFUSE, LANGSMITH, LOGFIRE, MLFLOW, OPENINFERENCE
from heddle.trace.otel.conventions.rag import HAYSTACK, LLAMA_INDEX

CONVENTIONS: tuple[Convention, ...] = (
    WEAVE,
    VERCEL,
    VOLTAGENT,
    SPRING_AI,
    OPENLLMETRY,
    FUTURE_AGI,
    OPENINFERENCE,
    LOGFIRE,
    MLFLOW,
    ADK,
    GENKIT,
    GEMINI_CLI,
    LANGFUSE,
    LANGSMITH,
    MASTRA,
    LIVEKIT,
    PIPECAT,
    HAYSTACK,
    LLAMA_INDEX,
    AG2,
    CLAUDE_CODE,
    LAMINAR,
    LANGWATCH,
    AGENTOPS,
    PROMPTFOO,
    DEEPEVAL,
    BRAINTRUST,
    HONEYHIVE,
    TRULENS,
    NEMO_GUARDRAILS,
    GENAI,
)
"""In the order of reading: those with names of their own before the general one, whose names many of them write too."""
