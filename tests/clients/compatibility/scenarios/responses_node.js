const OpenAI = require('openai');
const {SERVED, MISSING, QUESTION, OBJECT, SCHEMA, CITY, getWeather, statusOf, report} = require('./weather.js');

async function main() {
  const client = new OpenAI({maxRetries: 0});
  const common = {model: SERVED, input: QUESTION};
  const answer = await client.responses.create(common);
  const pieces = [];
  for await (const event of await client.responses.create({...common, stream: true})) {
    if (event.type === 'response.output_text.delta') pieces.push(event.delta);
  }
  const tools = [{type: 'function', name: 'get_weather', parameters: CITY, strict: false}];
  const first = await client.responses.create({...common, tools});
  const call = first.output[0];
  const args = JSON.parse(call.arguments);
  const result = {type: 'function_call_output', call_id: call.call_id, output: getWeather(args)};
  const final = await client.responses.create({...common, input: [result], tools, previous_response_id: first.id});
  const format = {type: 'json_schema', name: 'weather', schema: SCHEMA, strict: true};
  const structure = await client.responses.parse({...common, input: OBJECT, text: {format}});
  const items = await client.responses.inputItems.list(final.id, {order: 'asc'});
  let working = await client.responses.create({...common, background: true});
  while (['queued', 'in_progress'].includes(working.status)) working = await client.responses.retrieve(working.id);
  report({
    answer: answer.output_text,
    stream: {text: pieces.join(''), in_pieces: pieces.length > 1},
    tools: {arguments: args, answer: final.output_text},
    structure: structure.output_parsed,
    error: await statusOf(() => client.responses.create({...common, model: MISSING})),
    items: items.data.map((item) => item.type),
    background: working.output_text,
    deleted: (await client.responses.delete(answer.id)) !== null,
  });
}

main();
