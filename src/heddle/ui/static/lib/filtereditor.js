// One condition of a filter, made or changed where it stands.
import { computed, h, signal } from "./dom.js";
import { button } from "./parts.js";

const PATH_OPERATORS = ["is", "not", "contains", "gt", "gte", "lt", "lte", "in", "exists", "missing"];
const STATUSES = ["success", "error", "running", "descendant_error"];
const KINDS = ["agent", "tool", "llm", "scorer", "chain", "fn"];
let made = 0;

/**
 * The controls of a condition; `done` gets it, or null when it is left as it was.
 * @param {any[]|null} condition the one to change: a field, an operator, a value
 * @param {Promise<any>} facets what the calls hold: {ops, users, threads, models, paths}
 * @param {{fields: any, operators: any}} known the short names of fields and the operators, with their words
 * @param {(condition: any[]|null) => void} done
 */
export function conditionEditor(condition, facets, { fields, operators: words }, done) {
  const label = (name) => fields[name]?.[0] ?? name;
  const named = (text) => Object.keys(fields)
    .find((name) => name === text || fields[name][0].toLowerCase() === text.toLowerCase()) ?? text;
  const mine = `filter-${(made += 1)}`;
  const known = signal(/** @type {any} */ ({ ops: [], users: [], threads: [], models: [], paths: [] }));
  facets.then((found) => { known.value = found; }, () => {});
  const chosen = signal(condition?.[0] ?? "");
  const operators = computed(() => fields[chosen.value]?.[1] ?? PATH_OPERATORS);
  const operator = signal(condition?.[1] ?? "");
  const current = () => (operators.value.includes(operator.value) ? operator.value : operators.value[0]);
  const needsValue = () => current() !== "exists" && current() !== "missing";
  const value = h("input", { type: "text", list: `${mine}-values`, autocomplete: "off", "aria-label": "Value", dir: "auto",
    placeholder: "Value", value: condition?.[2] ?? "", hidden: () => !needsValue(), required: () => needsValue(),
    inputmode: () => (/^[gl]t/.test(current()) ? "decimal" : null) });
  const field = h("input", { type: "text", list: `${mine}-fields`, autocomplete: "off", required: true, "aria-label": "Filter field",
    value: label(chosen.peek()), placeholder: "Model, Status, inputs.question …",
    title: "A field of the list, or any path of the data such as inputs.question or output.choices.0.message.content",
    oninput: (event) => { chosen.value = named(event.target.value.trim()); } });
  const apply = () => {
    const name = named(chosen.peek().trim());
    const missing = !name ? field : needsValue() && !value.value.trim() ? value : null;
    if (missing) missing.focus();
    else done(needsValue() ? [name, current(), value.value.trim()] : [name, current()]);
  };
  const onkeydown = (event) => {
    if (event.key !== "Enter" && event.key !== "Escape") return;
    if (event.key === "Enter" && event.target.tagName === "BUTTON") return;
    event.preventDefault();
    event.stopPropagation();
    if (event.key === "Enter") apply();
    else done(null);
  };
  const editor = h("div.filtereditor", { role: "group", "aria-label": condition ? "Change filter" : "Add filter", onkeydown },
    field, h("datalist", { id: `${mine}-fields` },
      () => [...Object.keys(fields).map(label), ...known.value.paths.filter((path) => !path.startsWith("scores."))]
        .map((text) => h("option", { value: text }))),
    h("select", { "aria-label": "Condition", onchange: (event) => { operator.value = event.target.value; } },
      () => operators.value.map((name) => h("option", { value: name, selected: name === current() }, words[name]))),
    value, h("datalist", { id: `${mine}-values` },
      () => valuesOf(chosen.value, known.value).map((text) => h("option", { value: text }))),
    button("Apply", apply, { kind: "primary" }), button("Cancel", () => done(null), { kind: "quiet" }));
  requestAnimationFrame(() => (condition ? value : field).focus());
  return editor;
}

function valuesOf(name, known) {
  return { op: known.ops.map(([op]) => op), status: STATUSES, kind: KINDS, model: known.models, used: known.models, user: known.users,
    thread: known.threads }[name] ?? [];
}
