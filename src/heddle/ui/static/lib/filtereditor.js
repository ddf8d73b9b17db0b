// The dialog in which one condition of a filter is made or changed.
import { dialog } from "./dialog.js";
import { computed, h, signal } from "./dom.js";
import { FIELDS, OPERATORS } from "./filters.js";
import { field } from "./panels.js";
import { button } from "./parts.js";

const PATH_OPERATORS = ["is", "not", "contains", "gt", "gte", "lt", "lte", "in", "exists", "missing"];
const STATUSES = ["success", "error", "running", "descendant_error"];
const KINDS = ["agent", "tool", "llm", "scorer", "chain"];

/**
 * Ask for a condition; resolves to it, or null when left.
 * @param {import("./filters.js").Condition|null} condition the one to change
 * @param {Promise<any>} facets what the calls hold: {ops, users, threads, models, paths}
 */
export function editCondition(condition, facets) {
  return dialog(condition ? "Change filter" : "Add filter", (close) => {
    const known = signal(/** @type {any} */ ({ ops: [], users: [], threads: [], models: [], paths: [] }));
    facets.then((found) => { known.value = found; }, () => {});
    const chosen = signal(condition?.[0] ?? "");
    const operators = computed(() => FIELDS[chosen.value]?.[1] ?? PATH_OPERATORS);
    const operator = signal(condition?.[1] ?? "");
    const current = () => (operators.value.includes(operator.value) ? operator.value : operators.value[0]);
    const needsValue = () => current() !== "exists" && current() !== "missing";
    const value = h("input", {
      type: "text", list: "filter-values", autocomplete: "off", value: condition?.[2] ?? "", required: () => needsValue(),
      inputmode: () => (/^[gl]t/.test(current()) ? "decimal" : null),
    });
    const done = (event) => {
      event.preventDefault();
      const name = named(chosen.value.trim());
      if (name) close(needsValue() ? [name, current(), value.value.trim()] : [name, current()]);
    };
    const fieldInput = h("input", {
      type: "text", list: "filter-fields", autocomplete: "off", autofocus: true, required: true, value: label(chosen.peek()),
      placeholder: "Model, Status, inputs.question …", oninput: (event) => { chosen.value = named(event.target.value.trim()); },
    });
    return h("form", { onsubmit: done },
      field("Field", fieldInput,
        "A field of the list, or any path of the data such as inputs.question or output.choices.0.message.content"),
      h("datalist", { id: "filter-fields" },
        () => [...Object.keys(FIELDS).map(label), ...known.value.paths.filter((path) => !path.startsWith("scores."))]
        .map((text) => h("option", { value: text }))),
      field("Condition", h("select", { onchange: (event) => { operator.value = event.target.value; } },
        () => operators.value.map((name) => h("option", { value: name, selected: name === current() }, OPERATORS[name])))),
      h("div", { hidden: () => !needsValue() }, field("Value", value)),
      h("datalist", { id: "filter-values" }, () => valuesOf(chosen.value, known.value)
        .map((text) => h("option", { value: text }))),
      h("div.actions", button("Cancel", () => close()), h("button.button.primary", { type: "submit" }, "Apply")));
  });
}

const label = (name) => FIELDS[name]?.[0] ?? name;

function named(text) {
  return Object.keys(FIELDS).find((name) => name === text || FIELDS[name][0].toLowerCase() === text.toLowerCase()) ?? text;
}

function valuesOf(name, known) {
  return { op: known.ops.map(([op]) => op), status: STATUSES, kind: KINDS, model: known.models, user: known.users,
    thread: known.threads }[name] ?? [];
}
