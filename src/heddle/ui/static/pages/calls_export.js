// The selected calls, or all that the filters choose, as a file.
import { get } from "../lib/data.js";
import { dialog } from "../lib/dialog.js";
import { h, signal } from "../lib/dom.js";
import { selectionOf } from "../lib/filterquery.js";
import { field } from "../lib/panels.js";
import { button, failure } from "../lib/parts.js";
import { config, projectId } from "../lib/router.js";

const FORMATS = [["jsonl", "JSON lines (.jsonl)"], ["csv", "Table (.csv)"], ["parquet", "Parquet (.parquet)"]];
const MOST_IDS = 400;

/** Ask for the format and what to write; the browser saves the file as it comes. */
export function exportCalls({ state, selected }) {
  return dialog("Export calls", (close) => {
    const ids = [...selected.peek()].slice(0, MOST_IDS);
    const format = h("select", FORMATS.map(([name, text]) => h("option", { value: name }, text)));
    const extent = h("select", ids.length ? h("option", { value: "selected" }, `The ${ids.length} selected`) : null,
      h("option", { value: "all" }, "All that the filters and the time range choose"));
    const problem = signal(/** @type {any} */ (null));
    const save = async (event) => {
      event.preventDefault();
      const what = extent.value === "selected" ? { filter: { call_ids: ids } } : selectionOf(state());
      const address = `/_ui/api/calls/export?${new URLSearchParams({ format: format.value, chosen: JSON.stringify({ project_id: projectId(), ...what }) })}`;
      try {
        await get(`/_ui/api/calls/export?format=${format.value}&check=1`);
        h("a", { href: config.root + address, download: "" }).click();
        close();
      } catch (error) {
        problem.value = error;
      }
    };
    return h("form", { onsubmit: save }, field("Calls", extent),
      field("Format", format, "Inputs, output, attributes and summary are whole; in a table they are JSON texts."),
      () => (problem.value ? failure(problem.value, null) : null),
      h("div.actions", button("Cancel", () => close()), h("button.button.primary", { type: "submit" }, "Export")));
  });
}
