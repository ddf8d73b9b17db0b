// An evaluation that runs, one that is logged by hand, and a score put on a call.
const {weave, start, flush, report} = require('./common');

async function main() {
  const client = await start();
  const rows = [
    {id: '0', question: '1+1', expected: 2},
    {id: '1', question: '2+3', expected: 5},
    {id: '2', question: '2*4', expected: 0},
  ];
  const dataset = new weave.Dataset({name: 'sums', rows});
  const exact = weave.op(async function exact({datasetRow, modelOutput}) {
    return {correct: datasetRow.expected === modelOutput};
  });
  const model = weave.op(async function calculator({datasetRow}) {
    const [left, sign, right] = datasetRow.question;
    return sign === '+' ? Number(left) + Number(right) : Number(left) * Number(right);
  });
  const evaluation = new weave.Evaluation({name: 'arithmetic', dataset, scorers: [exact]});
  const summary = await evaluation.evaluate({model});
  await flush(client);

  const logger = new weave.EvaluationLogger({name: 'by-hand', model: {name: 'hand-model'}, dataset: 'hand-data'});
  for (const [question, output, correct] of [['a', 'A', true], ['b', 'x', false]]) {
    const prediction = logger.logPrediction({question}, output);
    prediction.logScore('correct', correct);
    await prediction.finish();
  }
  await logger.logSummary({note: 'by hand'});
  await flush(client);

  const scorer = weave.op(async function judge(text) { return {length: text.length}; });
  const [, judged] = await model.invoke({datasetRow: {question: '3+3'}});
  const [score, scored] = await scorer.invoke('abc');
  await flush(client);
  const scorerRef = await client.publish(scorer);
  const feedback = await client.addScore(judged.id, scored.id, scorerRef.uri(), score);
  const count = (await client.getCalls()).length;
  report({summary, judged: judged.id, scored: scored.id, feedback, count});
}

main();
