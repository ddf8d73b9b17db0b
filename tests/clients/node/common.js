// Shared by the scenario scripts: where to trace to, how to wait, how to hand back what was seen.
const weave = require('weave');

const project = process.env.SCENARIO_PROJECT;

/** The client of a traced program. */
function start() {
  return weave.init(project);
}

/** Resolves when everything queued so far is on the server. */
async function flush(client) {
  do {
    await new Promise(resolve => setImmediate(resolve));
    await client.waitForBatchProcessing();
  } while (client.callQueue.length > 0 || client.batchProcessingPromises.size > 0);
}

/** Hands what the SDK saw to the test. */
function report(values) {
  console.log('RESULT ' + JSON.stringify(values));
}

module.exports = {weave, project, start, flush, report};
