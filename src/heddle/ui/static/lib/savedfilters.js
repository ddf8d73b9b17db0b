// Filters as saved views keep them, read back as conditions: the forms that this interface and the SDKs write.
import { nameOf } from "./format.js";

const SHORT = { "summary.weave.status": "status", wb_user_id: "user", thread_id: "thread", op_name: "op",
  "feedback.[*].payload": "feedback" };
const CLASS_NAMES = new Set(["_type", "_class_name", "_bases"]);

/** A stored value without the class names that SDKs add. */
export function plain(value) {
  if (Array.isArray(value)) return value.map(plain);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).filter(([name]) => !CLASS_NAMES.has(name))
    .map(([name, item]) => [name, plain(item)]));
}

/**
 * The conditions of a filter and a query: {conditions, text, roots, from, to}; an operation of an unknown form is kept
 * whole, as one condition.
 * @param {any} filter
 * @param {any} query
 */
export function readFilters(filter, query) {
  const found = { conditions: ofFilter(filter ?? {}), text: "", roots: Boolean(filter?.trace_roots_only), from: null, to: null };
  const expression = query?.$expr ?? query?.expr_;
  for (const operation of expression ? expression.$and ?? [expression] : []) take(operation, found);
  return found;
}

function ofFilter(filter) {
  const names = [...new Set((filter.op_names ?? []).map((name) => nameOf(name)))];
  const listed = (field, values) => (values?.length ? [values.length === 1 ? [field, "is", values[0]] : [field, "in", values]]
    : []);
  return [...(names.length ? [["op", "is", names[0]]] : []), ...listed("user", filter.wb_user_ids),
    ...listed("thread", filter.thread_ids),
    ...listed("trace_id", filter.trace_ids), ...listed("parent_id", filter.parent_ids), ...listed("id", filter.call_ids)];
}

function take(operation, found) {
  const condition = readOperation(operation);
  if (!condition) found.conditions.push(["query", "is", operation]);
  else if (condition[0] === "text") found.text = condition[2];
  else if (condition[0] !== "started_at") found.conditions.push(condition);
  else if (condition[1].startsWith("lt")) found.to = condition[2];
  else found.from = condition[2];
}

function readOperation(operation) {
  const [name, inner] = Object.entries(operation)[0];
  if (name === "$not") return opposite(readOperation(inner[0] ?? inner));
  if (name === "$or") return alternatives(inner);
  if (name === "$search") return ["text", "contains", inner.text];
  if (name === "$contains") return [named(fieldOf(inner.input)), "contains", inner.substr?.$literal];
  const field = fieldOf(inner?.[0]);
  const value = inner?.[1]?.$literal;
  if (!field || value === undefined || !["$eq", "$gt", "$gte"].includes(name)) return null;
  if (name === "$eq") return value === "" ? [named(field), "missing"] : [named(field), "is", value];
  return field === "summary.weave.latency_ms" ? ["duration", name.slice(1), value / 1000] : [field, name.slice(1), value];
}

function opposite(condition) {
  const other = { is: "not", not: "is", missing: "exists", exists: "missing", gte: "lt", gt: "lte" }[condition?.[1]];
  return other ? [condition[0], other, ...condition.slice(2)] : null;
}

/** The alternatives that one condition stands for: kinds, models, texts, or one field with several values. */
function alternatives(operations) {
  const parts = operations.map(readOperation);
  if (parts.some((part) => !part)) return null;
  const fields = parts.map(([field]) => field).join();
  if (fields === "attributes.weave.kind,attributes.kind") return ["kind", "is", parts[0][2]];
  if (fields === "inputs,output,summary.weave.trace_name") return ["text", "contains", parts[0][2]];
  const model = /^summary\.usage\.(.*),inputs\.model$/.exec(fields);
  if (model) return ["model", "is", parts[1][2]];
  const single = parts.every(([field, operator]) => field === parts[0][0] && operator === "is");
  return single ? [parts[0][0], "in", parts.map((part) => part[2])] : null;
}

const fieldOf = (operand) => operand?.$getField ?? operand?.$convert?.input?.$getField ?? null;
const named = (field) => SHORT[field] ?? field;
