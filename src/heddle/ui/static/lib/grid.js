// An editor grid: any number of rows, of which only the visible ones are in the document, with the keys of a sheet.
import { computed, each, effect, h, onCleanup, signal } from "./dom.js";
import { menu } from "./dialog.js";
import { kindOf, range } from "./cells.js";
import { widthHandle } from "./columnwidths.js";
import { stored } from "./data.js";
import { cellEditor } from "./grid_editor.js";
import { bindGrid } from "./grid_keys.js";
import { int, oneLine } from "./format.js";
import { isPlainJson, lineText, valueLine } from "./line.js";
import { rowHeight } from "./windowed.js";

const HEIGHT = rowHeight(30);
const HEAD = rowHeight(34);
const GUTTER = 80;
const TALLEST = 15_000_000;
const GLYPHS = { text: "Aa", number: "12", boolean: "✓", json: "{}" };
let grids = 0;

/**
 * What a grid shows and edits.
 * @typedef {{key: string, name: string, kind: string, state?: string, sorted?: string}} Column
 * @typedef {{values: any, before: any, state: string, number: number|null}} RowView `values` is null while it loads
 * @typedef {object} Source
 * @property {string} label
 * @property {() => Column[]} columns
 * @property {() => number} count
 * @property {(index: number) => RowView} row
 * @property {(cells: {row: number, key: string, value: any}[]) => any} set
 * @property {(rows: number[]) => Promise<any>} load have rows loaded that are not there yet
 * @property {(rows: number[]) => void} remove
 * @property {(at: number, rows: any[]) => void} insert
 * @property {() => void} undo
 * @property {() => void} redo
 * @property {(column: Column) => any[]} columnMenu items of the menu of a column
 * @property {() => void} addColumn
 * @property {() => void} find
 */

/**
 * Make a grid; `cursor` is a signal of the selection {row, column, toRow, toColumn}.
 * @param {Source} source
 */
export function grid(source) {
  const name = `grid${++grids}`;
  const cursor = signal({ row: 0, column: 0, toRow: 0, toColumn: 0 });
  const kept = stored(`widths.${source.label}`, /** @type {Record<string, number>} */ ({}));
  const widths = signal(new Map(Object.entries(kept.peek())));
  const top = signal(0);
  const space = signal(600);
  const scaled = () => source.count() * HEIGHT > TALLEST;
  const body = h("div.gridbody",
    { role: "rowgroup", style: () => ({ height: `${Math.min(TALLEST, source.count() * HEIGHT)}px` }) });
  const head = h("div.gridhead", { role: "rowgroup" }, () => header(source, widths, kept));
  const box = h("div.grid", {
    role: "grid", tabindex: 0, "aria-label": source.label, "aria-multiselectable": "true",
    "aria-rowcount": () => source.count() + 1, "aria-colcount": () => source.columns().length + 1,
    "aria-activedescendant": () => (source.count() ? `${name}-${cursor.value.row}-${cursor.value.column}` : null),
    style: () => template(source.columns(), widths.value),
    onscroll: () => { top.value = scaled() ? box.scrollTop : Math.floor(box.scrollTop / HEIGHT / 8) * 8 * HEIGHT; },
  }, head, body);
  const frame = h("div.gridframe", box);
  const watch = new ResizeObserver(() => { space.value = box.clientHeight; });
  watch.observe(box);
  onCleanup(() => watch.disconnect());

  /** The row at the top of the window, with its fraction. */
  const firstRow = () => {
    if (!scaled()) return top.value / HEIGHT;
    const room = space.value - HEAD;
    return (top.value / (TALLEST - room)) * (source.count() - room / HEIGHT);
  };
  const visible = computed(() => {
    const first = Math.max(0, Math.floor(firstRow()) - 6);
    const last = Math.min(source.count(), first + Math.ceil(space.value / HEIGHT) + 20);
    return Array.from({ length: Math.max(0, last - first) }, (_, offset) => first + offset);
  });
  const place = (index) => (scaled() ? top.value + (index - firstRow()) * HEIGHT : index * HEIGHT);
  each(body, () => visible.value, (index) => index, (_, index) => row(source, cursor, index, place, name));
  sampleWidths(source, widths, visible);

  const reveal = (index) => {
    const room = box.clientHeight - HEAD;
    const y = index * HEIGHT;
    if (scaled()) {
      const seen = index - firstRow();
      if (seen < 0 || seen > room / HEIGHT - 1.5) {
        box.scrollTop = ((index - 2) / (source.count() - room / HEIGHT)) * (TALLEST - room);
      }
    } else if (y < box.scrollTop) box.scrollTop = y;
    else if (y + HEIGHT > box.scrollTop + room) box.scrollTop = y + HEIGHT - room;
  };
  const cellAt = (at) => document.getElementById(`${name}-${at.row}-${at.column}`);
  effect(() => {
    const at = cursor.value;
    const row = Math.max(0, Math.min(at.row, source.count() - 1));
    const column = Math.max(0, Math.min(at.column, source.columns().length - 1));
    if (row !== at.row || column !== at.column) cursor.value = { row, column, toRow: row, toColumn: column };
  });
  const control = { source, cursor, box, frame, reveal, cellAt,
    page: () => Math.max(1, Math.floor((box.clientHeight - HEAD) / HEIGHT) - 1) };
  const editor = cellEditor(control);
  bindGrid(control, editor);
  return Object.assign(frame, { cursor, reveal, focusGrid: () => box.focus({ preventScroll: true }),
    selectedRows: () => range(cursor.peek()).rows });
}

function template(columns, widths) {
  const each_ = columns.map((column) => widths.get(column.key) ?? 140);
  return {
    "--row-height": `${HEIGHT}px`,
    "--head-height": `${HEAD}px`,
    "--grid-columns": `${GUTTER}px ${each_.map((width) => `${width}px`).join(" ")} minmax(96px, 1fr)`,
    "--grid-width": `${GUTTER + 96 + each_.reduce((sum, width) => sum + width, 0)}px`,
  };
}

function header(source, widths, kept) {
  const columns = source.columns();
  return h("div.gridrow", { role: "row", "aria-rowindex": 1 },
    h("div.gridnumber", { role: "columnheader" }, h("span.hidden-text", "Row")),
    columns.map((column, index) => h("div.gridcolumn", {
      role: "columnheader", "aria-colindex": index + 2, class: column.state ?? "", "aria-sort": column.sorted || null,
        title: `${column.name} (${column.kind})`,
    }, h("span.gridkind", { "aria-hidden": "true" }, GLYPHS[column.kind]),
    menu([h("span.one-line", { dir: "auto" }, column.name),
      column.sorted && h("span", { "aria-hidden": "true" }, column.sorted === "descending" ? " ↓" : " ↑")],
      () => source.columnMenu(column), { kind: "quiet", iconName: "", tabindex: -1, "data-column": column.key }),
    sizer(column, widths, kept))),
    h("div.gridcolumn.gridplus", { role: "columnheader", "aria-label": "New column" },
      h("button.button.quiet", { type: "button", onclick: () => source.addColumn() }, "+ Column")));
}

function sizer(column, widths, kept) {
  const change = (width) => {
    const next = new Map(widths.peek());
    const chosen = { ...kept.peek() };
    if (width === null) {
      next.delete(column.key);
      delete chosen[column.key];
    } else {
      next.set(column.key, width);
      chosen[column.key] = width;
    }
    widths.value = next;
    kept.value = chosen;
  };
  return widthHandle({ label: column.name, width: () => widths.value.get(column.key) ?? 140, set: change,
    reset: () => change(null) });
}

/** Give columns a width that fits the first rows that were loaded; what the reader has dragged stays. */
function sampleWidths(source, widths, visible) {
  effect(() => {
    const next = new Map(widths.peek());
    const rows = visible.value.slice(0, 30).map((index) => source.row(index).values).filter(Boolean);
    for (const column of source.columns()) {
      if (next.has(column.key) || !rows.length) continue;
      const longest = Math.max(column.name.length + 5, ...rows.map((values) => lineText(values[column.key], 60).length));
      next.set(column.key, Math.round(Math.min(340, Math.max(96, longest * 7.6 + 30))));
    }
    if (next.size !== widths.peek().size) widths.value = next;
  });
}

function row(source, cursor, index, place, name) {
  const element = h("div.gridrow", { role: "row", "aria-rowindex": index + 2, "data-row": index });
  let shown = {};
  effect(() => element.style.setProperty("transform", `translateY(${place(index)}px)`));
  const fill = signal(0);
  effect(() => {
    if (index >= source.count()) return;
    const columns = source.columns();
    const view = source.row(index);
    if (shown.columns === columns && shown.values === view.values && shown.before === view.before && shown.state === view.state
      && shown.number === view.number) return;
    shown = { columns, ...view };
    element.className = `gridrow ${view.state}`;
    element.replaceChildren(number(view), ...columns.map((column, at) => cell(column, view, `${name}-${index}-${at}`, at)));
    fill.value = fill.peek() + 1;
  });
  effect(() => {
    fill.value;
    mark(element, cursor.value, index);
  });
  return element;
}

function mark(element, at, index) {
  const inRows = index >= Math.min(at.row, at.toRow) && index <= Math.max(at.row, at.toRow);
  const [first, last] = [Math.min(at.column, at.toColumn), Math.max(at.column, at.toColumn)];
  [...element.children].forEach((child, place) => {
    const column = place - 1;
    const isChosen = inRows && column >= first && column <= last;
    child.classList.toggle("chosen", isChosen || (place === 0 && inRows));
    child.classList.toggle("active", index === at.row && column === at.column);
    if (place) child.setAttribute("aria-selected", String(isChosen));
  });
}

const STATES = { added: "New row", changed: "Changed row", removed: "Row to be deleted" };

function number(view) {
  return h("div.gridnumber", { role: "rowheader", title: STATES[view.state] ?? null },
    h("span", { "aria-hidden": "true" }, { added: "+", changed: "●", removed: "−" }[view.state] ?? ""),
    view.state && h("span.hidden-text", STATES[view.state]), view.number === null ? "new" : int(view.number));
}

function cell(column, view, id, at) {
  const attributes = { role: "gridcell", id, "aria-colindex": at + 2 };
  if (!view.values) return h("div.gridcell.waiting", attributes, h("i", { "aria-hidden": "true" }));
  const value = view.values[column.key];
  const changed = view.state === "changed" && JSON.stringify(value) !== JSON.stringify(view.before?.[column.key]);
  const kind = kindOf(value);
  return h("div.gridcell", {
    ...attributes, "data-type": kind, class: changed ? "changed" : "", dir: kind === "text" ? "auto" : null,
    title: changed ? `was: ${lineText(view.before?.[column.key], 300) || "empty"}` : kind === "text" && value.length > 40
      ? value.slice(0, 2000) : null,
  }, kind === "null" ? (value === null ? h("span.faint", "null") : "") : kind === "boolean" ? String(value)
    : kind === "json" && isPlainJson(value) ? oneLine(value, 200) : valueLine(value));
}
