// Asking a model: the request of a column, and its answer as it comes.
import { lines, postProject } from "../lib/data.js";
import { fromOpenai } from "../lib/messages.js";
import { jsonField, wireOf } from "./playground_state.js";

const REDRAW = 60;

/** The request of a column, as the completions route wants it; raises for invalid JSON. */
export function requestOf(state, column) {
  const { stop, tool_choice: toolChoice, ...parameters } = column.parameters.peek();
  const tools = jsonField(state.tools.peek(), "Tools");
  const schema = jsonField(state.schema.peek(), "Structured output");
  const inputs = /** @type {any} */ ({
    model: column.model.peek().trim(),
    ...parameters,
    messages: [...state.messages.peek().map((draft) => wireOf(draft, state.values.peek())), ...column.tail.peek()],
  });
  if (stop) inputs.stop = stop.split("\n").filter(Boolean);
  if (inputs.logprobs) inputs.top_logprobs = 5;
  if (tools?.length) Object.assign(inputs, { tools }, toolChoice ? { tool_choice: toolChoice } : {});
  if (schema) inputs.response_format = { type: "json_schema", json_schema: { name: "answer", schema, strict: true } };
  return inputs;
}

/** Run a column; its `answer` changes while the answer comes. Never raises: failures are part of the answer. */
export async function runColumn(state, column) {
  column.abort?.abort();
  const mine = (column.abort = new AbortController());
  const answer = {
    state: "running",
    choices: [],
    error: "",
    meta: null,
    usage: null,
    chunks: 0,
    started: performance.now(),
    first: 0,
    ended: 0,
    dollars: null,
  };
  let waiting = 0;
  const show = () => {
    waiting = 0;
    if (column.abort === mine) column.answer.value = { ...answer };
  };
  const soon = () => {
    waiting ||= setTimeout(show, REDRAW);
  };
  show();
  try {
    await lines(
      "/completions/create_stream",
      { inputs: requestOf(state, column), source: "playground" },
      (batch) => {
        for (const chunk of batch) addChunk(answer, chunk);
        soon();
      },
      mine.signal,
    );
    answer.state = answer.error ? "failed" : "done";
  } catch (error) {
    answer.state = error.name === "AbortError" ? "stopped" : "failed";
    if (answer.state === "failed") answer.error = error.message + (error.requestId ? ` (request ${error.requestId})` : "");
  }
  answer.ended = performance.now();
  clearTimeout(waiting);
  show();
  if (answer.meta && answer.state === "done") readCost(column, mine, answer);
}

/** What the stored call says that the answer cost; models without a price say nothing. */
async function readCost(column, mine, answer) {
  try {
    const { call } = await postProject("/call/read", { id: answer.meta.weave_call_id, include_costs: true });
    const costs = Object.values(call?.summary?.weave?.costs ?? {});
    const sum = costs.reduce(
      (all, cost) => all + (cost.prompt_tokens_total_cost ?? 0) + (cost.completion_tokens_total_cost ?? 0),
      0,
    );
    if (costs.length && column.abort === mine) column.answer.value = { ...answer, dollars: sum };
  } catch {
    // The answer stands without its cost.
  }
}

function addChunk(answer, chunk) {
  if (chunk._meta) answer.meta = chunk._meta;
  if (chunk.error)
    answer.error = typeof chunk.error === "string" ? chunk.error : (chunk.error.message ?? JSON.stringify(chunk.error));
  if (chunk.usage) answer.usage = chunk.usage;
  for (const part of chunk.choices ?? []) {
    const choice = (answer.choices[part.index ?? 0] ??= {
      message: { role: "assistant", content: "", tool_calls: [] },
      finish_reason: null,
      logprobs: { content: [] },
    });
    addDelta(choice, part);
    if (part.delta && (part.delta.content || part.delta.reasoning || part.delta.tool_calls)) {
      answer.first ||= performance.now();
      answer.chunks++;
    }
  }
}

function addDelta(choice, { delta: given, finish_reason: finish, logprobs }) {
  const delta = given ?? /** @type {any} */ ({});
  const { message } = choice;
  if (delta.content) message.content += delta.content;
  const thought = delta.reasoning ?? delta.reasoning_content;
  if (thought) message.reasoning = (message.reasoning ?? "") + thought;
  for (const part of delta.tool_calls ?? []) {
    const call = (message.tool_calls[part.index ?? message.tool_calls.length] ??= {
      id: "",
      type: "function",
      function: { name: "", arguments: "" },
    });
    if (part.id) call.id = part.id;
    call.function.name += part.function?.name ?? "";
    call.function.arguments += part.function?.arguments ?? "";
  }
  if (finish) choice.finish_reason = finish;
  if (logprobs?.content) choice.logprobs.content.push(...logprobs.content);
}

/** The choices of an answer as the chat view shows them. */
export const choicesOf = (answer) =>
  answer.choices.filter(Boolean).map(({ message, finish_reason: reason, logprobs }) => ({
    messages: [fromOpenai(message)],
    finish_reason: reason ?? "",
    logprobs: logprobs.content.length ? logprobs.content : null,
  }));

/** A choice as a message of the wire, to go on from. */
export function wireChoice(answer, index = 0) {
  const { role, content, tool_calls: calls } = answer.choices[index].message;
  return { role, content: content || (calls.length ? null : ""), ...(calls.length ? { tool_calls: calls } : {}) };
}

/** Seconds to the first token, and tokens per second after it. */
export function speedOf(answer) {
  const first = answer.first ? (answer.first - answer.started) / 1000 : null;
  const tokens = answer.usage?.completion_tokens ?? answer.chunks;
  const seconds = answer.first && answer.ended ? (answer.ended - answer.first) / 1000 : 0;
  return { first, rate: seconds > 0.001 && tokens > 1 ? (tokens - 1) / seconds : null };
}
