"""The page that tells what works: `python -m tests.clients.compatibility.page` writes it from the results of a run.

Each test of a client leaves its result in `.cache/compatibility`; those of clients that did not run are kept from
`results.json` beside this file.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.clients.compatibility.environments import ROOT
from tests.clients.compatibility.table import CLIENTS, Client, Kind

SEEN = ROOT / ".cache" / "compatibility"
RESULTS = Path(__file__).parent / "results.json"
PAGE = ROOT / "docs" / "compatibility.md"
TITLES: Mapping[Kind, str] = {
    "traces": "Sending traces",
    "models": "Calling heddle's model",
    "texts": "Text completions and embeddings",
    "evaluation": "Prompts, scores, experiments",
    "agents": "Agents on heddle's model",
}
HEAD = """# Compatibility

Unmodified clients in their newest releases, each in its own environment, with nothing changed but the address (and the
project, if a client can name one). Written by `make test-clients`; do not edit.

A client that sends traces asks a model with known answers for the weather in Paris, runs a tool, and asks a model that
does not exist. The checks cover the exact **tree** of calls, the **messages**, the **tokens** (64 cached and 16
reasoning tokens per request), the **cost**, the **thread**, the **user**, the **error**, and the **metrics** of clients
that send them. A client that calls heddle's model is checked for its **answer**, **stream**, **tools**, **structure**
(an object that follows a schema) and **error**. A client for text completions and embeddings must get the same results
as plain HTTP. Agents take nine steps with tools, with access to no network but heddle. The checks cover the **answer**,
the **files** that they wrote, the **requests**, their **tokens**, and that requests and telemetry form one
**conversation**.
"""

TRIED = """## Also tried

By hand, with the same questions; there are no automated tests for these.

| client | version | works |
|---|---|---|
| AgentOps | `agentops` 0.4.21, `openai` 1.109 | its spans: tree, messages, chat, error; not with `openai` 3 |
| agno: OpenAIResponses | `agno` 3.1.10 | asks `/v1/responses`: answer, stream, tools, structure |
| aider | `aider-chat` 0.86.2 | asks: answer, stream |
| aiperf | `aiperf` 0.13.0 | measures: stream, tokens; it needs `--api-key` |
| aisuite | `aisuite` 0.2.0 | asks: answer, stream, tools, error |
| any-llm | `any-llm-sdk` 1.40.2 | asks: answer, stream, tools, structure, responses, error |
| autoevals | `autoevals` 0.4.1 | asks as a judge: tools, score |
| Ax | `@ax-llm/ax` 24.0.21 | asks: answer, stream; its spans: tree, tools, tokens, error; no messages |
| BAML | `baml-py` 0.226.3 | asks `/v1/chat/completions`, `/v1/responses` and `/v1/messages`: answer, stream, error |
| BeeAI | `beeai-framework` 0.1.85 | asks: answer, stream, tools, structure, error; its OpenInference spans |
| browser-use | `browser-use` 0.13.14 | its `ChatOpenAI` asks: answer, structure, error |
| CAMEL | `camel-ai` 0.2.90 | asks: answer, stream, tools, structure, error; its OpenInference spans |
| cerebras | `cerebras_cloud_sdk` 1.91.0 | asks: answer, stream, tools, structure, completion, models, error |
| Claude Agent SDK | `claude-agent-sdk` 0.2.189 | its spans and records: tree, chat, tokens, cost, thread, user |
| deepagents | `deepagents` 0.7.32, `langchain-openai` | asks: tools, answer |
| deepeval | `deepeval` 4.3.1 | asks as model and as embedding: answer, embedding, error |
| distilabel | `distilabel` 1.5.3 | asks: answer, several, a pipeline, error |
| DSPy: BootstrapFewShot, Evaluate | `dspy` 3.4.1 | ask: demonstrations, score |
| ell | `ell-ai` 0.0.17 | asks: answer, several, tools, structure, error |
| evidently | `evidently` 0.7.23 | asks as a judge: answer; not with `pandas` 3 |
| FastMCP | `fastmcp` 4.2.3 | its spans: tree, tools, error; no arguments, no results |
| fireworks | `fireworks-ai` 1.2.30 | asks: answer, stream, tools, structure, error |
| Future AGI | `traceai-openai` 0.1.10 | its spans: tree, messages, chat, thread, user, error |
| Gemini CLI | `@google/gemini-cli` 0.61.0 | its spans: messages, chat, tokens, cost, thread; metrics |
| GitHub Copilot CLI | `@github/copilot` 1.0.102 | asks: tools; its spans: tree, chat, tokens, thread; metrics |
| google-genai: OpenInference | `google-genai` 3.6.1 | its spans: tree, messages, chat, tokens, cost, error |
| gptme | `gptme` 0.35.1 | asks: answer; its spans: tree, messages, chat, tokens, metrics; no thread |
| graphiti | `graphiti-core` 0.31.2 | asks: structure, responses, error; not its reranker |
| griptape | `griptape` 1.13.0 | asks: answer, stream |
| Groq | `groq` 1.7.0 | asks: answer, stream, tools, structure, models, error |
| GuideLLM | `guidellm` 0.8.1 | measures: stream, tokens |
| HoneyHive | `honeyhive` 1.7.0 | its spans: tree, messages, chat, tokens, cost, thread, user, error; no sessions |
| inspect | `inspect-ai` 0.3.285 | asks: answer, tools, structure |
| langmem | `langmem` 0.0.30 | asks: memories by a schema |
| langroid | `langroid` 0.69.16 | asks: answer, stream, tools, error |
| LangChain.js | `@langchain/openai` 1.6.0 | asks: answer, stream, tools, structure, error |
| LangGraph: interrupts | `langgraph` 1.2.24 | its OpenInference spans: tree, messages, chat, tokens, cost, thread |
| LangGraph.js | `@langchain/langgraph` 1.7.3 | its OpenInference spans: tree, messages, tokens |
| langsmith (npm) over OpenTelemetry | `langsmith` 0.12.0 | its spans: messages, chat, tokens, thread, user, error |
| Llama Stack client | `llama_stack_client` 0.7.5 | asks: answer, stream, tools, structure, responses, models, error |
| LlamaIndex.TS | `@llamaindex/openai` 0.4.22 | asks: answer, stream, tools, error |
| lm-eval: local-chat-completions | `lm-eval` 0.4.13 | asks: answer |
| LibreChat, LangChain4j, Spring AI | requests written by hand | ask: answer, stream, tools, structure |
| litellm: proxy | `litellm[proxy]` 1.110.2 | asks all three interfaces; its spans: messages, cost, user, error |
| litellm: `arize_phoenix` | `litellm` 1.108.7 | its spans: tree, messages, tokens, cost, user, error |
| litellm: `langfuse` | `litellm` 1.108.7, `langfuse` 4.18.0 | its spans: messages, tokens, cost, thread, user, error |
| litellm: `otel` | `litellm` 1.108.7 | its spans: user, error; it does not export every request |
| llm: chat completions | `llm` 0.36 | asks: answer, stream, tools, structure, completion, error |
| magentic | `magentic` 0.41.1 | asks: answer, stream, structure |
| mem0 | `mem0ai` 2.2.1 | asks: memories with embeddings, error |
| mini-swe-agent | `mini-swe-agent` 2.4.6 | asks: tools, a task to its end |
| mirascope | `mirascope` 2.8.2 | asks: answer, stream, tools, structure, error |
| mlflow.genai.evaluate | `mlflow` 3.17.2 | its spans: messages, tokens, cost; scores stay in MLflow |
| NeMo Guardrails | `nemoguardrails` 0.24.1 | asks: answer; its spans: tree, messages, tokens |
| Open WebUI | requests written by hand | models, stream, titles; images and files are a 400 on models of text |
| openai: helpers | `openai` 3.57.0 | raw responses, `stream()`, `parse()`, `aiohttp`, timeouts, `allowed_tools` |
| OpenHands SDK | `openhands-sdk` 1.58.2 | asks: tools; its spans: tree, messages, chat, tokens, thread |
| OpenRouter SDK | `@openrouter/sdk` 1.3.19 | asks: stream, error; whole answers need an `audio` that is not null |
| opentelemetry-instrumentation-openai-agents-v2 | 0.1.0 | its spans: tree, error; Python objects as messages |
| openevals | `openevals` 0.2.2 | asks as a judge: structure |
| opencode | `opencode-ai` 1.18.33 | asks: answer, stream, thread |
| Phoenix evals | `arize-phoenix-evals` 3.9.4 | ask as a judge: answer, structure, score |
| pipecat | `pipecat-ai` 1.14.0 | its spans: tree, messages, tokens, thread |
| Portkey SDK | `portkey_ai` 2.3.4 | asks: answer, stream, tools, structure, responses, models, error |
| promptfoo | `promptfoo` 0.121.20 | asks as a provider; its spans: messages, tokens |
| pydantic-evals | `pydantic-evals` 2.62.0 | its spans: tree, messages, tokens |
| Respan | `respan-tracing` 2.24.0 | its spans: tree, chat, thread, user |
| shell-gpt | `shell-gpt` 1.5.1 | asks: answer, stream, error |
| Spring AI | 2.0, by its documentation | its spans, written by hand: tree, tokens, thread, tools; no messages |
| swarms | `swarms` 16.0.3 | asks: tools |
| Together | `together` 3.1.1 | asks: answer, stream, tools, structure, completion, error |
| Traceloop (npm) | `@traceloop/node-server-sdk` 0.27.0 | its spans: tree, messages, chat, thread, user |
| TruLens | `trulens` 2.16.0 | its spans: tree, chat, tokens, thread, error; no messages of requests |
| verifiers | `verifiers` 0.4.0 | its evaluation client asks all three interfaces: answer, stream, error |
| VoltAgent | `@voltagent/core` 2.10.0 | asks: answer, stream, tools, structure, error |
| @ai-sdk/openai-compatible | `ai` 7.0.173 | asks: answer, stream, tools, structure, error; its spans: messages |
| @langfuse/openai, @langfuse/otel | 5.11.1 | its spans: tree, messages, chat, tokens, cost, thread, user, error |
| @arizeai/openinference-instrumentation-openai | 4.2.7 | its spans: tree, messages, chat, tokens, thread, user |
"""


@dataclass(frozen=True, slots=True)
class Result:
    """What was seen of one client."""

    versions: dict[str, str] = field(default_factory=dict)
    runtime: str = ""
    works: list[str] = field(default_factory=list)
    fails: dict[str, str] = field(default_factory=dict)
    """Why, by aspect."""
    skipped: str = ""


def save(client: Client, result: Result) -> None:
    """Leave a result for the page."""
    SEEN.mkdir(parents=True, exist_ok=True)
    (SEEN / f"{client.id}.json").write_text(json.dumps(asdict(result)), encoding="utf-8")


def stored_results() -> dict[str, Result]:
    """The results that the page was last written from."""
    if not RESULTS.exists():
        return {}
    return {name: Result(**values) for name, values in json.loads(RESULTS.read_text(encoding="utf-8")).items()}


def merge_results() -> dict[str, Result]:
    """The stored results of the clients of the table, with those of the last run over them."""
    found = stored_results()
    for path in SEEN.glob("*.json"):
        found[path.stem] = Result(**json.loads(path.read_text(encoding="utf-8")))
    return {client.id: found[client.id] for client in CLIENTS if client.id in found}


def render(results: Mapping[str, Result]) -> str:
    """The page."""
    parts = [HEAD]
    for kind, title in TITLES.items():
        rows = [_row(client, results[client.id]) for client in CLIENTS if client.kind == kind and client.id in results]
        if rows:
            head = ["| client | version | works | does not work, and why |", "|---|---|---|---|"]
            parts.append("\n".join([f"## {title}\n", *head, *rows]) + "\n")
    return "\n".join([*parts, TRIED])


def _row(client: Client, result: Result) -> str:
    if result.skipped:
        return f"| {client.name} | – | – | not tried: {_cell(result.skipped)} |"
    versions = ", ".join(f"`{name}` {version}" for name, version in list(result.versions.items())[:2])
    fails = "; ".join(f"**{aspect}**: {_cell(reason)}" for aspect, reason in result.fails.items())
    return f"| {client.name} | {versions} | {', '.join(result.works) or '–'} | {fails or '–'} |"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def main() -> None:
    """Write the results and the page."""
    results = merge_results()
    values = {name: asdict(result) for name, result in results.items()}
    RESULTS.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(render(results), encoding="utf-8")
    tried = [result for result in results.values() if not result.skipped]
    print(f"docs/compatibility.md: {len(tried)} clients, {sum(not result.fails for result in tried)} without exception")


if __name__ == "__main__":
    main()
