// Evaluations that run, with trials, a failing row and a scorer with a column mapping, and one logged by hand.
const {weave, start, flush, report} = require('./common');

const ROWS = [
  {id: '0', question: '1+1', expected: 2},
  {id: '1', question: '2+3', expected: 5},
  {id: '2', question: '2*4', expected: 0},
  {id: '3', question: '?', expected: 1},
];

/** The value of an expression; throws when it is none. */
function valueOf(question) {
  if (question.length !== 3) throw new Error('no expression');
  const [left, sign, right] = question;
  return sign === '+' ? Number(left) + Number(right) : Number(left) * Number(right);
}

async function declarative(client) {
  const dataset = new weave.Dataset({name: 'sums', rows: ROWS});
  const exact = weave.op(async function exact({datasetRow, modelOutput}) {
    return {correct: datasetRow.expected === modelOutput};
  });
  const distance = weave.op(async function distance({datasetRow, modelOutput}) {
    return Math.abs(datasetRow.expected - modelOutput) / 2;
  });
  const evaluation = new weave.Evaluation({name: 'arithmetic', dataset, scorers: [exact, distance]});
  const summaries = [];
  for (const more of [0, 1]) {
    const model = weave.op(async function calculator({datasetRow}) {
      return valueOf(datasetRow.question) + more;
    });
    summaries.push(await evaluation.evaluate({model, nTrials: 2, maxConcurrency: 2}));
    await flush(client);
  }
  return summaries;
}

async function byHand(client) {
  const log = new weave.EvaluationLogger({name: 'by-hand', model: {name: 'hand-model'}, dataset: 'hand-data'});
  for (const [row, output, correct] of [[ROWS[0], 2, true], [ROWS[1], 6, false], [ROWS[1], 5, true]]) {
    const prediction = log.logPrediction(row, output);
    prediction.logScore('correct', correct);
    prediction.logScore('parts', {share: 0.25, label: 'x'});
    await prediction.finish();
  }
  await log.logSummary({note: 'by hand'});
  await flush(client);
}

async function main() {
  const client = await start();
  const summaries = await declarative(client);
  await byHand(client);
  const calls = await client.getCalls();
  const runs = calls.filter(call => call.op_name.includes('/op/Evaluation.evaluate:'));
  report({summaries, runs: runs.map(call => call.id)});
}

main();
