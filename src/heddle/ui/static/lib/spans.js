// What a call is, as people sort calls: its kind, name, status and tokens.
import { nameOf } from "./format.js";

const KINDS = {
  workflow: "chain",
  chain: "chain",
  agent: "agent",
  tool: "tool",
  llm: "llm",
  scorer: "scorer",
  guardrail: "scorer",
  search: "tool",
  retriever: "tool",
  reranker: "tool",
  embedding: "llm",
  evaluation: "chain",
};

/** The kind of a stored call: what it says itself, else what its usage and its op's name give away. */
export function kindOf(call) {
  const said = call.attributes?.weave?.kind ?? call.attributes?.kind;
  const known = knownKind(said);
  if (known) return known;
  if (Object.keys(call.summary?.usage ?? {}).length) return "llm";
  return kindOfName(nameOf(call.op_name));
}

/** The kind that a call says it has, in the words of this interface; null for none or an unknown one. */
export const knownKind = (said) => (typeof said === "string" ? (KINDS[said.toLowerCase()] ?? null) : null);

/** The kind that an op's name gives away; "fn" for any other. */
export function kindOfName(name) {
  if (/^Evaluation\.|\.predict_and_score$/.test(name)) return "chain";
  return /(^|[._])(score|scorer|judge)$/i.test(name) ? "scorer" : "fn";
}

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
    .map(([model, entry]) => ({
      model,
      requests: entry.requests ?? null,
      input: (entry.prompt_tokens ?? 0) + (entry.input_tokens ?? 0),
      output: (entry.completion_tokens ?? 0) + (entry.output_tokens ?? 0),
      cached: entry.cache_read_input_tokens ?? 0,
      cost: costOf(costs[model]),
    }));
  const sum = (name) => rows.reduce((total, row) => total + (row[name] ?? 0), 0);
  const cost = rows.some((row) => row.cost !== null) ? sum("cost") : null;
  return { rows, input: sum("input"), output: sum("output"), cost };
}

function costOf(entry) {
  if (!entry) return null;
  const parts = ["prompt_tokens", "completion_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"];
  return parts.reduce((total, name) => total + (entry[`${name}_total_cost`] ?? 0), 0);
}
