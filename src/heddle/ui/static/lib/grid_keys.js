// The keys, the pointer and the clipboard of the editor grid.
import { converted, range } from "./cells.js";
import { toast } from "./dialog.js";
import { readTable, writeTable } from "./importers.js";

/** More rows are not changed or copied at once: each has to be loaded. */
const MOST_ROWS = 5000;

/**
 * Bind a grid to keys and pointer.
 * @param {any} control what `grid` made: source, cursor, box, reveal, page
 * @param {{open: (initial?: string|null) => void, isOpen: () => boolean, commit: () => void}} editor
 */
export function bindGrid(control, editor) {
  const { box } = control;
  const move = mover(control);
  box.addEventListener("keydown", (event) => {
    if (event.target !== box || editor.isOpen()) return;
    const done = commands(control, editor, move, event) ?? steps(control, move, event) ?? typing(control, editor, event);
    if (done) {
      event.preventDefault();
      event.stopPropagation();
    }
  });
  bindPointer(control, editor, move);
  const copy = (event, cut) => {
    if (event.target !== box) return;
    event.preventDefault();
    const text = copied(control);
    if (text === null) return;
    event.clipboardData.setData("text/plain", text);
    if (cut) clear(control);
  };
  box.addEventListener("copy", (event) => copy(event, false));
  box.addEventListener("cut", (event) => copy(event, true));
  box.addEventListener("paste", (event) => {
    if (event.target !== box) return;
    event.preventDefault();
    paste(control, event.clipboardData.getData("text/plain"));
  });
}

/** Move the cursor to a cell; with `extend` the selection grows instead. */
function mover({ source, cursor, reveal, cellAt }) {
  return (row, column, extend = false) => {
    const clamp = (value, size) => Math.max(0, Math.min(size - 1, value));
    const at = { row: clamp(row, source.count()), column: clamp(column, source.columns().length) };
    const now = cursor.peek();
    cursor.value = extend ? { ...now, toRow: at.row, toColumn: at.column } : { ...at, toRow: at.row, toColumn: at.column };
    reveal(at.row);
    setTimeout(() => cellAt(at)?.scrollIntoView({ block: "nearest", inline: "nearest" }));
  };
}

function steps({ source, cursor, page }, move, event) {
  const now = cursor.peek();
  const extend = event.shiftKey && event.key !== "Tab";
  const [row, column] = extend ? [now.toRow, now.toColumn] : [now.row, now.column];
  const far = event.ctrlKey || event.metaKey;
  const [rows, columns] = [source.count(), source.columns().length];
  const step = {
    ArrowUp: () => [far ? 0 : row - 1, column], ArrowDown: () => [far ? rows - 1 : row + 1, column],
    ArrowLeft: () => [row, far ? 0 : column - 1], ArrowRight: () => [row, far ? columns - 1 : column + 1],
    Home: () => [far ? 0 : row, 0], End: () => [far ? rows - 1 : row, columns - 1],
    PageUp: () => [row - page(), column], PageDown: () => [row + page(), column],
  }[event.key];
  if (event.key === "Tab") return tab(now, rows, columns, move, event.shiftKey);
  if (!step || event.altKey) return undefined;
  const [toRow, toColumn] = step();
  move(toRow, toColumn, extend);
  return true;
}

/** Tab goes on to the next row at a row's end; beyond the last cell it leaves the grid. */
function tab({ row, column, left }, rows, columns, move, back) {
  const place = row * columns + column + (back ? -1 : 1);
  if (left || place < 0 || place >= rows * columns) return false;
  move(Math.floor(place / columns), place % columns);
  return true;
}

function commands(control, editor, move, event) {
  const { source, cursor, box } = control;
  const key = event.key.toLowerCase();
  const now = cursor.peek();
  if (event.ctrlKey || event.metaKey) {
    const action = {
      z: () => (event.shiftKey ? source.redo() : source.undo()), y: () => source.redo(), f: () => source.find(),
      a: () => { cursor.value = { row: 0, column: 0, toRow: source.count() - 1, toColumn: source.columns().length - 1 }; },
      d: () => duplicate(control), enter: () => { source.insert(now.row + 1, [{}]); move(now.row + 1, now.column); },
      delete: () => source.remove(range(now).rows), backspace: () => source.remove(range(now).rows),
    }[key];
    if (!action) return undefined;
    action();
    return true;
  }
  if (event.altKey && event.key === "ArrowDown") {
    const { key: name } = source.columns()[now.column];
    /** @type {HTMLElement} */ (box.querySelector(`[data-column="${CSS.escape(name)}"]`))?.click();
    return true;
  }
  if (event.altKey) return undefined;
  const action = {
    enter: () => editor.open(), f2: () => editor.open(), delete: () => clear(control), backspace: () => clear(control),
    escape: () => { cursor.value = { ...now, toRow: now.row, toColumn: now.column, left: true }; },
  }[key];
  if (!action) return undefined;
  action();
  return true;
}

function typing({ source, cursor }, editor, event) {
  if (event.key.length !== 1 || event.ctrlKey || event.metaKey || event.altKey) return false;
  const { row, column } = cursor.peek();
  const value = source.row(row).values?.[source.columns()[column]?.key];
  if (event.key === " " && typeof value === "boolean") source.set([{ row, key: source.columns()[column].key, value: !value }]);
  else editor.open(event.key);
  return true;
}

function duplicate({ source, cursor }) {
  const { rows } = range(cursor.peek());
  const copies = rows.map((row) => source.row(row).values).filter(Boolean).map((values) => ({ ...values }));
  source.insert(rows[rows.length - 1] + 1, copies);
}

/** The selection, unless it is too large. */
function chosen({ cursor }) {
  const { row, toRow } = cursor.peek();
  if (Math.abs(toRow - row) < MOST_ROWS) return range(cursor.peek());
  toast(`Select at most ${MOST_ROWS.toLocaleString("en")} rows`, { kind: "error" });
  return null;
}

function clear(control) {
  const { source } = control;
  const found = chosen(control);
  if (found) source.set(
    found.rows.flatMap((row) => found.columns.map((at) => ({ row, key: source.columns()[at].key, value: null }))));
}

function copied(control) {
  const { source } = control;
  const found = chosen(control);
  if (!found) return null;
  const missing = found.rows.filter((row) => !source.row(row).values);
  if (missing.length) {
    source.load(missing);
    toast("Some of the rows are loading: copy again in a moment");
    return null;
  }
  return writeTable(found.rows.map((row) => found.columns.map((at) => source.row(row).values[source.columns()[at].key] ?? null)));
}

/** Put a block of text into the cells from the cursor on; one cell fills the whole selection, rows too many are added. */
function paste(control, text) {
  const { source, cursor } = control;
  const block = readTable(text.replace(/\r?\n$/, ""));
  const found = chosen(control);
  if (!found || !block.length) return;
  const { rows, columns } = found;
  const list = source.columns();
  if (block.length === 1 && block[0].length === 1) {
    const fill = (row, at) => ({ row, key: list[at].key, value: converted(block[0][0], list[at].kind) });
    source.set(rows.flatMap((row) => columns.map((at) => fill(row, at))));
    return;
  }
  const cells = block.flatMap((line, down) => line.flatMap((cell, right) => {
    const column = list[columns[0] + right];
    return column ? [{ row: rows[0] + down, key: column.key, value: converted(cell, column.kind) }] : [];
  }));
  source.set(cells);
  cursor.value = { row: rows[0], column: columns[0], toRow: rows[0] + block.length - 1,
    toColumn: Math.min(list.length, columns[0] + block[0].length) - 1 };
}

function bindPointer({ box, source, cursor }, editor, move) {
  let dragging = false;
  const at = (event) => {
    const cell = event.target.closest?.(".gridcell, .gridbody .gridnumber");
    const row = cell?.closest(".gridrow");
    return row ? { row: Number(row.dataset.row), column: [...row.children].indexOf(cell) - 1 } : null;
  };
  box.addEventListener("pointerdown", (event) => {
    const place = at(event);
    if (!place || event.button) return;
    if (editor.isOpen()) editor.commit();
    box.focus({ preventScroll: true });
    event.preventDefault();
    if (place.column < 0) cursor.value = { row: event.shiftKey ? cursor.peek().row : place.row, column: 0, toRow: place.row,
      toColumn: source.columns().length - 1 };
    else move(place.row, place.column, event.shiftKey);
    dragging = place.column >= 0;
  });
  box.addEventListener("pointermove", (event) => {
    const place = dragging && event.buttons === 1 ? at(event) : null;
    const now = cursor.peek();
    if (place && place.column >= 0 && (place.row !== now.toRow || place.column !== now.toColumn)) cursor.value = { ...now,
      toRow: place.row, toColumn: place.column };
  });
  box.addEventListener("pointerup", () => { dragging = false; });
  box.addEventListener("dblclick", (event) => at(event)?.column >= 0 && editor.open());
}
