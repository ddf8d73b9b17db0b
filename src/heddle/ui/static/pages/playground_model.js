// Which model a column asks.
import { h } from "../lib/dom.js";
import { menu } from "../lib/dialog.js";

/** The field that names the model of a column. */
export function modelField(column, number) {
  return h("input.model", {
    type: "text",
    list: "playground-models",
    "aria-label": () => `Model ${number()}`,
    placeholder: "Model",
    value: () => column.model.value,
    spellcheck: "false",
    title: () => column.model.value,
    oninput: (event) => {
      column.model.value = event.target.value;
    },
  });
}

/** The models to choose from: a browser suggests in the field only those that look like what stands there. */
export function modelMenu(state, column) {
  const choose = (id) => [
    id,
    () => {
      column.model.value = id;
    },
    { iconName: id === column.model.peek() ? "check" : "models" },
  ];
  return () =>
    state.served.value.length > 1
      ? menu(null, () => state.served.peek().map(choose), { kind: "quiet", iconName: "models", label: "Choose a model" })
      : null;
}
