// What the playground holds: one prompt, up to four columns that answer it, and the draft that survives a reload.
import { effect, signal } from "../lib/dom.js";
import { stored } from "../lib/data.js";
import { parseJson } from "../lib/exactjson.js";
import { projectId } from "../lib/router.js";

/**
 * @template T
 * @typedef {import("../lib/dom.js").Signal<T>} Signal
 */
/**
 * @typedef {{id: number, role: string, text: string, parts: any[], toolCalls: any[], toolCallId: string,
 *   name: string}} Draft
 * @typedef {Record<string, any>} Parameters
 * @typedef {{id: number, model: Signal<string>, parameters: Signal<Parameters>, tail: Signal<any[]>, answer: Signal<any>, saved: Signal<any>,
 *   abort: AbortController|null}} Column
 */

export const MOST_COLUMNS = 4;
const PLACEHOLDER = /(?<!\{)\{(\w{1,64})\}(?!\})/g;
let next = 1;

/** A message of OpenAI's wire as what the editor edits: a text, and parts that it only keeps. */
export function draftOf(wire) {
  const parts = Array.isArray(wire.content) ? wire.content : [];
  const texts = parts.filter((part) => part.type === "text").map((part) => part.text);
  return {
    id: next++,
    role: wire.role ?? "user",
    text: parts.length ? texts.join("\n\n") : String(wire.content ?? ""),
    parts: parts.filter((part) => part.type !== "text"),
    toolCalls: wire.tool_calls ?? [],
    toolCallId: wire.tool_call_id ?? "",
    name: wire.name ?? "",
  };
}

/** The message that is sent, its variables filled in; names without a value stay as they are. */
export function wireOf(draft, values = {}) {
  const text = draft.text.replace(PLACEHOLDER, (whole, name) => (values[name] ? values[name] : whole));
  const wire = /** @type {any} */ ({
    role: draft.role,
    content: draft.parts.length ? [{ type: "text", text }, ...draft.parts] : text,
  });
  if (draft.name) wire.name = draft.name;
  if (draft.role === "tool") wire.tool_call_id = draft.toolCallId;
  if (draft.toolCalls.length) wire.tool_calls = draft.toolCalls;
  return wire;
}

/** The names in braces that a prompt has, in order. */
export function placeholders(messages) {
  return [...new Set(messages.flatMap((draft) => [...draft.text.matchAll(PLACEHOLDER)].map((found) => found[1])))];
}

const START = {
  messages: [
    { role: "system", content: "You are a helpful assistant." },
    { role: "user", content: "" },
  ],
  tools: "",
  schema: "",
  values: {},
  columns: [{ model: "", parameters: {} }],
  source: "",
  origin: null,
};

/** The state of the open project's playground. */
export function playgroundState() {
  const kept = stored(`playground.${projectId()}`, START);
  const first = { ...START, ...kept.peek() };
  const state = {
    messages: signal(/** @type {Draft[]} */ (first.messages.map(draftOf))),
    tools: signal(first.tools),
    schema: signal(first.schema),
    values: signal(/** @type {Record<string, string>} */ (first.values)),
    wanted: signal(""),
    columns: signal(/** @type {Column[]} */ (first.columns.slice(0, MOST_COLUMNS).map(columnOf))),
    source: signal(first.source),
    served: signal(/** @type {string[]} */ ([])),
    origin: signal(/** @type {{name: string, model: string, href: string}|null} */ (first.origin)),
  };
  let waiting = 0;
  const keep = () => {
    kept.value = {
      messages: state.messages.peek().map((draft) => wireOf(draft)),
      tools: state.tools.peek(),
      schema: state.schema.peek(),
      values: state.values.peek(),
      source: state.source.peek(),
      origin: state.origin.peek(),
      columns: state.columns.peek().map((column) => ({ model: column.model.peek(), parameters: column.parameters.peek() })),
    };
  };
  effect(() => {
    // Read to be followed; what is typed is kept a moment later.
    [state.messages.value, state.tools.value, state.schema.value, state.values.value, state.source.value, state.origin.value];
    for (const column of state.columns.value) [column.model.value, column.parameters.value];
    clearTimeout(waiting);
    waiting = setTimeout(keep, 200);
  });
  return state;
}

/** A column from what is kept of one. */
export function columnOf({ model = "", parameters = {}, tail = [] } = {}) {
  return {
    id: next++,
    model: signal(model),
    parameters: signal(parameters),
    tail: signal(tail),
    answer: signal(null),
    saved: signal(/** @type {{answer: any, name: string}|null} */ (null)),
    abort: null,
  };
}

/** Replace the whole prompt, and what the columns said to the one before. */
export function setPrompt(state, messages, { tools, schema, model, parameters } = /** @type {any} */ ({})) {
  state.messages.value = messages.map(draftOf);
  if (tools !== undefined) state.tools.value = tools;
  if (schema !== undefined) state.schema.value = schema;
  for (const column of state.columns.peek()) {
    column.abort?.abort();
    column.tail.value = [];
    column.answer.value = null;
  }
  const [first] = state.columns.peek();
  if (model) state.wanted.value = model;
  if (parameters) first.parameters.value = parameters;
}

/** The JSON of a text field, or undefined for an empty one; raises with the field's name. */
export function jsonField(text, name) {
  if (!text.trim()) return undefined;
  try {
    return parseJson(text);
  } catch (error) {
    throw new Error(`${name}: ${error.message}`);
  }
}
