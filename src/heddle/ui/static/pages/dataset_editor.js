// The rows of a dataset in the editor grid, with its tools: find, filter, sort, import, undo, publish.
import { computed, effect, h, untrack } from "../lib/dom.js";
import { confirm, form, menu, toast } from "../lib/dialog.js";
import { int, plural } from "../lib/format.js";
import { grid } from "../lib/grid.js";
import { columnKind } from "../lib/cells.js";
import { columnsOf } from "../lib/importers.js";
import { button, chip, keys, searchBox } from "../lib/parts.js";
import { projectId, query, refusal, setQuery } from "../lib/router.js";
import { cellTest, openTable, scanTable } from "./dataset_rows.js";
import { makeSheet, summary } from "./dataset_sheet.js";
import { importDialog } from "./dataset_import.js";

const KINDS = [["text", "text"], ["number", "numbers"], ["boolean", "true or false"], ["json", "JSON"]];

/**
 * The editor of one version: {element, sheet}.
 * @param {{name: string, table: {digest: string, count: number}, publish: (sheet: any) => void}} options
 */
export function datasetEditor({ name, table, publish }) {
  const learn = (rows) => sheet.learn(rows);
  const on = { onrows: learn, onerror: (error) => toast(error.message, { kind: "error" }) };
  const stored = openTable({ ...table, sort: null }, on);
  const listed = computed(() => chosenRows(table, on));
  const list = () => {
    const found = /** @type {any} */ (listed.value);
    if (!found?.scan) return found;
    const rows = found.scan.rows.value;
    return { count: rows.length, row: (place) => rows[place] ?? { index: null, values: null } };
  };
  const sheet = makeSheet(() => stored, () => list(), `${projectId()} ${name} ${table.digest}`);
  if (table.count) stored.ensure([0]);

  const columns = computed(() => sheet.columns.value
    .map((column) => ({ ...column, sorted: sortOf()?.key === column.key ? (sortOf().descending ? "descending" : "ascending")
    : "" })));
  const source = gridSource(sheet, columns, name);
  const view = grid(source);
  source.place = (row) => { view.cursor.value = { row, column: view.cursor.peek().column, toRow: row,
    toColumn: view.cursor.peek().column }; view.reveal(row); };
  const hasRows = computed(() => sheet.columns.value.length > 0 || table.count > 0);
  const told = computed(() => summary(sheet.edits.value));
  effect(() => {
    listed.value;
    untrack(() => source.place(0));
  });
  keys({ "/": [() => source.find(), "find in the rows"], p: [() => told.value.any && publish(sheet), "publish the edits"] });
  const element = h("div.dataseteditor",
    toolbar({ sheet, view, source, told, publish }), filterBar(listed),
    () => (hasRows.value ? view : starter(sheet, view)),
    statusBar(sheet, view, listed, told));
  return { element, sheet };
}

const sortOf = () => {
  const text = query("sort");
  return text ? { key: text.replace(/^-/, ""), descending: text.startsWith("-") } : null;
};

/** What the address asks for: {filters: [[key, text]], find}. */
function asked() {
  let filters = [];
  try {
    filters = JSON.parse(query("filter") ?? "[]");
  } catch {
    // An address that was cut off filters nothing.
  }
  return { filters, find: query("find") ?? "" };
}

/** The rows that a sort or filter shows, or null for all in their order. */
function chosenRows(table, on) {
  const { filters, find } = asked();
  if (!filters.length && !find) {
    const sort = sortOf();
    return sort ? openTable({ ...table, sort }, on) : null;
  }
  const tests = filters.map(([key, text]) => [key, cellTest(text)]);
  const needle = find.toLowerCase();
  const scan = scanTable(table, (values) => tests.every(([key, test]) => test(values?.[key]))
    && (!needle || Object.values(values ?? {}).some(
      (value) => String(typeof value === "object" ? JSON.stringify(value) : value).toLowerCase().includes(needle))));
  return { scan };
}

function gridSource(sheet, columns, name) {
  const source = {
    label: `Rows of ${name}`, columns: () => columns.value, count: sheet.count, row: sheet.view, place: (_row) => {},
    load: (rows) => sheet.load(rows),
    set: (cells) => {
      const rows = [...new Set(cells.map(({ row }) => row))].filter((row) => row < sheet.count());
      const missing = rows.filter((row) => !sheet.view(row).values);
      return missing.length ? sheet.load(missing).then(() => sheet.set(cells)) : sheet.set(cells);
    },
    remove: (rows) => sheet.remove(rows),
    insert: (at, rows) => sheet.insert(at, rows),
    undo: () => sheet.undo() || toast("Nothing to undo"),
    redo: () => sheet.redo() || toast("Nothing to redo"),
    find: () => /** @type {HTMLElement} */ (document.querySelector('input[aria-label="Find in rows"]'))?.focus(),
    addColumn: () => askColumn(sheet),
    columnMenu: (column) => columnMenu(sheet, column),
  };
  return source;
}

async function askColumn(sheet) {
  const taken = (name) => sheet.columns.peek().some((column) => column.name === name);
  const answer = await form("New column", [
    { name: "name", label: "Name", required: true, autofocus: true },
    { name: "kind", label: "Holds", options: KINDS, value: "text" },
  ], { action: "Add column",
    submit: ({ name }) => { if (taken(name.trim())) throw new Error("A column with this name exists"); } });
  if (answer) sheet.addColumn(answer.name.trim(), answer.kind);
}

function columnMenu(sheet, column) {
  const isStored = !column.key.startsWith("+");
  const sortable = isStored && !column.key.includes(".");
  const sort = (text) => setQuery({ sort: text, filter: null, find: null });
  return [
    sortable && ["Sort ascending", () => sort(column.key)],
    sortable && ["Sort descending", () => sort(`-${column.key}`)],
    sortOf() && ["Original order", () => sort(null)],
    isStored && ["Filter…", () => askFilter(column), { iconName: "filter" }],
    ["Rename…", () => askName(sheet, column), { iconName: "edit" }],
    ...KINDS.filter(([kind]) => kind !== column.kind)
      .map(([kind, text]) => [`Enter as ${text}`, () => sheet.setKind(column.key, kind)]),
    ["Delete column", () => sheet.drop(column.key), { iconName: "trash", danger: true }],
  ];
}

async function askFilter(column) {
  const { filters } = asked();
  const answer = await form(`Filter by ${column.name}`, [{
    name: "text", label: "Cell value", autofocus: true, value: filters.find(([key]) => key === column.key)?.[1] ?? "",
    hint: "Text that it contains, or =this, !=this, >5, <=5, empty",
  }], { action: "Filter" });
  if (!answer) return;
  const next = filters.filter(([key]) => key !== column.key);
  if (answer.text.trim()) next.push([column.key, answer.text]);
  setQuery({ filter: next.length ? JSON.stringify(next) : null, sort: null }, false);
}

async function askName(sheet, column) {
  const answer = await form("Rename column",
    [{ name: "name", label: "Name", required: true, value: column.name, autofocus: true }], { action: "Rename" });
  const name = answer?.name.trim();
  if (!name || name === column.name) return;
  if (sheet.columns.peek().some((other) => other.name === name)) toast("A column with this name exists", { kind: "error" });
  else sheet.rename(column.key, name);
}

function toolbar({ sheet, view, source, told, publish }) {
  const rowItems = () => {
    const rows = view.selectedRows();
    const copies = () => rows.map((row) => sheet.view(row).values).filter(Boolean).map((values) => ({ ...values }));
    const last = rows[rows.length - 1];
    return [
      ["Add row at the end", () => { sheet.append([{}]); source.place(sheet.count() - 1); view.focusGrid(); },
        { iconName: "add" }],
      ["Insert row above", () => { sheet.insert(rows[0], [{}]); view.focusGrid(); }, { iconName: "add" }],
      ["Insert row below", () => { sheet.insert(last + 1, [{}]); source.place(last + 1); view.focusGrid(); },
        { iconName: "add" }],
      ["Duplicate", () => { sheet.insert(last + 1, copies()); source.place(last + 1); view.focusGrid(); }, { iconName: "copy" }],
      ["New column…", () => source.addColumn(), { iconName: "columns" }],
      ["Delete or restore", () => { sheet.remove(rows); view.focusGrid(); }, { iconName: "trash", danger: true }],
    ];
  };
  const discard = async () => {
    if (await confirm("Discard all edits?", "Unpublished edits will be lost.", { action: "Discard" })) sheet.reset();
  };
  return h("div.bar-of-tools",
    searchBox("Find in rows", () => query("find") ?? "", (text) => setQuery({ find: text, sort: null }), { pause: 250 }),
    menu("Rows", rowItems, { iconName: "calls" }),
    button("Import", () => importRows(sheet), { iconName: "data" }),
    button(null, source.undo, { iconName: "undo", label: "Undo (Ctrl Z)" }),
    button(null, source.redo, { iconName: "redo", label: "Redo (Ctrl Shift Z)" }),
    h("span.grow"),
    h("span.edits", () => [
      told.value.inserted > 0 && h("span.badge.good", `+${int(told.value.inserted)}`),
      told.value.changed > 0 && h("span.badge.warn", `${int(told.value.changed)} changed`),
      told.value.removed > 0 && h("span.badge.error", `−${int(told.value.removed)}`),
      (told.value.any || told.value.added.length > 0) && button("Discard", discard, { kind: "quiet" }),
    ], h("button.button.primary", { type: "button", title: refusal("write"),
      disabled: () => Boolean(refusal("write")) || !told.value.any, onclick: () => publish(sheet) },
      "Publish version")));
}

async function importRows(sheet) {
  const answer = await importDialog();
  if (!answer) return;
  const names = columnsOf(answer.rows);
  const keyOf = new Map(
    names.map((name) => [name, sheet.keyOf(name, columnKind(answer.rows.slice(0, 200).map((row) => row[name])))]));
  const rows = answer.rows.map((row) => Object.fromEntries(Object.entries(row).map(([name, value]) => [keyOf.get(name), value])));
  if (answer.mode === "replace") sheet.replace(rows);
  else sheet.append(rows);
  toast(`${plural(rows.length, "row")} imported; publish to keep them`);
}

function filterBar(listed) {
  return () => {
    const { filters, find } = asked();
    const scan = listed.value?.scan;
    if (!filters.length && !find) return null;
    const without = (key) => filters.filter(([name]) => name !== key);
    return h("div.bar-of-tools.filterbar", filters.map(([key, text]) =>
      chip(`${key}: ${text}`, () => setQuery({ filter: without(key).length ? JSON.stringify(without(key)) : null }, false))),
    find && chip(`any column: ${find}`, () => setQuery({ find: null })),
    scan && h("span.dim", { role: "status" }, () => (scan.error.value ? scan.error.value.message
      : `${int(scan.rows.value.length)} found ${scan.done.value ? "in" : "so far in"} ${plural(scan.scanned.value, "row")}`)));
  };
}

function starter(sheet, view) {
  const start = async () => {
    await askColumn(sheet);
    if (sheet.columns.peek().length) { sheet.append([{}]); view.focusGrid(); }
  };
  return h("div.empty", h("h2", "No rows yet"),
    h("p", "Import a file or calls, or add a column and start typing. Nothing is stored until you publish a version."),
    h("div.actions", button("Import rows", () => importRows(sheet), { kind: "primary", iconName: "data" }),
      button("Add column", start, { iconName: "add" })));
}

function statusBar(sheet, view, listed, told) {
  const place = () => {
    if (!sheet.count()) return "";
    const { row, column, toRow, toColumn } = view.cursor.value;
    const cells = (Math.abs(toRow - row) + 1) * (Math.abs(toColumn - column) + 1);
    return cells > 1 ? `${plural(cells, "cell")} selected` : `row ${int(row + 1)}, ${sheet.columns.value[column]?.name ?? ""}`;
  };
  return h("div.gridstatus",
    h("span", () => `${int(sheet.count())} ${listed.value?.scan ? "shown" : sheet.count() === 1 ? "row" : "rows"}`),
    h("span.one-line", place),
    h("span.grow"), () => told.value.added.length > 0 && !told.value.any
      && h("span", "A new column is saved once one of its cells has a value."),
    h("span.hints", h("kbd", "Enter"), "edit ", h("kbd", "Del"), "clear ", h("kbd", "Ctrl"), h("kbd", "Z"), "undo ",
      h("kbd", "Ctrl"), h("kbd", "D"), "duplicate ", h("kbd", "Alt"), h("kbd", "↓"), "column ", h("kbd", "Esc"), h("kbd", "Tab"),
      "leave"));
}
