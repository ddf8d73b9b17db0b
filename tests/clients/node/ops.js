// Ops of every kind, attributes, display names, usage, pictures, a wrapped OpenAI client.
const http = require('http');
const OpenAI = require('openai');
const {weave, start, flush, report} = require('./common');

const PICTURE = Buffer.from(
  'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==',
  'base64'
);

/** A provider that answers every chat request in the same way, streamed or whole. */
function provider() {
  const usage = {prompt_tokens: 12, completion_tokens: 3, total_tokens: 15};
  const base = {id: 'chat-1', created: 1700000000, model: 'gpt-4o-2024-08-06'};
  return http.createServer((request, response) => {
    let text = '';
    request.on('data', part => (text += part));
    request.on('end', () => {
      if (JSON.parse(text).stream) {
        response.writeHead(200, {'content-type': 'text/event-stream'});
        for (const content of ['Hel', 'lo']) {
          const choices = [{index: 0, delta: {role: 'assistant', content}, finish_reason: null}];
          response.write(`data: ${JSON.stringify({...base, object: 'chat.completion.chunk', choices})}\n\n`);
        }
        const end = {...base, object: 'chat.completion.chunk', choices: [], usage};
        response.end(`data: ${JSON.stringify(end)}\n\ndata: [DONE]\n\n`);
        return;
      }
      const choices = [{index: 0, message: {role: 'assistant', content: 'Hello'}, finish_reason: 'stop'}];
      response.writeHead(200, {'content-type': 'application/json'});
      response.end(JSON.stringify({...base, object: 'chat.completion', choices, usage}));
    });
  });
}

async function main() {
  const client = await start();
  const double = weave.op(function double(x) { return 2 * x; }, {parameterNames: ['x']});
  const outer = weave.op(async function outer(x, scale) {
    const [first, second] = await Promise.all([double(x), double(x + 1)]);
    return {first: first * scale, second: second * scale, note: 'ünïcode ✓', nothing: null};
  });
  const fails = weave.op(async function fails(reason) { throw new Error(reason); });
  const survives = weave.op(async function survives() {
    try {
      await fails('inner trouble');
    } catch (error) {
      return `caught ${error.message}`;
    }
  });
  const counts = weave.op(
    async function* counts(n) {
      for (let i = 0; i < n; i++) yield i;
    },
    {streamReducer: {initialStateFn: () => [], reduceFn: (state, item) => [...state, item], finalizeFn: () => {}}}
  );
  const shown = weave.op(async text => text.toUpperCase(), {
    name: 'shown',
    callDisplayName: text => `Shown ${text}`,
    summarize: () => ({usage: {'house-model': {prompt_tokens: 10, completion_tokens: 5, requests: 1}}}),
  });
  const paint = weave.op(async function paint(image) { return {image, size: PICTURE.length}; });

  const results = {double: await double(21), outer: await outer(1, 10), survives: await survives()};
  await fails('no luck').catch(error => (results.failure = error.message));
  results.counts = [];
  for await (const item of await counts(3)) results.counts.push(item);
  results.shown = await shown('abc');
  await weave.withAttributes({env: 'production', nested: {level: 3}}, () => double(5));
  await paint(weave.weaveImage({data: PICTURE}));
  const [invoked, call] = await double.invoke(50);
  results.invoked = invoked;

  const server = provider();
  await new Promise(resolve => server.listen(0, '127.0.0.1', resolve));
  const openai = weave.wrapOpenAI(
    new OpenAI({apiKey: 'none', baseURL: `http://127.0.0.1:${server.address().port}/v1`})
  );
  const messages = [{role: 'user', content: 'Say hello'}];
  const answer = await openai.chat.completions.create({model: 'gpt-4o', messages});
  results.answer = answer.choices[0].message.content;
  results.streamed = '';
  const stream = await openai.chat.completions.create({model: 'gpt-4o', messages, stream: true});
  for await (const chunk of stream) results.streamed += chunk.choices[0]?.delta?.content ?? '';
  server.close();
  server.closeAllConnections();

  await flush(client);
  await call.setDisplayName('Fifty');
  await flush(client);
  const seen = await client.getCall(call.id);
  const priced = await client.getCalls({}, true);
  report({
    results,
    id: call.id,
    displayName: seen.display_name,
    output: seen.output,
    count: priced.length,
    limited: (await client.getCalls({}, false, 4)).length,
    roots: (await client.getCalls({trace_roots_only: true})).length,
    costs: Object.fromEntries(
      priced.filter(item => item.summary.weave.costs).map(item => [item.id, item.summary.weave.costs])
    ),
    picture: PICTURE.toString('base64'),
  });
}

main();
