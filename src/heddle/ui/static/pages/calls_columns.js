// The chooser of columns: those of every call, and paths that were found in the data of this project.
import { dialog } from "../lib/dialog.js";
import { computed, h, signal } from "../lib/dom.js";
import { field } from "../lib/panels.js";
import { button, failure, searchBox, skeleton } from "../lib/parts.js";

const MOST = 30;
const GROUPS = [["inputs.", "Inputs"], ["output", "Output"], ["scores.", "Scores"], ["attributes.", "Attributes"],
  ["summary.", "Summary"]];

/** Open the chooser; a choice shows at once and is part of the address. */
export function chooseColumns({ columns: { known, chosen: chosenColumns, show: showColumns }, facets }) {
  return dialog("Columns", (close) => {
    const chosen = signal(chosenColumns());
    const paths = signal(/** @type {any} */ (null));
    const problem = signal(/** @type {any} */ (null));
    const words = signal("");
    facets().then((found) => { paths.value = found.paths; }, (error) => { problem.value = error; });
    const change = (names) => {
      chosen.value = names;
      showColumns(names);
    };
    const toggle = (name) => change(chosen.value.includes(name) ? chosen.value.filter((other) => other !== name)
      : inOrder([...chosen.value, name], known));
    const matching = computed(() => [...new Set([...(paths.value ?? []), ...chosen.value.filter((name) => !known[name])])]
      .filter((name) => name !== "output" && name.toLowerCase().includes(words.value.toLowerCase())));
    const box = (name, text) =>
      h("label", { style: { display: "flex", gap: "8px", "align-items": "center", padding: "3px 0", "min-width": 0 } },
      h("input", { type: "checkbox", checked: () => chosen.value.includes(name), disabled: () => !chosen.value.includes(name)
        && chosen.value.length >= MOST, onchange: () => toggle(name) }),
      h("span.one-line", { title: text }, text));
    return [
      h("div.columns", { style: { "grid-template-columns": "minmax(0, 1fr) minmax(0, 2fr)" } },
        h("fieldset", h("legend", { style: { padding: "0 0 8px" } }, h("h3", "Standard")), Object.entries(known)
          .map(([name, column]) => box(name, column.label))),
        h("fieldset", h("legend", { style: { padding: "0 0 8px" } }, h("h3", "From the data")),
          searchBox("Search paths", () => "", (value) => { words.value = value; }),
          h("div", { tabindex: 0, role: "group", "aria-label": "Paths",
            style: { "max-height": "46vh", overflow: "auto", "margin-top": "8px" } }, () => {
            if (problem.value) return failure(problem.value, null);
            if (!paths.value) return skeleton(4);
            return groups(matching.value)
              .map(([name, found]) => [h("h4", { class: "faint", style: { "padding-top": "8px" } }, name),
              found.map((path) => box(path, path))]);
          }))),
      field("Add a path", pathInput(toggle), "For example output.choices.0.message.content. Press Enter to add it."),
      h("div.actions", button("Reset", () => { showColumns([]); chosen.value = chosenColumns(); }),
        button("Done", () => close(), { kind: "primary" })),
    ];
  }, { wide: true });
}

function groups(paths) {
  return GROUPS.map(([prefix, name]) => [name, paths.filter((path) => path.startsWith(prefix))])
    .filter(([, found]) => found.length);
}

/** Paths stand after the fixed columns, which keep their order; the start stays last. */
function inOrder(names, known) {
  const fixed = Object.keys(known).filter((name) => names.includes(name) && name !== "started");
  const place = fixed.filter((name) => ["op", "input", "output"].includes(name)).length;
  const paths = names.filter((name) => !known[name]);
  return [...fixed.slice(0, place), ...paths, ...fixed.slice(place), ...(names.includes("started") ? ["started"] : [])];
}

function pathInput(toggle) {
  const add = (event) => {
    if (event.key !== "Enter" || !/^(inputs|output|attributes|summary|scores)(\.|$)/.test(event.target.value.trim())) return;
    event.preventDefault();
    toggle(event.target.value.trim());
    event.target.value = "";
  };
  return h("input", { type: "text", placeholder: "inputs.question", pattern: "(inputs|output|attributes|summary|scores)(\\..+)?",
    onkeydown: add });
}
