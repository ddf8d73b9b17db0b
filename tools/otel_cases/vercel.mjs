// The Vercel AI SDK with its telemetry: `node vercel.mjs VERSION CASE`, run inside the folder of its packages.
// Versions 4 to 6 write ai.* attributes, version 7 those of the GenAI conventions.

import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(process.cwd() + "/");
const load = async (name) => import(pathToFileURL(require.resolve(name)).href);

const [version, kase] = process.argv.slice(2);
const { NodeTracerProvider } = await load("@opentelemetry/sdk-trace-node");
const { BatchSpanProcessor } = await load("@opentelemetry/sdk-trace-base");
const { resourceFromAttributes } = await load("@opentelemetry/resources");
const asJson = version === "6";
const { OTLPTraceExporter } = await load(`@opentelemetry/exporter-trace-otlp-${asJson ? "http" : "proto"}`);

const exporter = new OTLPTraceExporter({ url: process.env.RECORDER + "/v1/traces" });
const provider = new NodeTracerProvider({
  resource: resourceFromAttributes({ "service.name": "recorded" }),
  spanProcessors: [new BatchSpanProcessor(exporter)],
});
provider.register();

const providers = version - 3; // the providers' packages have versions of their own
const ai = await load(version === "7" ? "ai" : `ai${version}`);
const { createOpenAI } = await load(`openai${providers}`);
const { createAnthropic } = await load(`anthropic${providers}`);
const { z } = await load(version === "4" ? "zod3" : "zod");
const openai = createOpenAI({ apiKey: "none", baseURL: process.env.PROVIDER + "/v1" });

const settings = { isEnabled: true, functionId: "forecast", metadata: { sessionId: "session-1", userId: "user-1" } };
const telemetry = version === "7" ? { telemetry: settings } : { experimental_telemetry: settings };
if (version === "7") {
  const { OpenTelemetry } = await load("@ai-sdk/otel");
  ai.registerTelemetry(new OpenTelemetry());
}

const schema = z.object({ city: z.string() });
const getWeather = ai.tool({
  description: "The weather of a city.",
  [version === "4" ? "parameters" : "inputSchema"]: schema,
  execute: async () => ({ degrees: 18 }),
});
const model = openai.chat("gpt-5-mini");
const question = { system: "Answer in one sentence.", prompt: "How warm is it in Paris?", ...telemetry };
if (version === "7") {
  question.instructions = question.system;
  delete question.system;
}

const cases = {
  async tools() {
    const steps = version === "4" ? { maxSteps: 3 } : { stopWhen: ai.stepCountIs(3) };
    await ai.generateText({ model, tools: { getWeather }, temperature: 0.5, ...steps, ...question });
  },
  async stream() {
    const result = ai.streamText({ model, ...question });
    for await (const _ of result.textStream);
  },
  async error() {
    await ai.generateText({ model: openai.chat("model-missing"), maxRetries: 0, ...question }).then(
      () => process.exit(1),
      () => undefined,
    );
  },
  async anthropic() {
    const claude = createAnthropic({ apiKey: "none", baseURL: process.env.PROVIDER + "/v1" });
    await ai.generateText({ model: claude("claude-sonnet-4-5"), ...question });
  },
  async embeddings() {
    const embedder = openai.textEmbeddingModel?.("text-embedding-3-small") ?? openai.embedding("text-embedding-3-small");
    await ai.embed({ model: embedder, value: "the weather in Paris", ...telemetry });
  },
};

await cases[kase]();
await provider.shutdown();
