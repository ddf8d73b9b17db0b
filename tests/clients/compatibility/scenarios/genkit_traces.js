const {genkit, z} = require('genkit');
const {enableTelemetry, flushTracing} = require('genkit/tracing');
const {openAICompatible} = require('@genkit-ai/compat-oai');
const {BatchSpanProcessor} = require('@opentelemetry/sdk-trace-base');
const {OTLPTraceExporter} = require('@opentelemetry/exporter-trace-otlp-http');
const {MISSING, QUESTION, getWeather, report} = require('./weather.js');

async function main() {
  await enableTelemetry({spanProcessors: [new BatchSpanProcessor(new OTLPTraceExporter())]});
  const {OPENAI_BASE_URL: baseURL, OPENAI_API_KEY: apiKey} = process.env;
  const ai = genkit({plugins: [openAICompatible({name: 'provider', apiKey, baseURL})]});
  const inputSchema = z.object({city: z.string()});
  const about = {name: 'get_weather', description: 'The weather of a city.', inputSchema, outputSchema: z.string()};
  const tools = [ai.defineTool(about, async (given) => getWeather(given))];
  const system = 'Answer in one sentence.';
  const weather = ai.defineFlow({name: 'weather', inputSchema: z.string(), outputSchema: z.string()}, async (prompt) => {
    return (await ai.generate({model: 'provider/gpt-5-mini', system, prompt, tools})).text;
  });
  await weather(QUESTION);
  try {
    await ai.generate({model: `provider/${MISSING}`, prompt: QUESTION});
  } catch {
    await flushTracing();
    report({});
  }
}

main();
