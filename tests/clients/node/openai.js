// The OpenAI package for node: plain, streamed, tools, structured outputs, log-probabilities, errors, cancelled streams.
const OpenAI = require('openai');

const MODEL = 'heddle-tiny';
const messages = [{role: 'user', content: 'Say something.'}];
const fields = {model: MODEL, messages, max_tokens: 8, temperature: 0, ignore_eos: true};
const weather = {
  type: 'function',
  function: {
    name: 'weather',
    description: 'The sky over a city.',
    strict: true,
    parameters: {
      type: 'object',
      properties: {city: {type: 'string', enum: ['Oslo', 'Lima']}},
      required: ['city'],
      additionalProperties: false,
    },
  },
};
const thing = {
  type: 'object',
  properties: {colour: {enum: ['red', 'blue']}, count: {type: 'integer', minimum: 0, maximum: 99}},
  required: ['colour', 'count'],
  additionalProperties: false,
};

async function failure(client, more) {
  try {
    await client.chat.completions.create({...fields, ...more});
    return {class: null};
  } catch (error) {
    return {class: error.constructor.name, status: error.status, param: error.param, code: error.code};
  }
}

async function streamed(client) {
  const stream = await client.chat.completions.create({...fields, stream: true, stream_options: {include_usage: true}});
  let text = '';
  let usage = null;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? '';
    usage = chunk.usage ?? usage;
  }
  const helper = client.chat.completions.stream(fields);
  let pieces = '';
  helper.on('content', delta => (pieces += delta));
  const final = await helper.finalChatCompletion();
  return {text, usage, pieces, final: final.choices[0].message.content};
}

async function tools(client) {
  const more = {...fields, ignore_eos: false, max_tokens: 80, tools: [weather], parallel_tool_calls: false};
  const first = await client.chat.completions.create({...more, tool_choice: 'required'});
  const message = first.choices[0].message;
  const call = message.tool_calls[0];
  const result = {role: 'tool', tool_call_id: call.id, content: 'cloudy'};
  const after = await client.chat.completions.create({...more, messages: [...messages, message, result], tool_choice: 'none'});
  let ran = null;
  const runner = client.chat.completions.runTools({
    ...more,
    tool_choice: {type: 'function', function: {name: 'weather'}},
    tools: [{type: 'function', function: {...weather.function, parse: JSON.parse, function: given => (ran = given)}}],
  });
  await runner.done();
  return {
    finish: first.choices[0].finish_reason,
    name: call.function.name,
    arguments: JSON.parse(call.function.arguments),
    after: after.choices[0].message.tool_calls ?? null,
    ran,
  };
}

async function structured(client) {
  const form = {type: 'json_schema', json_schema: {name: 'thing', schema: thing, strict: true}};
  const answer = await client.chat.completions.parse({...fields, ignore_eos: false, max_tokens: 100, response_format: form});
  return {finish: answer.choices[0].finish_reason, content: JSON.parse(answer.choices[0].message.content)};
}

async function cancelled(client) {
  for (let round = 0; round < 5; round++) {
    const stream = await client.chat.completions.create({...fields, max_tokens: 1500, stream: true});
    let seen = 0;
    for await (const _ of stream) {
      if (++seen === 3) break;
    }
    stream.controller.abort();
  }
  return {closed: 5};
}

async function main() {
  const client = new OpenAI({maxRetries: 0});
  const answer = await client.chat.completions.create({...fields, logprobs: true, top_logprobs: 2});
  const several = await client.chat.completions.create({...fields, temperature: 1, n: 3, seed: 1});
  const {data, response} = await client.chat.completions.create(fields).withResponse();
  const ids = [];
  for await (const model of client.models.list()) ids.push(model.id);
  const stranger = new OpenAI({maxRetries: 0, defaultHeaders: {authorization: null}});
  const values = {
    text: answer.choices[0].message.content,
    again: data.choices[0].message.content,
    policy: response.headers.get('x-heddle-policy'),
    usage: answer.usage,
    logprobs: answer.choices[0].logprobs.content.map(item => item.top_logprobs.length),
    choices: several.choices.map(choice => choice.index),
    models: ids,
    streamed: await streamed(client),
    tools: await tools(client),
    structured: await structured(client),
    failures: {
      badRequest: await failure(client, {top_p: 2}),
      unprocessable: await failure(client, {temperature: 'hot'}),
      notFound: await failure(client, {model: 'zzz'}),
      unauthenticated: await failure(stranger, {}),
      streamed: await failure(client, {model: 'zzz', stream: true}),
    },
    cancelled: await cancelled(client),
  };
  console.log('RESULT ' + JSON.stringify(values));
}

main();
