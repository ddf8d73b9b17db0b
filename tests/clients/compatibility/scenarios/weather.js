// Shared by the scenarios in Node: the questions, the tool, and the end of a program.
const asked = [];

function getWeather({city}) {
  asked.push(city);
  return '18 degrees';
}

/** The status of a request that must fail. */
async function statusOf(ask) {
  try {
    await ask();
  } catch (error) {
    return error.statusCode ?? error.status ?? error.cause?.statusCode;
  }
  throw new Error('the request should have failed');
}

/** Hands what the client saw to the test. */
function report(values) {
  console.log('RESULT ' + JSON.stringify(values));
}

module.exports = {
  SERVED: 'heddle-tiny',
  MISSING: 'model-missing',
  QUESTION: 'How warm is it in Paris?',
  OBJECT: 'Paris and its temperature as an object.',
  SCHEMA: {
    type: 'object',
    properties: {city: {type: 'string'}, degrees: {type: 'integer'}},
    required: ['city', 'degrees'],
    additionalProperties: false,
  },
  CITY: {type: 'object', properties: {city: {type: 'string'}}, required: ['city']},
  asked,
  getWeather,
  statusOf,
  report,
};
