const OpenAI = require('openai');
const {Agent, run, setDefaultOpenAIClient, setOpenAIAPI, setTracingDisabled, tool} = require('@openai/agents');
const {z} = require('zod');
const {MISSING, OBJECT, QUESTION, SERVED, asked, getWeather, report, statusOf} = require('./weather');

setTracingDisabled(true);
setDefaultOpenAIClient(new OpenAI({maxRetries: 0}));
const about = {name: 'forecaster', instructions: 'Answer in one sentence.', model: SERVED};
const weather = tool({
  name: 'get_weather',
  description: 'The weather of a city.',
  parameters: z.object({city: z.string()}),
  execute: getWeather,
});
const object = z.object({city: z.string(), degrees: z.number().int()});

async function streamed() {
  const stream = await run(new Agent(about), QUESTION, {stream: true});
  const pieces = [];
  for await (const piece of stream.toTextStream()) pieces.push(piece);
  await stream.completed;
  return {text: pieces.join(''), in_pieces: pieces.length > 1};
}

async function byTool() {
  asked.length = 0;
  const done = await run(new Agent({...about, tools: [weather]}), QUESTION);
  return {arguments: {city: asked[0]}, answer: done.finalOutput};
}

async function main() {
  setOpenAIAPI('chat_completions');
  const chat = await byTool();
  setOpenAIAPI('responses');
  report({
    chat,
    answer: (await run(new Agent(about), QUESTION)).finalOutput,
    stream: await streamed(),
    tools: await byTool(),
    structure: (await run(new Agent({...about, outputType: object}), OBJECT)).finalOutput,
    error: await statusOf(() => run(new Agent({...about, model: MISSING}), QUESTION)),
  });
}

main();
