// The fields of the work page: one is active and takes the digits; all of them can be used by pointer, too.
import { h } from "../lib/dom.js";
import { optionText } from "./queue_fields.js";

/**
 * The fields of an item. `values` is a signal of {name: value}, `active` one of an index.
 * @param {{fields: any[], values: any, active: any, set: (name: string, value: any) => void, onkey: (event: any) => void,
 *   choose: (field: any, option: any) => void}} options
 */
export function fieldList({ fields, values, active, set, onkey, choose }) {
  return h("ol.workfields", fields.map((field, index) => h("li", {
    class: () => (active.value === index ? "active" : ""), onfocusin: () => { active.value = index; },
    // What is chosen makes the next field active.
    onclick: (event) => { if (!event.target.closest(".workoptions button")) active.value = index; },
  }, h("fieldset", h("legend", h("b", { dir: "auto" }, field.label),
    field.description && h("span.dim", { dir: "auto" }, field.description)), control(field, { values, set, onkey, choose })))));
}

function control(field, { values, set, onkey, choose }) {
  const value = () => values.value[field.name];
  if (field.options.length) {
    return h("div.workoptions", { class: field.kind }, field.options.map((option, place) => h("button", {
      type: "button", "aria-pressed": () => String(isChosen(field, value(), option)),
        onclick: () => choose(field, option),
    }, place < 9 && option !== place + 1 && h("kbd", { "aria-hidden": "true" }, place + 1),
      h("span", { dir: "auto" }, optionText(option)))));
  }
  if (field.kind === "number") {
    return h("input", { type: "number", step: "any", "aria-label": field.label, "data-field": field.name, value,
      onkeydown: onkey, oninput: (event) =>
      set(field.name, event.target.value === "" ? undefined : Number(event.target.value)) });
  }
  return h("textarea", { rows: 3, dir: "auto", "aria-label": field.label, "data-field": field.name, value, onkeydown: onkey,
    oninput: (event) => set(field.name, event.target.value || undefined) });
}

/** The value after an option was chosen: again takes it back, several are kept in a list. */
export function chosen(field, value, option) {
  if (field.kind !== "choices") return value === option ? undefined : option;
  const list = value ?? [];
  const next = list.includes(option) ? list.filter((other) => other !== option) : field.options
    .filter((other) => list.includes(other) || other === option);
  return next.length ? next : undefined;
}

const isChosen = (field, value, option) => (field.kind === "choices" ? Boolean(value?.includes(option)) : value === option);
