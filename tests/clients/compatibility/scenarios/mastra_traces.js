const {Agent} = require('@mastra/core/agent');
const {Mastra} = require('@mastra/core/mastra');
const {createTool} = require('@mastra/core/tools');
const {Observability} = require('@mastra/observability');
const {OtelExporter} = require('@mastra/otel-exporter');
const {createOpenAICompatible} = require('@ai-sdk/openai-compatible');
const {z} = require('zod');
const {MISSING, QUESTION, getWeather, report} = require('./weather.js');

async function main() {
  const {HEDDLE_URL, SCENARIO_PROJECT, OPENAI_BASE_URL: baseURL, OPENAI_API_KEY: apiKey} = process.env;
  const provider = createOpenAICompatible({name: 'provider', baseURL, apiKey, includeUsage: true});
  const about = {id: 'forecaster', name: 'forecaster', instructions: 'Answer in one sentence.', maxRetries: 0};
  const inputSchema = z.object({city: z.string()});
  const tool = createTool({id: 'get_weather', description: 'The weather of a city.', inputSchema, execute: getWeather});
  const custom = {endpoint: `${HEDDLE_URL}/v1/traces`, protocol: 'http/protobuf', headers: {project_id: SCENARIO_PROJECT}};
  const mastra = new Mastra({
    agents: {
      forecaster: new Agent({...about, model: provider('gpt-5-mini'), tools: {get_weather: tool}}),
      refused: new Agent({...about, id: 'refused', model: provider(MISSING)}),
    },
    logger: false,
    observability: new Observability({
      configs: {otel: {serviceName: 'program', exporters: [new OtelExporter({provider: {custom}})]}},
    }),
  });
  const tracingOptions = {metadata: {sessionId: 'thread-1', userId: 'user-1'}};
  await mastra.getAgent('forecaster').generate(QUESTION, {tracingOptions});
  try {
    await mastra.getAgent('refused').generate(QUESTION, {tracingOptions});
  } catch {
    await mastra.shutdown();
    report({});
  }
}

main();
