// Filters of calls: chips in the address on one side, the query language of the API on the other.
import { h } from "./dom.js";
import { chip, button } from "./parts.js";
import { query, setQuery } from "./router.js";

/**
 * One condition: a field (a short name of FIELDS or a path such as `inputs.x`), an operator of OPERATORS, a value.
 * @typedef {any[]} Condition a field, an operator, a value
 */

/** The short names, with what they are called and the operators that fit them. */
export const FIELDS = {
  op: ["Operation", ["is", "contains", "not"]],
  status: ["Status", ["is", "not"]],
  kind: ["Kind", ["is", "not"]],
  model: ["Model", ["is", "not"]],
  user: ["User", ["is", "in", "not"]],
  thread: ["Thread", ["is", "in", "exists"]],
  feedback: ["Feedback", ["exists", "missing"]],
  duration: ["Duration in seconds", ["gt", "lt", "gte", "lte"]],
  cost: ["Cost in dollars", ["gt", "lt"]],
};

/** The operators with their words. */
export const OPERATORS = {
  is: "is", not: "is not", contains: "contains", gt: ">", gte: "≥", lt: "<", lte: "≤", in: "is one of", exists: "exists",
    missing: "is missing",
};

const SHORTHANDS = ["op", "status", "kind", "model", "user", "thread"];
const DROPPED = Object.fromEntries([...SHORTHANDS, "after", "before", "peek"].map((name) => [name, null]));

/** The conditions in the address: those of `f`, and single ones such as `?op=name` that links of other pages carry. */
export function readConditions() {
  const short = SHORTHANDS.filter((name) => query(name)).map((name) => /** @type {Condition} */ ([name, "is", query(name)]));
  try {
    const found = JSON.parse(query("f") ?? "[]");
    return [...short, .../** @type {Condition[]} */ (Array.isArray(found) ? found.filter(Array.isArray) : [])];
  } catch {
    return short;
  }
}

/** Whether only roots of traces are meant; without a word in the address a link with a condition means all calls. */
export function rootsOnly() {
  return query("roots") ? query("roots") === "1" : !SHORTHANDS.some((name) => query(name));
}

/** Put conditions into the address; the place in the list is left. */
export function writeConditions(conditions, more = {}) {
  setQuery({ ...DROPPED, f: conditions.length ? JSON.stringify(conditions) : null, roots: rootsOnly() ? null : "0", ...more },
    false);
}

/**
 * What the address selects: {conditions, text, roots, from, to}.
 * @param {{from: number|null, to: number|null}} range
 */
export function filterState({ from, to }) {
  return { conditions: readConditions(), text: query("s") ?? "", roots: rootsOnly(), from, to };
}

/** The same in the form of the read models; what turns conditions into queries is loaded when there are any. */
export async function selectionOf(state) {
  const { conditions, text, roots, from, to } = state;
  if (!conditions.length && !text) return { filter: { trace_roots_only: roots }, query: null, cost: null, from, to };
  return (await import("./filterquery.js")).selectionOf(state);
}

/** A condition in words. */
export function conditionText(condition) {
  const [field, operator, value] = condition;
  if (field === "query") return "a condition of a saved view";
  const name = FIELDS[field]?.[0].replace(/ in .*/, "") ?? field;
  const unit = { duration: " s" }[field] ?? "";
  const shown = operator === "exists" || operator === "missing" ? ""
    : ` ${field === "cost" ? "$" : ""}${Array.isArray(value) ? value.join(", ") : value}${unit}`;
  return `${name} ${OPERATORS[operator] ?? operator}${shown}`;
}

/**
 * The conditions as chips that can be taken away or changed, with a way to add one.
 * @param {() => Promise<any>} facets suggestions, asked for when somebody filters
 * @param {(condition: Condition) => boolean} [isShown] true for one that another control shows already
 */
export function filterChips(facets, isShown = () => false) {
  const edit = async (index) => {
    const { editCondition } = await import("./filtereditor.js");
    const conditions = readConditions();
    const changed = await editCondition(conditions[index] ?? null, facets());
    if (changed) writeConditions(index === undefined ? [...conditions, changed] : conditions
      .map((old, at) => (at === index ? changed : old)));
  };
  const remove = (index) => writeConditions(readConditions().filter((_, at) => at !== index));
  return [button("Filter", () => edit(), { iconName: "add" }), () => readConditions().map((condition, index) => {
    if (isShown(condition)) return null;
    const text = conditionText(condition);
    const change = h("button", { type: "button", class: "one-line", title: text, onclick: () => edit(index),
      style: { "max-width": "320px", display: "block" } }, text);
    const shown = chip(condition[0] === "query" ? text : change, () => remove(index));
    shown.lastElementChild.setAttribute("aria-label", `Remove ${text}`);
    return shown;
  })];
}
