// What a call is, as people sort calls: its kind, name, status and tokens.
import { nameOf } from "./format.js";

/** The kind of a call that was read with `include_conversation`, as the server decides it; null where it was not. */
export const kindOf = (call) => call.conversation?.kind ?? null;

/** What people call a call: its own name, else that of its op. */
export const callName = (call) => call.display_name || nameOf(call.op_name) || "unnamed";

/** success, error or running; a failed descendant does not make a call fail. */
export function statusOf(call) {
  if (call.exception) return "error";
  if (!call.ended_at) return "running";
  return call.summary?.weave?.status === "error" ? "error" : "success";
}

/** Tokens and dollars of one call, by model and in sum. */
export function usageOf(call) {
  const costs = call.summary?.weave?.costs ?? {};
  const rows = Object.entries(call.summary?.usage ?? {})
    .filter(([, entry]) => entry && typeof entry === "object")
    // A span without a model and tokens has an entry of nulls.
    .filter(([model, entry]) => model !== "usage" || Object.values(entry).some((count) => count !== null))
    .map(([model, entry]) => ({
      model,
      requests: entry.requests == null ? null : tokens(entry.requests),
      input: tokens(entry.prompt_tokens) + tokens(entry.input_tokens),
      output: tokens(entry.completion_tokens) + tokens(entry.output_tokens) + tokens(entry.thoughts_tokens),
      cached: tokens(entry.cache_read_input_tokens) || tokens(partsOf(entry).cached_tokens),
      cost: costOf(costs[model]),
    }));
  const sum = (name) => rows.reduce((total, row) => total + (row[name] ?? 0), 0);
  const cost = rows.some((row) => row.cost !== null) ? sum("cost") : null;
  return { rows, input: sum("input"), output: sum("output"), cost };
}

/** A count as programs report it: texts of numbers count, anything else is 0. */
const tokens = (value) => (Number.isFinite(Number(value)) ? Number(value) : 0);

/** What is inside the prompt's tokens, where an entry tells it. */
function partsOf(entry) {
  return entry.prompt_tokens_details ?? entry.input_tokens_details ?? {};
}

function costOf(entry) {
  if (!entry) return null;
  const parts = ["prompt_tokens", "completion_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"];
  return parts.reduce((total, name) => total + (entry[`${name}_total_cost`] ?? 0), 0);
}
