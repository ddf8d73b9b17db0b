// Calls become rows of a dataset: which one, and which field of a call fills which column.
import { changeCalls } from "./changecalls.js";
import { lines, postProject, storeObject } from "./data.js";
import { loadedDialog, toast } from "./dialog.js";
import { each, h, signal } from "./dom.js";
import { publicSelection } from "./filterquery.js";
import { plural } from "./format.js";
import { lineText } from "./line.js";
import { field } from "./panels.js";
import { button } from "./parts.js";
import { link, path, projectId } from "./router.js";

const NAME = /^[\w.-]{1,128}$/;
const BATCH = 200;
const SAMPLE = 20;
const NEWEST_FIRST = [{ field: "started_at", direction: "desc" }];

/**
 * Ask for a dataset and the columns, then append one row per call; resolves to {name, digest, rows}, or null when left.
 * @param {string[]|{selection: any, count: number}} target calls by their ids, or all that match
 * @returns {Promise<{name: string, digest: string, rows: number}|null>}
 */
export async function addToDataset(target) {
  const count = Array.isArray(target) ? target.length : target.count;
  if (!count) return null;
  const many = count === 1 ? "the call" : plural(count, "call");
  const result = await loadedDialog(
    `Add ${many} to a dataset`,
    () => start(target),
    (found, close) => chooser(found, target, count, close),
    { wide: true },
  );
  if (result) {
    toast([
      `${plural(result.rows, "row")} added to `,
      h("a", { href: link(path`/datasets/${result.name}`) }, h("b", result.name)),
    ]);
  }
  return result;
}

async function start(target) {
  const chosen = Array.isArray(target) ? { filter: { call_ids: target.slice(0, SAMPLE) } }
    : { ...publicSelection({ from: null, to: null, ...target.selection }), limit: SAMPLE, sort_by: NEWEST_FIRST };
  const [datasets, calls] = await Promise.all([
    postProject("/objs/query", {
      filter: { base_object_classes: ["Dataset"], latest_only: true },
      metadata_only: true,
      limit: 1000,
    }),
    lines("/calls/stream_query", { ...chosen, columns: ["id", "inputs", "output"] }),
  ]);
  // The first that was selected is shown.
  if (Array.isArray(target)) calls.sort((one, other) => target.indexOf(one.id) - target.indexOf(other.id));
  return { names: datasets.objs.map((entry) => entry.object_id).sort(), samples: calls };
}

/** The fields of calls that may fill columns: every key of inputs, the whole output and every key of it. */
function sources(calls) {
  const found = new Set();
  for (const call of calls) {
    for (const name of Object.keys(call.inputs ?? {})) if (name !== "self") found.add(`inputs.${name}`);
    found.add("output");
    if (isObject(call.output)) for (const name of Object.keys(call.output)) found.add(`output.${name}`);
  }
  return [...found];
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

/** The value of a call at a path made by `sources`: column, then one key (which may hold dots). */
function valueAt(call, source) {
  const dot = source.indexOf(".");
  return dot < 0 ? call[source] : call[source.slice(0, dot)]?.[source.slice(dot + 1)];
}

function rowOf(call, columns) {
  return Object.fromEntries(columns.map(({ name, source }) => [name, valueAt(call, source) ?? null]));
}

function chooser({ names, samples }, callIds, count, close) {
  const all = sources(samples);
  let next = 0;
  const column = (source) => ({ id: next++, source, name: source.replace(/^inputs\./, "").replace(/^output\./, "") });
  const columns = signal(all.filter((source) => source === "output" || source.startsWith("inputs.")).map(column));
  const target = h(
    "select",
    { "aria-label": "Dataset" },
    h("option", { value: "" }, "New dataset…"),
    names.map((name, index) => h("option", { value: name, selected: index === 0 }, name)),
  );
  const isNew = signal(names.length === 0);
  target.addEventListener("change", () => {
    isNew.value = target.value === "";
  });
  const newName = h("input", { type: "text", value: names.length ? "" : "examples", placeholder: "Letters, digits, - and _" });
  const problem = h("p.problem", { role: "alert" });
  const save = async (event) => {
    event.preventDefault();
    problem.textContent = "";
    try {
      close(await append(target.value || newName.value.trim(), !target.value, checked(columns.peek()), callIds));
    } catch (error) {
      problem.textContent = error.message;
    }
  };
  return h(
    "form",
    { onsubmit: save },
    h("div.columns", field("Dataset", target), h("div", { hidden: () => !isNew.value }, field("Name", newName))),
    columnEditor(columns, all, column, samples[0]),
    problem,
    h(
      "div.actions",
      button("Cancel", () => close()),
      h("button.button.primary", { type: "submit" }, count === 1 ? "Add row" : `Add ${plural(count, "row")}`),
    ),
  );
}

function columnEditor(columns, all, column, sample) {
  const change = (id, changes) => {
    columns.value = columns.value.map((entry) => (entry.id === id ? { ...entry, ...changes } : entry));
  };
  const body = h("tbody");
  each(
    body,
    () => columns.value,
    (entry) => entry.id,
    (held, { id }) =>
      h(
        "tr",
        h(
          "td",
          h("input", {
            type: "text",
            "aria-label": "Column",
            value: held.peek().name,
            oninput: (event) => change(id, { name: event.target.value }),
          }),
        ),
        h(
          "td",
          h(
            "select",
            { "aria-label": "Field of the call", onchange: (event) => change(id, { source: event.target.value }) },
            all.map((source) => h("option", { value: source, selected: source === held.peek().source }, source)),
          ),
        ),
        h("td.dim", { dir: "auto" }, () => lineText(sample ? valueAt(sample, held.value.source) : null, 60)),
        h(
          "td",
          button(
            null,
            () => {
              columns.value = columns.value.filter((entry) => entry.id !== id);
            },
            { kind: "quiet", iconName: "close", label: "Remove column" },
          ),
        ),
      ),
  );
  return h(
    "div.columneditor",
    h(
      "table.table.inputs",
      { "aria-label": "Columns" },
      h(
        "thead",
        h(
          "tr",
          ["Column", "Field of the call", "First call"].map((text) => h("th", { scope: "col" }, text)),
          h("th", { scope: "col" }, h("span.hidden-text", "Remove")),
        ),
      ),
      body,
    ),
    h(
      "div.actions",
      button(
        "Column",
        () => {
          columns.value = [...columns.value, column(all[0])];
        },
        { iconName: "add", kind: "quiet" },
      ),
    ),
  );
}

function checked(columns) {
  const names = columns.map(({ name }) => name.trim());
  if (!names.length) throw new Error("Choose at least one column");
  if (names.some((name) => !name)) throw new Error("Every column needs a name");
  const twice = names.find((name, index) => names.indexOf(name) !== index);
  if (twice) throw new Error(`Two columns are named ${twice}`);
  return columns.map((entry) => ({ ...entry, name: entry.name.trim() }));
}

async function append(name, isNew, columns, callIds) {
  if (!Array.isArray(callIds)) {
    const action = { type: "dataset", name, is_new: isNew,
      columns: Object.fromEntries(columns.map((column) => [column.name, column.source])) };
    const made = await changeCalls(callIds, action, "Add rows to the dataset");
    if (!made) throw new Error("No rows were added");
    return { name, digest: made.digest, rows: made.done };
  }
  const rows = await rowsOf(columns, callIds);
  if (!rows.length) throw new Error("These calls no longer exist");
  return { name, digest: await appendRows(name, isNew, rows), rows: rows.length };
}

/** Add rows to the newest version of a dataset, whoever else adds some now, or to a new dataset; resolves to the digest of its version. */
export async function appendRows(name, isNew, rows) {
  if (!NAME.test(name)) throw new Error("Dataset names may only contain letters, digits, - _ and .");
  const known = await newest(name);
  if (isNew && known) throw new Error(`The dataset ${name} already exists; choose it above`);
  if (!isNew && !known) throw new Error(`The dataset ${name} has been deleted`);
  const value = known?.val ?? { _type: "Dataset", _class_name: "Dataset", _bases: ["Object", "BaseModel"], name, description: null };
  const table = typeof value.rows === "string" ? await extended(value.rows, rows) : await newTable([...(value.rows ?? []), ...rows]);
  try {
    return await storeObject(name, { ...value, rows: `weave:///${projectId()}/table/${table}` }, { after: known?.digest ?? "" });
  } catch (error) {
    if (error.status === 409) return appendRows(name, isNew, rows);
    throw error;
  }
}

async function newest(name) {
  const filter = { object_ids: [name], latest_only: true };
  return (await postProject("/objs/query", { filter, limit: 1 })).objs[0] ?? null;
}

const newTable = async (rows) => (await postProject("/table/create", { table: { project_id: projectId(), rows } })).digest;

async function extended(rowsRef, rows) {
  const base = rowsRef.split("/").pop();
  const updates = rows.map((row) => ({ append: { row } }));
  return (await postProject("/table/update", { base_digest: base, updates })).digest;
}

async function rowsOf(columns, callIds) {
  const rows = [];
  for (let from = 0; from < callIds.length; from += BATCH) {
    const part = callIds.slice(from, from + BATCH);
    const calls = await lines("/calls/stream_query", { filter: { call_ids: part }, columns: ["inputs", "output"] });
    const known = new Map(calls.map((call) => [call.id, call]));
    rows.push(...part.filter((id) => known.has(id)).map((id) => rowOf(known.get(id), columns)));
  }
  return rows;
}
