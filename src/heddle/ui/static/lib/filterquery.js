// Conditions as the API wants them: a filter and an operation of the query language.
import { sourceOps } from "./sources.js";
import { projectId } from "./router.js";

/**
 * The conditions of a state of the address in the form of the read models: {filter, query, cost, used, source, from, to}.
 * @param {{conditions: any[], text: string, roots: boolean, source?: string|null, from: number|null, to: number|null}} state
 */
export function selectionOf({ conditions, text, roots, source = null, from, to }) {
  const filter = { trace_roots_only: roots };
  const parts = conditions.map((condition) => place(condition, filter)).filter(Boolean);
  if (/[\p{L}\p{N}]/u.test(text)) parts.push({ $search: roots ? { text, any_of_trace: true } : { text } });
  const cost = conditions.find(([field]) => field === "cost");
  const used = conditions.find(([field]) => field === "used");
  return { filter, query: conjunction(parts), cost: cost ? { op: cost[1], dollars: Number(cost[2]) || 0 } : null,
    used: used ? String((used[1] === "is" && used[2]) || "") : null, source, from, to };
}

/** The same for the public API, which knows a range of time as conditions; costs it does not know. */
export function publicSelection({ filter, query: chosen, source = null, from, to }, more = []) {
  const parts = chosen?.$expr.$and ?? (chosen ? [chosen.$expr] : []);
  const times = [from !== null && compare("$gte", "started_at", from), to !== null && negate(compare("$gte", "started_at", to))];
  const { source: known, ops } = sourceOps.peek();
  const among = { $in: [get("op_name"), (ops.length ? ops : [""]).map((op) => ({ $literal: op }))] };
  const sources = source && source === known && (source !== "user" || ops.length) ? [source === "user" ? negate(among) : among] : [];
  return { filter, query: conjunction([...parts, ...sources, ...times.filter(Boolean), ...more]) };
}

const get = (field) => ({ $getField: field });
const compare = (operator, field, value) => ({ [operator]: [get(field), { $literal: value }] });
const negate = (operation) => ({ $not: [operation] });
const conjunction = (parts) => (parts.length ? { $expr: parts.length === 1 ? parts[0] : { $and: parts } } : null);
const anyOf = (parts) => (parts.length === 1 ? parts[0] : { $or: parts });
const contains = (field, value) => ({ $contains: { input: get(field), substr: { $literal: value }, case_insensitive: true } });
const present = (field) => negate(compare("$eq", field, ""));

/** A query as views keep it: the SDKs know no text search, so that it stands there as what comes near it. */
export function storedQuery(chosen) {
  const parts = chosen?.$expr.$and ?? (chosen ? [chosen.$expr] : []);
  return conjunction(parts.map((part) => (part.$search ? textCondition(part.$search.text) : part)));
}

function textCondition(text) {
  return { $or: ["inputs", "output", "summary.weave.trace_name"].map((field) => contains(field, text)) };
}

/** Write a condition into the filter where that is quicker (null then), else as an operation. */
function place(condition, filter) {
  const [field, operator, value] = condition;
  if (field === "query") return value;
  const values = operator === "in" ? listed(value) : [String(value ?? "")];
  if (operator === "is" || operator === "in") {
    const name = { op: "op_names", user: "wb_user_ids", thread: "thread_ids" }[field];
    if (name && !filter[name]) {
      filter[name] = field === "op" ? values.flatMap(opNames) : values;
      return null;
    }
  }
  return operation(field, operator, values);
}

const listed = (value) => (Array.isArray(value) ? value : String(value).split(",")).map((item) => String(item).trim())
  .filter(Boolean);

function opNames(name) {
  if (name.startsWith("weave:///")) return [name];
  return [`weave:///${projectId()}/op/${encodeURIComponent(name)}:*`, name];
}

function operation(field, operator, values) {
  if (field === "cost" || field === "used") return null;
  if (field === "feedback") return operator === "missing" ? compare("$eq", "feedback.[*].payload", "")
    : present("feedback.[*].payload");
  if (operator === "not") return negate(operation(field, "is", values));
  if (field === "model") return { $or: [present(`summary.usage.${values[0].replaceAll(".", "\\.")}`),
    compare("$eq", "inputs.model", values[0])] };
  const path = { op: "op_name", user: "wb_user_id", thread: "thread_id", status: "summary.weave.status", error: "error_group",
    duration: "summary.weave.latency_ms" }[field] ?? field;
  if (operator === "exists") return present(path);
  if (operator === "missing") return compare("$eq", path, "");
  if (operator === "contains") return contains(path, values[0]);
  if (/^[gl]te?$/.test(operator)) return bound(path, operator, Number(values[0]) * (field === "duration" ? 1000 : 1));
  return anyOf(values.map((value) => compare("$eq", path, value)));
}

function bound(path, operator, value) {
  const input = path === "summary.weave.latency_ms" || path === "started_at" ? get(path)
    : { $convert: { input: get(path), to: "double" } };
  // The SDKs read no "less than": it is the opposite of the other.
  const test = (name) => ({ [name]: [input, { $literal: Number.isFinite(value) ? value : 0 }] });
  return { gt: test("$gt"), gte: test("$gte"), lt: negate(test("$gte")), lte: negate(test("$gt")) }[operator];
}
