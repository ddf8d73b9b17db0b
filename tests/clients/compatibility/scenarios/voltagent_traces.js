const {report, MISSING, QUESTION} = require('./weather');
const {createOpenAICompatible} = require('@ai-sdk/openai-compatible');
const {OTLPTraceExporter} = require('@opentelemetry/exporter-trace-otlp-http');
const {SimpleSpanProcessor} = require('@opentelemetry/sdk-trace-base');
const {Agent, createTool, VoltAgentObservability} = require('@voltagent/core');
const {z} = require('zod');

const observability = new VoltAgentObservability({
  serviceName: 'program',
  spanProcessors: [new SimpleSpanProcessor(new OTLPTraceExporter())],
});
const provider = createOpenAICompatible({
  name: 'provider',
  baseURL: process.env.OPENAI_BASE_URL,
  apiKey: process.env.OPENAI_API_KEY,
});
const get_weather = createTool({
  name: 'get_weather',
  description: 'The weather of a city.',
  parameters: z.object({city: z.string()}),
  execute: async () => '18 degrees',
});
const about = {instructions: 'Answer in one sentence.', observability};
const told = {userId: 'user-1', conversationId: 'thread-1'};

async function main() {
  const forecaster = new Agent({...about, name: 'forecaster', model: provider('gpt-5-mini'), tools: [get_weather]});
  await forecaster.generateText(QUESTION, told);
  const lost = new Agent({...about, name: 'lost', model: provider(MISSING), maxRetries: 0});
  await lost.generateText(QUESTION, told).catch(() => {});
  await observability.forceFlush();
  report({});
  process.exit(0);
}

main();
