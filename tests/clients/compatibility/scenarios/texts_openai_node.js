const { OpenAI } = require("openai");

const [PROMPT, OTHER, MODEL] = ["the sum of two and three is", "say it again", "heddle-tiny"];
const OPTIONS = { model: MODEL, temperature: 0, max_tokens: 8 };

async function post(path, body) {
  const headers = { authorization: `Bearer ${process.env.OPENAI_API_KEY}`, "content-type": "application/json" };
  const asked = { method: "POST", headers, body: JSON.stringify(body) };
  return (await fetch(process.env.OPENAI_BASE_URL + path, asked)).json();
}

const areNear = (one, other) => one.length === other.length && one.every((a, i) => Math.abs(a - other[i]) < 1e-5);

async function main() {
  const client = new OpenAI({ maxRetries: 0 });
  const raw = await post("/completions", { ...OPTIONS, prompt: [PROMPT, OTHER] });
  const wanted = raw.choices.map((choice) => choice.text);
  const one = await client.completions.create({ ...OPTIONS, prompt: PROMPT });
  const pieces = [];
  for await (const chunk of await client.completions.create({ ...OPTIONS, prompt: PROMPT, stream: true })) {
    pieces.push(chunk.choices[0].text);
  }
  const several = await client.completions.create({ ...OPTIONS, prompt: [PROMPT, OTHER] });
  const found = await client.embeddings.create({ model: MODEL, input: [PROMPT, OTHER] });
  const vectors = await post("/embeddings", { model: MODEL, input: [PROMPT, OTHER] });
  const short = await client.embeddings.create({ model: MODEL, input: PROMPT, dimensions: 8 });
  const refused = await client.embeddings.create({ model: "model-missing", input: PROMPT }).catch((error) => error);
  console.log("RESULT " + JSON.stringify({
    completion: one.choices[0].text === wanted[0],
    stream: pieces.join("") === wanted[0] && pieces.filter(Boolean).length > 1,
    several: JSON.stringify(several.choices.map((choice) => choice.text)) === JSON.stringify(wanted),
    embedding: found.data.every((entry, index) => areNear(entry.embedding, vectors.data[index].embedding)),
    dimensions: short.data[0].embedding.length,
    error: refused.status,
  }));
}

main();
