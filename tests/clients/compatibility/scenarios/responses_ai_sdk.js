const {generateText, jsonSchema, Output, stepCountIs, streamText, tool} = require('ai');
const {createOpenAI} = require('@ai-sdk/openai');
const {SERVED, MISSING, QUESTION, OBJECT, SCHEMA, CITY, asked, getWeather, statusOf, report} = require('./weather.js');

async function main() {
  const openai = createOpenAI({});
  const common = {model: openai(SERVED), maxRetries: 0, prompt: QUESTION};
  const answer = (await generateText(common)).text;
  const pieces = [];
  for await (const piece of streamText(common).textStream) pieces.push(piece);

  const weather = tool({description: 'The weather of a city.', inputSchema: jsonSchema(CITY), execute: getWeather});
  const final = await generateText({...common, tools: {get_weather: weather}, stopWhen: stepCountIs(3)});
  const structure = await generateText({...common, prompt: OBJECT, output: Output.object({schema: jsonSchema(SCHEMA)})});
  const history = [{role: 'user', content: QUESTION}, ...final.response.messages, {role: 'user', content: 'Thank you.'}];
  const again = await generateText({...common, prompt: undefined, messages: history});
  report({
    again: again.text,
    answer,
    stream: {text: pieces.join(''), in_pieces: pieces.length > 1},
    tools: {arguments: {city: asked[0]}, answer: final.text},
    structure: structure.output,
    error: await statusOf(() => generateText({...common, model: openai(MISSING)})),
  });
}

main();
