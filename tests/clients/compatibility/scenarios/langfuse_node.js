const { NodeSDK } = require('@opentelemetry/sdk-node');
const { LangfuseSpanProcessor } = require('@langfuse/otel');
const { propagateAttributes, startActiveObservation } = require('@langfuse/tracing');
const { LangfuseClient } = require('@langfuse/client');
const { report } = require('./weather.js');

Object.assign(process.env, {
  LANGFUSE_BASE_URL: process.env.HEDDLE_URL,
  LANGFUSE_PUBLIC_KEY: process.env.SCENARIO_PROJECT,
  LANGFUSE_SECRET_KEY: process.env.OPENAI_API_KEY,
});

async function main() {
  const sdk = new NodeSDK({ spanProcessors: [new LangfuseSpanProcessor()] });
  sdk.start();
  const client = new LangfuseClient();
  await client.prompt.create({ name: 'js/greet', prompt: 'Hi {{name}}', labels: ['production'], config: { a: 1 } });
  const prompt = await client.prompt.get('js/greet', { cacheTtlSeconds: 0 });
  const told = { userId: 'user-1', sessionId: 'thread-1', tags: ['t'], traceName: 'js trace' };
  let traceId;
  await startActiveObservation('weather', async (span) => {
    span.update({ input: { q: 1 }, output: 'done' });
    await propagateAttributes(told, () =>
      startActiveObservation(
        'llm',
        async (one) => {
          const usageDetails = { prompt_tokens: 100, completion_tokens: 20, prompt_tokens_details: { cached_tokens: 64 } };
          one.update({ model: 'gpt-5-mini', input: 'hi', output: 'yo', usageDetails, prompt });
        },
        { asType: 'generation' },
      ),
    );
    traceId = span.traceId;
    client.score.trace(span, { name: 'liked', value: 1, dataType: 'BOOLEAN' });
  });
  client.score.create({ name: 'mood', value: 'calm', traceId });
  await client.flush();
  await sdk.shutdown();
  const trace = await client.api.trace.get(traceId);
  const { usageDetails } = trace.observations.find((one) => one.name === 'llm');
  report({
    prompt: [prompt.version, prompt.compile({ name: 'Ada' }), prompt.config],
    trace: [trace.name, trace.userId, trace.sessionId, trace.tags, usageDetails.input_cached_tokens],
    scores: trace.scores.map((one) => [one.name, one.value]).sort(),
  });
}

main();
