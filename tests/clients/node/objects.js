// Publishing and reading: plain values, datasets, prompts, ops.
const {weave, start, flush, report} = require('./common');

async function main() {
  const client = await start();
  const first = await client.publish({a: 1, text: 'é', list: [1, 2.5, null, true]}, 'config');
  const second = await client.publish({a: 2}, 'config');
  const dataset = new weave.Dataset({
    name: 'sums',
    description: 'small sums',
    rows: [{id: 0, question: '1+1', expected: 2}, {id: 1, question: '2+3', expected: 5}],
  });
  const datasetRef = await dataset.save();
  const loaded = await client.get(datasetRef);
  const rows = [];
  for await (const row of loaded) rows.push({id: row.id, question: row.question, expected: row.expected});

  const string = new weave.StringPrompt({name: 'string-prompt', content: 'Answer {question}'});
  const stringRef = await client.publish(string);
  const messages = new weave.MessagesPrompt({
    name: 'messages-prompt',
    messages: [{role: 'system', content: 'You are {who}.'}, {role: 'user', content: '{question}'}],
  });
  const messagesRef = await client.publish(messages);
  const stringLoaded = await weave.StringPrompt.get(client, stringRef.uri());
  const messagesLoaded = await weave.MessagesPrompt.get(client, messagesRef.uri());

  const twice = weave.op(function twice(x) { return 2 * x; });
  const opRef = await client.publish(twice);
  const useRow = weave.op(async function useRow(row) { return row.expected + 1; });
  const used = await useRow(dataset.getRow(1));
  await flush(client);
  report({
    digests: [first.digest, second.digest],
    first: await client.get(first),
    second: await client.get(weave.ObjectRef.fromUri(second.uri())),
    dataset: datasetRef.uri(),
    name: loaded.name,
    description: loaded.description,
    length: loaded.length,
    rows,
    string: stringLoaded.format({question: 'it'}),
    messages: messagesLoaded.format({who: 'a poet', question: 'Why?'}),
    op: opRef.uri(),
    used,
  });
}

main();
