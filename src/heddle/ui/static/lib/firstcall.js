// How the first call comes: lines to copy for each client, with this server's address, and word of it when it has come.
import { h, onCleanup, signal } from "./dom.js";
import { get, post } from "./data.js";
import { attempt, toast } from "./dialog.js";
import { codeBlock, tabs } from "./panels.js";
import { button, dot } from "./parts.js";
import { go, link } from "./router.js";
import { keyHint, keyText, serverAddress, setupLines } from "./setup.js";

const POLL = 2000;

const python = (packages, lines) => (project) => [
  `pip install ${packages}`,
  `export WANDB_BASE_URL=${serverAddress()} WANDB_API_KEY=${keyText()}`,
  "python - <<'END'",
  "import weave",
  `weave.init("${project}")`,
  ...lines,
  "END",
].join("\n");

/**
 * The clients: name in the address, what people call it, the lines for a project.
 * @type {[string, string, (project: string) => string][]}
 */
const CLIENTS = [
  ["python", "Python", setupLines],
  ["javascript", "JavaScript", (project) => [
    "npm install weave",
    `export WF_TRACE_SERVER_URL=${serverAddress()} WANDB_API_KEY=${keyText()} WEAVE_PRINT_CALL_LINK=false`,
    "cat > first.mjs <<'END'",
    'import * as weave from "weave";',
    `await weave.init("${project}");`,
    "const shout = weave.op(async function shout(text) { return text.toUpperCase(); });",
    'await shout("is it stored?");',
    "END",
    "node first.mjs",
  ].join("\n")],
  ["opentelemetry", "OpenTelemetry", (project) => [
    "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http",
    `export OTEL_EXPORTER_OTLP_ENDPOINT=${serverAddress()}`,
    `export OTEL_EXPORTER_OTLP_HEADERS=project_id=${project},wandb-api-key=${keyText()}`,
    "python - <<'END'",
    "from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter",
    "from opentelemetry.sdk.trace import TracerProvider",
    "from opentelemetry.sdk.trace.export import SimpleSpanProcessor",
    "provider = TracerProvider()",
    "provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))",
    'with provider.get_tracer("first").start_as_current_span("shout") as span:',
    '    span.set_attribute("input.value", "is it stored?")',
    "END",
  ].join("\n")],
  ["openai", "OpenAI", python("weave openai", [
    "from openai import OpenAI",
    'OpenAI().chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "Repeat: red sun"}])',
  ])],
  ["langchain", "LangChain", python("weave langchain langchain-openai", [
    "from langchain_openai import ChatOpenAI",
    'ChatOpenAI(model="gpt-4o-mini").invoke("Repeat: red sun")',
  ])],
  ["anthropic", "Anthropic", python("weave anthropic", [
    "from anthropic import Anthropic",
    'Anthropic().messages.create(model="claude-sonnet-4-5", max_tokens=50, messages=[{"role": "user", "content": "Repeat: red sun"}])',
  ])],
  ["langfuse", "Langfuse", (project) => [
    "pip install langfuse",
    `export LANGFUSE_HOST=${serverAddress()} LANGFUSE_PUBLIC_KEY=${project} LANGFUSE_SECRET_KEY=${keyText()}`,
    "python - <<'END'",
    "from langfuse import get_client, observe",
    "@observe()",
    "def shout(text): return text.upper()",
    'shout("is it stored?")',
    "get_client().flush()",
    "END",
  ].join("\n")],
];

/**
 * The lines for each client; `onlive` is called once a call of the project is stored.
 * @param {string} project
 * @param {() => void} onlive
 */
export function firstCall(project, onlive) {
  return h("div.firstcall",
    tabs("Client", CLIENTS.map(([name, text, lines]) => [name, text, () => codeBlock(lines(project))]), "sdk"),
    h("p", keyHint()), waiting(project, onlive),
    h("p", button("Load the example project", () => loadExample(project.split("/")[0]), { iconName: "download", needs: "write" }),
      h("span.dim", " Traces, a dataset, an evaluation and feedback to explore. You can delete it later.")));
}

/** Say that the first call of a project has come. */
export function announce(project) {
  toast(["Live: the first call of ", h("a", { href: link("/traces", {}, project) }, h("b", project)), " has arrived"]);
}

function waiting(project, onlive) {
  const isLive = signal(false);
  const look = async () => {
    if (document.hidden || isLive.peek()) return;
    const { count } = await post("/calls/query_stats", { project_id: project, limit: 1 });
    if (!count || isLive.peek()) return;
    isLive.value = true;
    clearInterval(timer);
    announce(project);
    onlive();
  };
  const timer = setInterval(() => look().catch(() => {}), POLL);
  onCleanup(() => clearInterval(timer));
  return h("p", { role: "status" }, () => (isLive.value
    ? [dot("success"), ` Live: the first call of ${project} has arrived.`]
    : [dot("waiting"), ` Waiting for the first call of ${project}; this page updates by itself.`]));
}

/** Have the server make the example project of an entity, or open the one that is there. */
async function loadExample(entity) {
  const project = `${entity}/example`;
  const { projects } = await get("/_ui/api/projects");
  const isThere = projects.some(({ id, calls }) => id === project && calls);
  if (isThere || await attempt(() => post("/_ui/api/projects/example", { project_id: project }), "Example project loaded")) {
    go(link("", {}, project));
  }
}
