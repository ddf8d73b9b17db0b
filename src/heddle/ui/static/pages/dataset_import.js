// Rows into a dataset from files, pasted text and calls; datasets out to files.
import { h, signal } from "../lib/dom.js";
import { dialog } from "../lib/dialog.js";
import { lines, storeObject } from "../lib/data.js";
import { nameOf, plural } from "../lib/format.js";
import { valueLine } from "../lib/line.js";
import { columnsOf, download, readRows, writeTable as writeText } from "../lib/importers.js";
import { field } from "../lib/panels.js";
import { button, segments } from "../lib/parts.js";
import { projectId } from "../lib/router.js";
import { allRows, queryRows } from "./dataset_rows.js";
import { writeTable } from "./dataset_publish.js";

/** A control that reads rows from a file, a pasted text, or calls into `rows` (a signal). */
function rowSource(rows, problem) {
  const kind = signal("file");
  const take = (text, name) => {
    try {
      rows.value = text.trim() ? readRows(text, name).rows : [];
      problem.value = "";
    } catch (error) {
      rows.value = [];
      problem.value = error.message;
    }
  };
  const file = () => h("label.dropzone", {
    ondragover: (event) => event.preventDefault(),
    ondrop: async (event) => {
      event.preventDefault();
      const [dropped] = event.dataTransfer.files;
      if (dropped) take(await dropped.text(), dropped.name);
    },
  }, h("b", "Choose a file, or drop one here"),
    h("small", "CSV, TSV, JSON or JSON lines; the first line of a table holds the column names"),
  h("input", { type: "file", accept: ".csv,.tsv,.json,.jsonl,.ndjson,.txt", "aria-label": "File", onchange: async (event) => {
    const chosen = event.target.files[0];
    if (chosen) take(await chosen.text(), chosen.name);
  } }));
  const pasted = () =>
    h("textarea.mono", { rows: 8, "aria-label": "Rows",
    placeholder: 'question,expected\nWhat is 2 + 2?,4\n\nor {"question": "…"} per line',
    oninput: (event) => take(event.target.value, "") });
  return [
    segments("Source of the rows", [["file", "File"], ["text", "Paste text"], ["calls", "Calls"]], () => kind.value,
      (value) => { kind.value = value; rows.value = []; problem.value = ""; }),
    () => ({ file, text: pasted, calls: () => fromCalls(rows, problem) })[kind.value](),
  ];
}

function fromCalls(rows, problem) {
  const [op, count, busy] = [signal(""), signal("100"), signal(false)];
  const names = h("datalist", { id: "import-ops" });
  lines("/calls/stream_query", { limit: 300, columns: ["op_name"], sort_by: [{ field: "started_at", direction: "desc" }] })
    .then((calls) => {
    names.replaceChildren(...[...new Set(calls.map((call) => nameOf(call.op_name)))].map((value) => h("option", { value })));
  }, () => {});
  const load = async () => {
    busy.value = true;
    try {
      const filter = op.value ? { op_names: [`weave:///${projectId()}/op/${op.value}:*`] } : { trace_roots_only: true };
      const found = await lines("/calls/stream_query", { filter, limit: Math.min(10_000, Number(count.value) || 100),
        columns: ["inputs", "output"], sort_by: [{ field: "started_at", direction: "desc" }] });
      rows.value = found.map(({ inputs, output }) => ({ ...plainInputs(inputs), output: output ?? null }));
      problem.value = found.length ? "" : "No matching calls.";
    } catch (error) {
      problem.value = error.message;
    }
    busy.value = false;
  };
  return h("div.formrow", names,
    field("Op", h("input", { type: "text", list: "import-ops", placeholder: "any root call",
      oninput: (event) => { op.value = event.target.value.trim(); } })),
    field("At most", h("input",
      { type: "number", min: 1, max: 10000, value: count.peek(), oninput: (event) => { count.value = event.target.value; } })),
    h("button.button", { type: "button", onclick: load, disabled: () => busy.value }, "Load calls"));
}

const plainInputs = (inputs) => Object.fromEntries(Object.entries(inputs ?? {}).filter(([name]) => name !== "self"));

/** The first rows that were read, and how many there are. */
function preview(rows) {
  return () => {
    const columns = columnsOf(rows.value.slice(0, 100)).slice(0, 8);
    if (!rows.value.length) return null;
    return [h("p.dim", `${plural(rows.value.length, "row")}, columns `, columns.join(", ")),
      h("div.tablebox.preview", { tabindex: 0, role: "region", "aria-label": "Preview" },
        h("table.table", h("thead", h("tr", columns.map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", rows.value.slice(0, 5)
          .map((row) => h("tr", columns.map((name) => h("td", { dir: "auto" }, valueLine(row[name], { length: 60 }))))))))];
  };
}

/** Ask for rows to add to a sheet; resolves to {rows, mode} or null. */
export function importDialog() {
  const [rows, problem, mode] = [signal([]), signal(""), signal("append")];
  return dialog("Import rows", (close) => [
    rowSource(rows, problem), () => problem.value && h("p.problem", { role: "alert" }, problem.value), preview(rows),
    h("div.actions", segments("Existing rows",
      [["append", "Add to the rows"], ["replace", "Replace all rows"]], () => mode.value, (value) => { mode.value = value; }),
      h("span.grow"), button("Cancel", () => close()),
      h("button.button.primary",
        { type: "button", disabled: () => !rows.value.length, onclick: () => close({ rows: rows.value, mode: mode.value }) },
        "Import")),
  ], { wide: true });
}

/** Ask for a new dataset and store it; resolves to its name or null. */
export function newDatasetDialog() {
  const [rows, problem, progress] = [signal([]), signal(""), signal("")];
  return dialog("New dataset", (close) => {
    const name = h("input", { type: "text", required: true, maxlength: 128, autofocus: true, placeholder: "questions" });
    const description = h("input", { type: "text", placeholder: "What the rows are, and where they come from" });
    const submit = async (event) => {
      event.preventDefault();
      try {
        progress.value = "Writing rows…";
        close(await storeDataset(name.value.trim(), description.value.trim(), rows.value,
          (done) => { progress.value = `${plural(done, "row")} written…`; }));
      } catch (error) {
        problem.value = error.message;
      }
      progress.value = "";
    };
    return h("form", { onsubmit: submit }, h("div.formrow", field("Name", name), field("Description", description)),
      rowSource(rows, problem), preview(rows), () => problem.value && h("p.problem", { role: "alert" }, problem.value),
      h("div.actions", h("span.faint", { "aria-live": "polite" }, () => progress.value), h("span.grow"),
        button("Cancel", () => close()),
        h("button.button.primary", { type: "submit", disabled: () => Boolean(progress.value) },
          () => (rows.value.length ? `Create with ${plural(rows.value.length, "row")}` : "Create empty dataset"))));
  }, { wide: true });
}

async function storeDataset(name, description, rows, onprogress) {
  const id = name.replace(/[^\w.-]+/g, "-").replace(/^-+|-+$/g, "");
  if (!id) throw new Error("The name needs a letter or a digit");
  const slices = function* () {
    for (let from = 0; from < rows.length; from += 2000) yield rows.slice(from, from + 2000).map((row) => ({ row }));
  };
  const table = await writeTable(slices(), onprogress);
  const val = { _type: "Dataset", _class_name: "Dataset", _bases: ["Object", "BaseModel"], name,
    description: description || null, rows: `weave:///${projectId()}/table/${table}` };
  await storeObject(id, val, { after: "" });
  return id;
}

/** Download all rows of a table as "jsonl" or "csv". */
export async function exportRows(name, { digest, count }, form) {
  const parts = [];
  let columns = null;
  if (form === "csv") columns = columnsOf((await queryRows(digest, 0, 1000)).map((row) => row.val));
  if (columns) parts.push(`${writeText([columns], ",")}\n`);
  for await (const rows of allRows(digest, count)) {
    const text = columns ? writeText(rows.map((row) => columns.map((key) => row.val[key])), ",") : rows
      .map((row) => JSON.stringify(row.val)).join("\n");
    parts.push(`${text}\n`);
  }
  download(`${name}.${form}`, parts, form === "csv" ? "text/csv" : "application/jsonl");
}
