"""The clients that are tried against heddle: one line each, with what is expected of them where it is not the usual.

To add a client, write its scenario in `scenarios/` (a few lines; see `weather.py` and `weather.js` there) and a line
here, then run `make test-clients ONLY=its-name`. `docs/compatibility.md` is written by that run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["traces", "models", "texts", "evaluation", "agents"]

SENTENCE = "It is 18 degrees in Paris."
MISSING = "model-missing"
PARIS = {"city": "Paris"}
OBJECT = {"city": "Paris", "degrees": 18}

TRACES: Mapping[str, Any] = {
    "messages": [
        "system: Answer in one sentence.",
        "user: How warm is it in Paris?",
        'assistant: get_weather {"city": "Paris"}',
        "tool: 18 degrees",
        f"assistant: {SENTENCE}",
    ],
    "chat": ["user: How warm is it in Paris?", 'tool: get_weather {"city": "Paris"}', f"assistant: {SENTENCE}"],
    "tokens": {"input": 240, "output": 60, "cached": 128, "reasoning": 32},
    "cost": 0.0001512,
    "thread": ["thread-1"],
    "user": ["user-1"],
    "error": ["no such model: model-missing"],
}
"""What a program that asks for the weather of Paris leaves in its project, whichever library traces it; `tree` is told
by each client. `messages` is what the page of the last call shows, `chat` the view of the trace."""

MODELS: Mapping[str, Any] = {
    "answer": SENTENCE,
    "stream": {"text": SENTENCE, "in_pieces": True},
    "tools": {"arguments": PARIS, "answer": SENTENCE},
    "structure": {"city": "Paris", "degrees": 18},
    "error": 404,
}
"""What a client reports of heddle's model; it may report more, which is then told by its line."""


TEXTS: Mapping[str, Any] = {"completion": True, "stream": True, "embedding": True, "error": 404}
"""What a client reports of `/v1/completions` and `/v1/embeddings`: whether it has what plain HTTP gives."""


@dataclass(frozen=True, slots=True)
class Client:
    """One client in one use."""

    name: str
    """As readers of the page know it."""
    packages: tuple[str, ...]
    """Requirements as pip or npm takes them; the first one is the client itself."""
    scenario: str
    """A file of `scenarios/`: `.py` for Python, `.js` for Node. Its stem names the environment and the test."""
    kind: Kind
    expected: Mapping[str, Any]
    """The expected value of each aspect."""
    limits: Mapping[str, str] = field(default_factory=dict)
    """Aspects that the client does not have, or that do not work, with the reason. One that works fails the test."""
    python: str = "3.11"
    """The oldest Python that it runs on."""
    over_grpc: bool = False
    """It sends to the gRPC port of the server."""

    @property
    def id(self) -> str:
        """Names the environment, the test and the result."""
        return self.scenario.partition(".")[0]

    @property
    def language(self) -> str:
        """Python or Node."""
        return "Node" if self.scenario.endswith(".js") else "Python"


def _client(kind: Kind, name: str, packages: str, scenario: str, usual: Mapping[str, Any], **other: Any) -> Client:
    """A client whose expected values are the usual ones with others over them; None takes a usual one away."""
    about = {key: other.pop(key) for key in ("limits", "python", "over_grpc") if key in other}
    expected = {aspect: value for aspect, value in {**usual, **other}.items() if value is not None}
    return Client(name, tuple(packages.split()), scenario, kind, expected, **about)


def traces(name: str, packages: str, scenario: str, tree: str, without: str = "", **other: Any) -> Client:
    """A client that sends traces; `without` are the aspects that it does not have, `other` expected values."""
    usual = {"tree": tree, **TRACES, **dict.fromkeys(without.split())}
    return _client("traces", name, packages, scenario, usual, **other)


def models(name: str, packages: str, scenario: str, without: str = "", **other: Any) -> Client:
    """A client that asks heddle's model; `without` are the aspects that it does not have, `other` expected values."""
    return _client("models", name, packages, scenario, {**MODELS, **dict.fromkeys(without.split())}, **other)


def texts(name: str, packages: str, scenario: str, **other: Any) -> Client:
    """A client that asks for text completions or embeddings; `other` are expected values, None for what it has not."""
    return _client("texts", name, packages, scenario, TEXTS, **other)


TOKENS = "each request has tokens of prompt and answer, and cached ones from the third on"
CONVERSATION = "one, of requests and telemetry"
AGENTS: Mapping[str, Any] = {
    "answer": "All nine steps are done.",
    "files": {"notes/all.txt": "one\nTWO\n", "one.txt": "one\n", "two.txt": "two\n"},
    "requests": 10,
    "tokens": TOKENS,
    "conversation": CONVERSATION,
}
"""What an agent makes of nine steps and an answer, all of them in `agents.json`."""


def agents(name: str, packages: str, scenario: str, **other: Any) -> Client:
    """An agent that works with heddle's model alone; `other` are expected values."""
    return _client("agents", name, packages, scenario, AGENTS, **other)


OTLP = "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
QUESTION = "user: How warm is it in Paris?"
SYSTEM, ANSWER = "system: Answer in one sentence.", f"assistant: {SENTENCE}"
CALL = 'get_weather {"city": "Paris"}'
OF_CLAUDE: Mapping[str, Any] = {
    "tokens": {"input": 200, "output": 60, "cached": 128, "reasoning": 0},
    "cost": 0.0011784,
    "messages": [SYSTEM, QUESTION, f"assistant: {CALL}", "user: 18 degrees", ANSWER],
}
"""Anthropic's protocol: results of tools are a user's, caches are counted apart, reasoning is not counted."""
NO_SESSION = "its spans name neither a session nor a user"
NO_SESSIONS = {"thread": NO_SESSION, "user": NO_SESSION}
CONTRIB = f"opentelemetry-instrumentation-openai-v2 opentelemetry-util-genai<1 openai httpx {OTLP}"
GENAI_METRICS = {
    "gen_ai.client.operation.duration": True,
    "gen_ai.client.token.usage": {"input": 240, "output": 60},
}
"""What programs that trace also measure."""
NO_USER = {"user": "it has no notion of a user"}
NO_REASONING = {"tokens": "it does not send reasoning tokens"}
NO_DETAILS = {
    "tokens": "it sends neither cached nor reasoning tokens",
    "cost": "without cached tokens the cost is too high",
}

CLIENTS: Sequence[Client] = (
    traces(
        "OpenInference: openai",
        f"openinference-instrumentation-openai openai {OTLP}",
        "openinference_openai.py",
        "weather > (chatcompletion, chatcompletion); chatcompletion!",
    ),
    traces(
        "OpenInference: langchain",
        f"openinference-instrumentation-langchain langchain langchain-openai {OTLP}",
        "openinference_langchain.py",
        "langgraph > (model > (chatopenai), tools > (get_weather), model > (chatopenai)); chatopenai!",
        chat=[QUESTION, "tool: get_weather Paris", ANSWER],
    ),
    traces(
        "OpenInference: llama-index",
        f"openinference-instrumentation-llama-index llama-index-core llama-index-llms-openai {OTLP}",
        "openinference_llama_index.py",
        "functionagent.run > (baseworkflowagent.init_run, baseworkflowagent.setup_agent, baseworkflowagent.run_agent_step > (openai._prepare_chat_with_tools, openai.achat), baseworkflowagent.parse_agent_output, baseworkflowagent.call_tool > (functiontool.acall), baseworkflowagent.aggregate_tool_results, baseworkflowagent.setup_agent, baseworkflowagent.run_agent_step > (openai._prepare_chat_with_tools, openai.achat), baseworkflowagent.parse_agent_output)",
        "error",
        limits={"chat": "steps of its workflows send Python objects as text instead of messages"},
    ),
    traces(
        "OpenInference: openai-agents",
        f"openinference-instrumentation-openai-agents openai-agents {OTLP}",
        "openinference_openai_agents.py",
        "agent_workflow > (agent_workflow > (forecaster > (turn > (response, get_weather), turn > (response)))); agent_workflow > (agent_workflow > (lost! > (turn > (response!))))",
        messages=[QUESTION, f"assistant: {CALL}", "tool: 18 degrees", ANSWER],
    ),
    traces(
        "OpenInference: dspy",
        f"openinference-instrumentation-dspy dspy {OTLP}",
        "openinference_dspy.py",
        "predict.forward > (predictstringsignature.forward > (chatadapter.__call__ > (lm.__call__))); predict.forward! > (predictstringsignature.forward! > (chatadapter.__call__! > (lm.__call__!)))",
        "messages chat",
        limits={"tokens": "it sends no tokens", "cost": "it sends no tokens"},
    ),
    traces(
        "OpenInference: smolagents",
        f"openinference-instrumentation-smolagents smolagents[openai] {OTLP}",
        "openinference_smolagents.py",
        "toolcallingagent.run > (step_1 > (openaimodel.generate, simpletool), step_2 > (openaimodel.generate, finalanswertool)); openaimodel.generate!",
        "messages",
        limits={
            **NO_DETAILS,
            "chat": "it sends its agent's thoughts as user messages, and tool arguments as those of Python functions",
        },
    ),
    traces(
        "OpenInference: litellm",
        f"openinference-instrumentation-litellm litellm mcp {OTLP}",
        "openinference_litellm.py",
        "weather > (completion, completion); completion!",
    ),
    traces(
        "OpenInference: pydantic-ai",
        f"openinference-instrumentation-pydantic-ai pydantic-ai-slim[openai] {OTLP}",
        "openinference_pydantic_ai.py",
        "forecaster run > (chat_gpt-5-mini, running tool: get_weather, chat_gpt-5-mini); lost run! > (chat_model-missing!)",
        limits=NO_USER,
    ),
    traces(
        "OpenInference: anthropic",
        f"openinference-instrumentation-anthropic anthropic {OTLP}",
        "openinference_anthropic.py",
        "weather > (messages.create, messages.create); messages.create!",
        **{**OF_CLAUDE, "messages": TRACES["messages"]},
    ),
    traces(
        "OpenInference: crewai",
        f"openinference-instrumentation-crewai crewai {OTLP}",
        "openinference_crewai.py",
        "crew_….kickoff > (forecaster._execute_core > (get_weather.run)); crew_….kickoff! > (forecaster._execute_core!)",
        "messages",
        limits={
            "tokens": "it traces no requests",
            "cost": "it traces no requests",
            "chat": "the agent's whole configuration is its first message",
        },
    ),
    traces(
        "OpenInference: agno",
        f"openinference-instrumentation-agno agno openai {OTLP}",
        "openinference_agno.py",
        "forecaster.run > (openaichat.invoke, get_weather, openaichat.invoke); lost.run! > (openaichat.invoke!)",
        error=["run status: error", "no such model: model-missing"],
        limits=NO_REASONING,
    ),
    traces(
        "OpenInference: haystack",
        f"openinference-instrumentation-haystack haystack-ai {OTLP}",
        "haystack_traces.py",
        "agent.run > (chatpromptbuilder.run, openaichatgenerator.run, openaichatgenerator.run); openaichatgenerator.run!",
        limits={**NO_DETAILS, "messages": "it omits tool calls and their results"},
    ),
    traces(
        "arize-phoenix-otel",
        "arize-phoenix-otel openinference-instrumentation-openai openai",
        "phoenix_otel.py",
        "weather > (chatcompletion, chatcompletion); chatcompletion!",
    ),
    traces(
        "OpenLLMetry: openai",
        f"opentelemetry-instrumentation-openai openai {OTLP}",
        "openllmetry_openai.py",
        "weather > (openai.chat, openai.chat); openai.chat!",
        limits=NO_SESSIONS,
    ),
    traces(
        "OpenLLMetry: anthropic",
        f"opentelemetry-instrumentation-anthropic anthropic {OTLP}",
        "openllmetry_anthropic.py",
        "weather > (anthropic.chat, anthropic.chat); anthropic.chat!",
        **OF_CLAUDE,
        limits=NO_SESSIONS,
    ),
    traces(
        "OpenLLMetry: langchain",
        f"opentelemetry-instrumentation-langchain langchain langchain-openai {OTLP}",
        "openllmetry_langchain.py",
        "invoke_agent_langgraph > (langgraph.workflow > (execute_task_model > (chatopenai.chat), execute_task_tools > (execute_tool_get_weather), execute_task_model > (chatopenai.chat))); chatopenai.chat!",
        limits={**NO_SESSIONS, **NO_REASONING},
    ),
    traces(
        "anthropic, its own spans",
        f"anthropic {OTLP}",
        "anthropic_traces.py",
        "weather > (anthropic.messages.create, anthropic.messages.create); anthropic.messages.create!",
        **OF_CLAUDE,
        limits={**NO_SESSIONS, "error": "it sends the class of an error without its message"},
    ),
    traces(
        "pydantic-ai",
        f"pydantic-ai-slim[openai] {OTLP}",
        "pydantic_ai_traces.py",
        "forecaster run > (chat_gpt-5-mini, running tool: get_weather, chat_gpt-5-mini); lost run! > (chat_model-missing!)",
        messages=[SYSTEM, QUESTION, f"assistant: {CALL}", "user: 18 degrees", ANSWER],
        limits=NO_USER,
    ),
    traces(
        "strands-agents",
        f"strands-agents[openai,otel] {OTLP}",
        "strands_traces.py",
        "invoke_agent_forecaster > (execute_event_loop_cycle > (chat, execute_tool_get_weather), execute_event_loop_cycle > (chat)); invoke_agent_lost! > (execute_event_loop_cycle! > (chat!))",
        limits=NO_REASONING,
    ),
    traces(
        "logfire",
        "logfire openai",
        "logfire_traces.py",
        "weather of Paris > (Chat Completion with 'gpt-5-mini', Chat Completion with 'gpt-5-mini'); Chat Completion with 'model-missing'!",
        limits=NO_SESSIONS,
    ),
    traces(
        "logfire, with a token",
        "logfire openai",
        "logfire_token.py",
        "weather of Paris > (Chat Completion with 'gpt-5-mini', Chat Completion with 'gpt-5-mini'); Chat Completion with 'model-missing'!",
        limits=NO_SESSIONS,
    ),
    traces(
        "Laminar",
        "lmnr openai",
        "laminar_traces.py",
        "weather > (openai.chat, openai.chat); lost > (openai.chat!)",
    ),
    traces(
        "LangWatch",
        "langwatch openai",
        "langwatch_traces.py",
        "forecast > (llm, llm)",
        "error",
        limits={"tokens": "it does not send cached tokens", "cost": "without cached tokens the cost is too high"},
    ),
    traces(
        "langfuse",
        "langfuse openai",
        "langfuse_python.py",
        "weather > (openai-generation, openai-generation); openai-generation!",
    ),
    traces(
        "langsmith over OpenTelemetry",
        "langsmith[otel] openai",
        "langsmith_traces.py",
        "weather > (chatopenai, chatopenai)",
        "error",
    ),
    traces(
        "autogen",
        f"autogen-agentchat autogen-ext[openai] openinference-instrumentation-openai {OTLP}",
        "autogen_traces.py",
        "create_agent_forecaster; invoke_agent_forecaster > (chatcompletion, execute_tool_get_weather, chatcompletion); create_agent_lost; invoke_agent_lost! > (chatcompletion!)",
        limits={
            "thread": "spans of its agents name no session, those of requests do",
            "user": "spans of its agents name no user, those of requests do",
            "chat": "it traces the creation of an agent separately, before its run",
        },
    ),
    traces(
        "weave with openai",
        "weave openai gql<4.1",
        "weave_openai.py",
        "weather > (openai.chat.completions.create, openai.chat.completions.create); openai.chat.completions.create!",
        "chat user",
    ),
    traces(
        "weave with litellm",
        "weave litellm mcp gql<4.1",
        "weave_litellm.py",
        "weather > (litellm.completion, litellm.completion); litellm.completion!",
        "chat user",
    ),
    traces(
        "weave with langchain",
        "weave langchain langchain-openai gql<4.1",
        "weave_langchain.py",
        "langchain.Chain.LangGraph > (langchain.Chain.model > (langchain.Llm.ChatOpenAI > (openai.chat.completions.create)), langchain.Chain.tools > (langchain.Tool.get_weather), langchain.Chain.model > (langchain.Llm.ChatOpenAI > (openai.chat.completions.create))); langchain.Llm.ChatOpenAI! > (openai.chat.completions.create!)",
        "chat user",
    ),
    traces(
        "openlit",
        "openlit openai",
        "openlit_traces.py",
        "weather > (chat_gpt-5-mini > (post), chat_gpt-5-mini > (post)); chat_model-missing! > (post)",
        limits={**NO_SESSIONS, **NO_REASONING, "messages": "it omits tool calls"},
    ),
    traces(
        "google-adk",
        f"google-adk litellm mcp {OTLP}",
        "google_adk.py",
        "invoke_workflow_forecaster > (invoke_agent_forecaster > (generate_content_openai_gpt-5-mini, execute_tool_get_weather, generate_content_openai_gpt-5-mini))",
        "error",
        limits={
            "messages": "its spans have no messages",
            "chat": "its spans have no messages",
            "tokens": "it adds reasoning tokens to output tokens that already include them",
            "cost": "it adds reasoning tokens to output tokens that already include them",
            "user": "its spans name no user",
        },
    ),
    traces(
        "semantic-kernel",
        f"semantic-kernel {OTLP}",
        "semantic_kernel_traces.py",
        "invoke_agent_forecaster > (autofunctioninvocationloop > (chat_gpt-5-mini, execute_tool_weather-get_weather, chat_gpt-5-mini)); invoke_agent_lost! > (autofunctioninvocationloop! > (chat_model-missing!))",
        limits={
            **NO_SESSIONS,
            **NO_DETAILS,
            "messages": "its spans have only the question and the answer",
            "chat": "its spans have only the question and the answer, and name a tool with its plugin",
        },
    ),
    traces(
        "agent-framework",
        f"agent-framework-core agent-framework-openai {OTLP}",
        "agent_framework_traces.py",
        "invoke_agent_forecaster > (chat_gpt-5-mini, execute_tool_get_weather, chat_gpt-5-mini); invoke_agent_lost! > (chat_model-missing!)",
        limits={
            **NO_SESSIONS,
            "messages": "its second request continues the first by id, so its spans have only what is new",
        },
    ),
    traces(
        "ag2",
        f"ag2[openai,tracing] {OTLP}",
        "ag2_traces.py",
        "invoke_agent_forecaster > (chat_gpt-5-mini-2025-08-07, record_usage_model_call, execute_tool_get_weather, chat_gpt-5-mini-2025-08-07, record_usage_model_call); invoke_agent_forecaster! > (chat!)",
        limits={**NO_SESSIONS, "messages": "it omits the instructions"},
    ),
    traces(
        "Mastra",
        "@mastra/core @mastra/observability @mastra/otel-exporter @ai-sdk/openai-compatible zod @opentelemetry/exporter-trace-otlp-proto",
        "mastra_traces.js",
        "invoke_agent_forecaster > (model_generation_gpt-5-mini > (agent_step_forecaster > (chat_gpt-5-mini > (model_chunk_forecaster, model_chunk_forecaster), execute_tool_get_weather), agent_step_forecaster > (chat_gpt-5-mini > (model_chunk_forecaster)))); invoke_agent_forecaster! > (model_generation_model-missing > (agent_step_forecaster > (chat_model-missing)))",
        limits={"messages": "spans of its requests have only texts that were answered"},
    ),
    traces(
        "haystack, its own spans",
        f"haystack-ai opentelemetry-haystack {OTLP}",
        "haystack_own_traces.py",
        "haystack.pipeline.run > (agent > (haystack.agent.run > (haystack.agent.step > (haystack.agent.step.llm, haystack.agent.step.tool), haystack.agent.step > (haystack.agent.step.llm)))); haystack.pipeline.run! > (llm!)",
        limits=NO_SESSIONS,
    ),
    traces(
        "LlamaIndex, its own spans",
        "llama-index-observability-otel llama-index-core llama-index-llms-openai-like opentelemetry-exporter-otlp-proto-http",
        "llama_index_own_traces.py",
        "functionagent.run > (baseworkflowagent.init_run, baseworkflowagent.setup_agent, baseworkflowagent.run_agent_step > (openailike._prepare_chat_with_tools, openailike.achat > (openailike.achat)), baseworkflowagent.parse_agent_output, baseworkflowagent.call_tool > (functiontool.acall), baseworkflowagent.aggregate_tool_results, baseworkflowagent.setup_agent, baseworkflowagent.run_agent_step > (openailike._prepare_chat_with_tools, openailike.achat > (openailike.achat)), baseworkflowagent.parse_agent_output); openailike.achat! > (openailike.achat!)",
        limits=NO_SESSIONS,
    ),
    traces(
        "VoltAgent",
        "@voltagent/core @ai-sdk/openai-compatible zod @opentelemetry/exporter-trace-otlp-http @opentelemetry/sdk-trace-base",
        "voltagent_traces.js",
        "forecaster > (Memory Context Read, llmgeneratetext, Persist User Message, get_weather, Persist Conversation Steps, Persist Assistant Message, Persist Conversation Steps, Persist Assistant Message); lost! > (Memory Context Read, llmgeneratetext!, Persist User Message)",
        limits={
            "messages": "spans of its requests have no answers",
            "tokens": "the span of a request has only the tokens of its last step",
            "cost": "the span of a request has only the tokens of its last step",
        },
    ),
    traces(
        "Braintrust",
        "braintrust[otel] openai",
        "braintrust_traces.py",
        "weather > (Chat Completion, get_weather, Chat Completion); Chat Completion!",
        limits={"thread": "it has no notion of a thread"},
    ),
    traces(
        "Genkit",
        "genkit @genkit-ai/compat-oai @opentelemetry/sdk-trace-base@1.25.1 @opentelemetry/exporter-trace-otlp-http@0.52.1",
        "genkit_traces.js",
        "weather > (generate > (provider_gpt-5-mini, get_weather, generate > (provider_gpt-5-mini))); generate! > (provider_model-missing!)",
        limits=NO_SESSIONS,
    ),
    traces(
        "opentelemetry-instrumentation-openai-v2: EVENT_ONLY",
        CONTRIB,
        "contrib_event_only.py",
        "weather > (chat_gpt-5-mini, chat_gpt-5-mini); chat_model-missing!",
        limits={**NO_SESSIONS, **NO_DETAILS},
        metrics=GENAI_METRICS,
    ),
    traces(
        "opentelemetry-instrumentation-openai-v2: SPAN_AND_EVENT",
        CONTRIB,
        "contrib_span_and_event.py",
        "weather > (chat_gpt-5-mini, chat_gpt-5-mini); chat_model-missing!",
        limits={**NO_SESSIONS, **NO_DETAILS},
        metrics=GENAI_METRICS,
    ),
    traces(
        "traceloop-sdk",
        "traceloop-sdk openai httpx",
        "traceloop_sdk.py",
        "weather > (openai.chat, openai.chat); openai.chat!",
        metrics=GENAI_METRICS,
    ),
    traces(
        "opentelemetry-instrument (gRPC)",
        "opentelemetry-distro opentelemetry-exporter-otlp-proto-grpc opentelemetry-instrumentation-openai openai",
        "otel_grpc.py",
        "weather > (openai.chat, openai.chat); openai.chat!",
        limits=NO_SESSIONS,
        over_grpc=True,
    ),
    traces(
        "MLflow (gRPC)",
        "mlflow openai opentelemetry-exporter-otlp-proto-grpc",
        "mlflow_grpc.py",
        "weather > (completions, completions); completions!",
        limits=dict.fromkeys(("thread", "user"), "its spans do not carry the metadata of a trace"),
        over_grpc=True,
    ),
    models("openai", "openai", "openai_python.py", responses=SENTENCE, completion=SENTENCE),
    models("anthropic", "anthropic", "anthropic_models.py", counted=True),
    models("langchain-openai", "langchain-openai langchain", "langchain_models.py", responses=SENTENCE),
    models(
        "llama-index OpenAILike",
        "llama-index-llms-openai-like llama-index-core",
        "llama_index_models.py",
        completion=SENTENCE,
    ),
    models("litellm", "litellm mcp", "litellm_models.py", responses=SENTENCE, completion=SENTENCE),
    models("instructor", "instructor openai", "instructor_models.py", "answer stream tools", by_tool=OBJECT),
    models("pydantic-ai", "pydantic-ai-slim[openai]", "pydantic_ai_models.py", responses=SENTENCE, by_tool=OBJECT),
    models("dspy", "dspy", "dspy_models.py", "stream tools structure"),
    models("smolagents", "smolagents[openai]", "smolagents_models.py", "structure"),
    models("autogen", "autogen-agentchat autogen-ext[openai]", "autogen_models.py"),
    models("ag2", "ag2[openai]", "ag2_models.py", "stream"),
    models("outlines", "outlines openai", "outlines_models.py", "tools", by_vllm=OBJECT),
    models("guidance", "guidance openai", "guidance_models.py", "stream tools structure"),
    models("huggingface_hub", "huggingface_hub", "huggingface_models.py"),
    models("mistralai", "mistralai", "mistralai_models.py"),
    models("haystack", "haystack-ai", "haystack_models.py"),
    models("semantic-kernel", "semantic-kernel", "semantic_kernel_models.py"),
    models(
        "agent-framework",
        "agent-framework-core agent-framework-openai",
        "agent_framework_models.py",
        responses=SENTENCE,
    ),
    models(
        "strands-agents",
        "strands-agents[openai]",
        "strands_models.py",
        "stream structure",
        by_tool=OBJECT,
        limits={"answer": "an agent without tools sends an empty list, which is a 400, as in vLLM"},
    ),
    models("crewai", "crewai", "crewai_models.py", "stream"),
    models("agno", "agno openai", "agno_models.py", error="RunStatus.error"),
    models(
        "@anthropic-ai/sdk",
        "@anthropic-ai/sdk",
        "messages_node.js",
        runner=SENTENCE,
        counted=19,
        models=["heddle-tiny"],
    ),
    models("@ai-sdk/anthropic", "@ai-sdk/anthropic ai", "messages_ai_sdk.js"),
    models("langchain-anthropic", "langchain-anthropic", "messages_langchain.py", counted=True),
    models("pydantic-ai: AnthropicModel", "pydantic-ai-slim[anthropic]", "messages_pydantic_ai.py"),
    models("litellm: anthropic/", "litellm mcp", "messages_litellm.py"),
    models(
        "openai: Responses",
        "openai",
        "responses_openai.py",
        items=["message", "message", "message"],
        background=["completed", SENTENCE],
        conversation=["user", "user", "assistant"],
        counted=True,
        deleted=True,
    ),
    models(
        "openai (npm): Responses",
        "openai",
        "responses_node.js",
        items=["message", "function_call", "function_call_output"],
        background=SENTENCE,
        deleted=True,
    ),
    models("openai-agents", "openai-agents", "responses_openai_agents.py", chained=SENTENCE, session=4),
    models(
        "@openai/agents (npm)",
        "@openai/agents openai zod",
        "openai_agents_node.js",
        chat={"arguments": PARIS, "answer": SENTENCE},
    ),
    models("@ai-sdk/openai", "@ai-sdk/openai ai", "responses_ai_sdk.js", again=SENTENCE),
    models("langchain-openai: use_responses_api", "langchain-openai", "responses_langchain.py", counted=True),
    models("pydantic-ai: OpenAIResponsesModel", "pydantic-ai-slim[openai]", "responses_pydantic_ai.py"),
    models("llm: responses", "llm", "responses_llm.py"),
    models("litellm: responses", "litellm mcp", "responses_litellm.py", stored=SENTENCE),
    models(
        "Open Responses: types of the specification",
        "openresponses-types",
        "responses_openresponses.py",
        limits=dict.fromkeys(MODELS, "not a client: the cases of the specification"),
        cases=10,
        text_events=9,
        call_events=[
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
        ],
    ),
    texts("openai", "openai", "texts_openai.py", several=True, logprobs=True, dimensions=8, usage=20, suffix=400),
    texts("openai (Node)", "openai", "texts_openai_node.js", several=True, dimensions=8),
    texts(
        "llama-index: OpenAILike",
        "llama-index-llms-openai-like llama-index-embeddings-openai-like",
        "texts_llama_index.py",
        several=True,
    ),
    texts("langchain-openai: OpenAI, OpenAIEmbeddings", "langchain-openai", "texts_langchain.py", several=True),
    texts("litellm: text_completion, embedding", "litellm", "texts_litellm.py"),
    texts(
        "lm-eval: local-completions",
        "lm-eval[api] transformers",
        "texts_lm_eval.py",
        stream=None,
        embedding=None,
        error=None,
        loglikelihood=True,
        greedy=True,
    ),
    texts("llm: completion models", "llm", "texts_llm.py", embedding=None, error=True),
    texts(
        "ragas: SemanticSimilarity",
        "ragas openai langchain-community<0.4",
        "texts_ragas.py",
        completion=None,
        stream=None,
        error=None,
        same=1.0,
        other=True,
    ),
    agents("Claude Code", "@anthropic-ai/claude-code", "claude_code.js"),
    agents("Codex CLI", "@openai/codex", "codex.js"),
    agents(
        "Qwen Code",
        "@qwen-code/qwen-code",
        "qwen_code.js",
        limits={"conversation": "its requests do not name their session"},
    ),
    agents("openai-agents", "openai-agents", "openai_agents_task.py", conversation=None),
    traces(
        "langfuse: LangChain",
        "langfuse langchain langchain-openai",
        "langfuse_langchain.py",
        "weather > (model > (chatopenai), tools > (get_weather), model > (chatopenai)); chatopenai!",
    ),
    Client(
        "langfuse: prompts, scores, experiments",
        ("langfuse",),
        "langfuse_api.py",
        "evaluation",
        {
            "checked": True,
            "prompt": [
                1,
                [{"role": "system", "content": "Answer shortly."}, {"role": "user", "content": "hi"}],
                {"model": "m"},
            ],
            "labels": [["blue", "latest", "next"], 2, ["new"], "as it was"],
            "trace": [["ask", "work"], "WHY?", {"input": 3, "output": 2, "total": 5}, "folder/weather"],
            "scores": [["helpful", 0.5], ["mood", "calm"], ["polite", True]],
            "experiment": [["Paris", 1.0], ["Paris", 0.0]],
        },
    ),
    Client(
        "@langfuse/client, @langfuse/tracing",
        (
            "@langfuse/client",
            "@langfuse/tracing",
            "@langfuse/otel",
            "@opentelemetry/sdk-node@<0.300",
            "@opentelemetry/exporter-trace-otlp-http@<0.300",
        ),
        "langfuse_node.js",
        "evaluation",
        {
            "prompt": [1, "Hi Ada", {"a": 1}],
            "trace": ["js trace", "user-1", "thread-1", ["t"], 64],
            "scores": [["liked", 1], ["mood", 0]],
        },
    ),
)
