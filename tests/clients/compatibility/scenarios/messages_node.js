const Anthropic = require('@anthropic-ai/sdk');
const {betaTool} = require('@anthropic-ai/sdk/helpers/beta/json-schema');
const {SERVED, MISSING, QUESTION, OBJECT, SCHEMA, CITY, asked, getWeather, statusOf, report} = require('./weather.js');

async function main() {
  const client = new Anthropic({maxRetries: 0});
  const messages = [{role: 'user', content: QUESTION}];
  const common = {model: SERVED, max_tokens: 1024, messages};
  const answer = (await client.messages.create(common)).content[0].text;
  const pieces = [];
  const stream = client.messages.stream(common).on('text', text => pieces.push(text));
  const streamed = await stream.finalMessage();

  const tools = [{name: 'get_weather', description: 'The weather of a city.', input_schema: CITY}];
  const called = await client.messages.create({...common, tools});
  const call = called.content.find(block => block.type === 'tool_use');
  const result = {type: 'tool_result', tool_use_id: call.id, content: getWeather(call.input)};
  const turns = [...messages, {role: 'assistant', content: called.content}, {role: 'user', content: [result]}];
  const final = (await client.messages.create({...common, messages: turns, tools})).content[0].text;

  const run = betaTool({name: 'get_weather', description: 'The weather of a city.', inputSchema: CITY, run: getWeather});
  const runner = await client.beta.messages.toolRunner({...common, tools: [run]});

  const format = {type: 'json_schema', schema: SCHEMA};
  const wanted = [{role: 'user', content: OBJECT}];
  const structure = await client.messages.create({...common, messages: wanted, output_config: {format}});
  const counted = await client.messages.countTokens({model: SERVED, messages});
  const models = [];
  for await (const model of client.models.list()) models.push(model.id);
  report({
    answer,
    stream: {text: pieces.join(''), in_pieces: pieces.length > 1 && streamed.content[0].text === pieces.join('')},
    tools: {arguments: {city: asked[0]}, answer: final},
    structure: JSON.parse(structure.content[0].text),
    error: await statusOf(() => client.messages.create({...common, model: MISSING})),
    runner: runner.content[0].text,
    counted: counted.input_tokens,
    models,
  });
}

main();
