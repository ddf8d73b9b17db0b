// How a model is asked: temperature, limits, stop texts, the choice of tools.
import { h, onCleanup } from "../lib/dom.js";
import { int } from "../lib/format.js";
import { icon } from "../lib/parts.js";

const NUMBERS = [
  ["temperature", "Temperature", { min: 0, max: 2, step: 0.1, placeholder: "default" }],
  ["top_p", "Top p", { min: 0, max: 1, step: 0.05, placeholder: "1" }],
  ["max_tokens", "Max tokens", { min: 1, step: 1, placeholder: "no limit" }],
  ["n", "Choices (n)", { min: 1, max: 16, step: 1, placeholder: "1" }],
  ["seed", "Seed", { step: 1, placeholder: "random" }],
];

const TOOL_CHOICES = ["auto", "none", "required"];

/** The button of a column's parameters, with how many are set, and the sheet that it opens. */
export function parametersButton(column) {
  const set = (name, value) => {
    const { [name]: before, ...rest } = column.parameters.peek();
    column.parameters.value = value === "" || value === false || value == null ? rest : { ...rest, [name]: value };
  };
  const count = () => Object.keys(column.parameters.value).length;
  const number = ([name, label, limits]) =>
    h(
      "label",
      h("span", label),
      h("input", {
        type: "number",
        ...limits,
        value: column.parameters.peek()[name] ?? "",
        oninput: (event) => set(name, event.target.value === "" ? "" : Number(event.target.value)),
      }),
    );
  const outside = (event) => sheet.open && !sheet.contains(event.target) && (sheet.open = false);
  addEventListener("pointerdown", outside);
  onCleanup(() => removeEventListener("pointerdown", outside));
  const sheet = h(
    "details.parameters",
    h(
      "summary",
      { title: "Parameters", "aria-label": () => (count() ? `Parameters: ${count()}` : "Parameters") },
      icon("settings"),
      () => (count() ? h("span.count", int(count())) : null),
    ),
    h(
      "div.parametersheet",
      NUMBERS.map(number),
      h(
        "label",
        h("span", "Tool choice"),
        h(
          "select",
          { onchange: (event) => set("tool_choice", event.target.value) },
          TOOL_CHOICES.map((name) =>
            h("option", { value: name === "auto" ? "" : name, selected: column.parameters.peek().tool_choice === name }, name),
          ),
        ),
      ),
      h(
        "label.wide",
        h("span", "Stop, one per line"),
        h("textarea", {
          rows: 2,
          value: column.parameters.peek().stop ?? "",
          oninput: (event) => set("stop", event.target.value),
        }),
      ),
      h(
        "label.check",
        h("input", {
          type: "checkbox",
          checked: Boolean(column.parameters.peek().logprobs),
          onchange: (event) => set("logprobs", event.target.checked),
        }),
        "Token probabilities",
      ),
    ),
  );
  return sheet;
}
