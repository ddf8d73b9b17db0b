// Filters of calls: chips in the address on one side, the query language of the API on the other.
import { h, signal } from "./dom.js";
import { chip, button } from "./parts.js";
import { link, query, setQuery } from "./router.js";
import { sameRange } from "./timerange.js";

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
  error: ["Error group", ["is", "not", "exists"]],
  feedback: ["Feedback", ["exists", "missing"]],
  duration: ["Duration in seconds", ["gt", "lt", "gte", "lte"]],
  cost: ["Cost in dollars", ["gt", "lt"]],
  used: ["Counted tokens", ["is", "exists"]],
};

/** The operators with their words. */
export const OPERATORS = {
  is: "is", not: "is not", contains: "contains", gt: ">", gte: "≥", lt: "<", lte: "≤", in: "is one of", exists: "exists",
    missing: "is missing",
};

const SHORTHANDS = ["op", "status", "kind", "model", "user", "thread", "error", "used"];
const SOURCES = ["user", "evaluation", "training"];
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

/** Whether only root calls are meant; without a word in the address a link with a condition means all calls. */
export function rootsOnly() {
  return query("roots") ? query("roots") === "1" : !SHORTHANDS.some((name) => query(name));
}

/** Where the root calls come from: user traffic unless the address says otherwise; null for all, and for all calls. */
export function sourceOfRoots() {
  const chosen = query("src") ?? (query("roots") || query("view") || SHORTHANDS.some((name) => query(name)) ? "all" : "user");
  return rootsOnly() && SOURCES.includes(chosen) ? chosen : null;
}

/** Put conditions into the address; the place in the list is left. */
export function writeConditions(conditions, more = {}) {
  setQuery({ ...DROPPED, f: conditions.length ? JSON.stringify(conditions) : null, roots: rootsOnly() ? query("roots") : "0", ...more },
    false);
}

/**
 * What the address selects: {conditions, text, roots, source, from, to}.
 * @param {{from: number|null, to: number|null}} range
 */
export function filterState({ from, to }) {
  return { conditions: readConditions(), text: query("search") ?? "", roots: rootsOnly(), source: sourceOfRoots(), from, to };
}

/** The same in the form of the read models; what turns conditions into queries is loaded when there are any. */
export async function selectionOf(state) {
  const { conditions, text, roots, source = null, from, to } = state;
  if (!conditions.length && !text) return { filter: { trace_roots_only: roots }, query: null, cost: null, used: null, source,
    from, to };
  return (await import("./filterquery.js")).selectionOf(state);
}

/**
 * The address of the calls that a number was made of: all calls of a range, of roots only where that is said, under
 * conditions such as `{op: "answer", status: "error", used: "gpt-4o"}`; empty `used` are those whose tokens count at all.
 * A list is an operator and its value.
 * @param {{from?: number|null, to?: number|null, preset?: string}} range
 * @param {Record<string, string|string[]|null|undefined>} conditions
 */
export function callsOf({ from = null, to = null, preset = "" }, conditions = {}, roots = false) {
  const listed = Object.entries(conditions).filter(([, value]) => value != null)
    .map(([field, value]) => (Array.isArray(value) ? [field, ...value] : value === "" ? [field, field === "used" ? "exists" : "missing"] : [field, "is", value]));
  return link("/traces", { ...sameRange({ from, to, preset }), f: listed.length ? JSON.stringify(listed) : null, roots: roots ? "1" : "0" });
}

/** A number as the way to the calls that it was made of; parameters as of `callsOf`. */
export const callsLink = (text, title, range, conditions = {}, roots = false) =>
  h("a.plainlink", { href: callsOf(range, conditions, roots), title }, text);

/** A condition in words. */
export function conditionText(condition) {
  const [field, operator, value] = condition;
  if (field === "query") return "a condition of a saved view";
  if (field === "used") return operator === "is" ? `Tokens of ${value} count` : "Tokens count";
  const name = FIELDS[field]?.[0].replace(/ in .*/, "") ?? field;
  const unit = { duration: " s" }[field] ?? "";
  const shown = operator === "exists" || operator === "missing" ? ""
    : ` ${field === "cost" ? "$" : ""}${Array.isArray(value) ? value.join(", ") : value}${unit}`;
  return `${name} ${OPERATORS[operator] ?? operator}${shown}`;
}

/**
 * The conditions in the address as chips, each changed where it stands, with a way to add one.
 * @param {(others: Condition[]) => Promise<any>} facets what calls that fit some conditions hold, loaded when the user filters
 * @param {(condition: Condition) => boolean} [isShown] true for one that another control shows already
 */
export function filterChips(facets, isShown = () => false) {
  return conditionChips({ read: readConditions, write: writeConditions, facets, isShown, fields: FIELDS });
}

/**
 * Conditions as chips, wherever they are kept.
 * @param {{read: () => Condition[], write: (conditions: Condition[]) => void, facets: (others: Condition[]) => Promise<any>,
 *   isShown?: (condition: Condition) => boolean, fields: any}} source
 */
export function conditionChips({ read, write, facets, isShown = () => false, fields }) {
  const editing = signal(-1);
  const editor = signal(/** @type {any} */ (null));
  const opener = button("Filter", () => edit(read().length), { iconName: "add" });
  const edit = async (index) => {
    const { conditionEditor } = await import("./filtereditor.js");
    const conditions = read();
    const done = (changed) => {
      editing.value = -1;
      if (changed) write(index < conditions.length ? conditions.map((old, at) => (at === index ? changed : old))
        : [...conditions, changed]);
      opener.focus();
    };
    editor.value = conditionEditor(conditions[index] ?? null, facets(conditions.filter((_, at) => at !== index)),
      { fields, operators: OPERATORS }, done);
    editing.value = index;
  };
  const remove = (index) => write(read().filter((_, at) => at !== index));
  return [opener, () => {
    const conditions = read();
    const shown = conditions.map((condition, index) => {
      if (index === editing.value) return editor.value;
      if (isShown(condition)) return null;
      const text = conditionText(condition);
      const change = h("button", { type: "button", class: "one-line", title: text, onclick: () => edit(index),
        style: { "max-width": "320px", display: "block" } }, text);
      const made = chip(condition[0] === "query" ? text : change, () => remove(index));
      made.lastElementChild.setAttribute("aria-label", `Remove ${text}`);
      return made;
    });
    return editing.value >= conditions.length ? [...shown, editor.value] : shown;
  }];
}
