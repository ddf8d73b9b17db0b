// The selected calls, or all that the filters choose, as a file.
import { get } from "../lib/data.js";
import { dialog } from "../lib/dialog.js";
import { h, signal } from "../lib/dom.js";
import { selectionOf } from "../lib/filterquery.js";
import { field } from "../lib/panels.js";
import { button } from "../lib/parts.js";
import { config, projectId } from "../lib/router.js";

const FORMATS = [["jsonl", "JSON lines (.jsonl)"], ["csv", "Table, one column per field (.csv)"], ["parquet", "Parquet (.parquet)"]];
const MOST_IDS = 400;

/** Ask for the format and what to write; the browser saves the file as it comes. */
export function exportCalls({ state, selected, all }) {
  return dialog("Export calls", (close) => {
    const ids = all?.peek() ? [] : [...selected.peek()].slice(0, MOST_IDS);
    const format = h("select", FORMATS.map(([name, text]) => h("option", { value: name }, text)));
    const extent = h("select", ids.length ? h("option", { value: "selected" }, `${ids.length} selected`) : null,
      h("option", { value: "all" }, "All that match the filters and the time range"));
    const missing = signal("");
    const parquet = /** @type {any} */ (format.querySelector("[value=parquet]"));
    get("/_ui/api/calls/export?format=parquet&check=1").then((found) => {
      missing.value = found.missing ?? "";
      parquet.disabled = Boolean(found.missing);
      if (found.missing) parquet.textContent += ", not installed";
    }, () => {});
    const save = (event) => {
      event.preventDefault();
      const what = extent.value === "selected" ? { filter: { call_ids: ids } } : selectionOf(state());
      const address = `/_ui/api/calls/export?${new URLSearchParams({ format: format.value, chosen: JSON.stringify({ project_id: projectId(), ...what }) })}`;
      h("a", { href: config.root + address, download: "" }).click();
      close();
    };
    return h("form", { onsubmit: save }, field("Calls", extent),
      field("Format", format, "Tables have a column for each field of inputs, output, attributes and summary, such as inputs.question; "
        + "lists are JSON. In Parquet, all four are JSON."),
      () => (missing.value ? h("p.dim", missing.value) : null),
      h("div.actions", button("Cancel", () => close()), h("button.button.primary", { type: "submit" }, "Export")));
  });
}
