// Editing one cell of the grid: a box over the cell, or a dialog for JSON.
import { converted, editable } from "./cells.js";
import { h, signal } from "./dom.js";
import { dialog } from "./dialog.js";
import { parseJson } from "./exactjson.js";
import { button } from "./parts.js";

/** The editor of a grid: `open(initial)` starts on the active cell, `initial` replaces what it holds. */
export function cellEditor({ source, cursor, box, frame, cellAt, reveal }) {
  let open = null;
  const close = (keep) => {
    if (!open) return;
    const { area, row, column, value } = open;
    open = null;
    area.remove();
    box.focus({ preventScroll: true });
    if (keep && area.value !== editable(value)) source.set([{ row, key: column.key, value: converted(area.value, column.kind) }]);
  };
  const step = (down, right) => {
    const { row, column } = cursor.peek();
    const next = { row: Math.max(0, Math.min(source.count() - 1, row + down)),
      column: Math.max(0, Math.min(source.columns().length - 1, column + right)) };
    cursor.value = { ...next, toRow: next.row, toColumn: next.column };
    reveal(next.row);
  };
  const onkeydown = (event) => {
    if (event.isComposing) return;
    if (event.key === "Escape") close(false);
    else if (event.key === "Tab") { close(true); step(0, event.shiftKey ? -1 : 1); }
    else if (event.key === "Enter" && !event.altKey && !event.shiftKey) { close(true); step(1, 0); }
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const start = (initial = null) => {
    const at = cursor.peek();
    const [column, cell, view] = [source.columns()[at.column], cellAt(at), source.row(at.row)];
    if (!column || !cell || !view.values || view.state === "removed") return;
    const value = view.values[column.key];
    const isJson = value !== null && typeof value === "object" || (column.kind === "json" && initial === null);
    if (isJson) {
      editJson(column.name, value).then((answer) => {
        if (answer) source.set([{ row: at.row, key: column.key, value: answer.value }]);
        box.focus({ preventScroll: true });
      });
    } else if (typeof value === "boolean" && initial === null) source.set([{ row: at.row, key: column.key, value: !value }]);
    else open = { ...overlay(frame, cell, initial ?? editable(value), column.name, onkeydown, () => close(true)), row: at.row,
      column, value, top: box.scrollTop, left: box.scrollLeft };
  };
  // The event of a scroll that came before the editor opened may come after.
  box.addEventListener("scroll", () => {
    if (open && (box.scrollTop !== open.top || box.scrollLeft !== open.left)) close(true);
  });
  return { open: start, isOpen: () => open !== null, commit: () => close(true) };
}

function overlay(frame, cell, text, label, onkeydown, onblur) {
  const [at, around] = [cell.getBoundingClientRect(), frame.getBoundingClientRect()];
  const isLong = text.length > 60 || text.includes("\n");
  const area = h("textarea.gridedit", {
    "aria-label": `Edit ${label}`, dir: "auto", value: text, onkeydown, onblur, rows: 1, spellcheck: "false",
    style: {
      left: `${at.left - around.left}px`, top: `${at.top - around.top}px`, width: `${Math.max(at.width, isLong ? 380 : 120)}px`,
      height: isLong ? `${Math.min(240, 40 + Math.ceil(text.length / 50) * 20 + text.split("\n").length * 8)}px`
        : `${at.height}px`,
    },
  });
  frame.append(area);
  area.focus({ preventScroll: true });
  area.setSelectionRange(text.length, text.length);
  const room = frame.getBoundingClientRect();
  const placed = area.getBoundingClientRect();
  if (placed.right > room.right) area.style.setProperty("left", `${Math.max(0, room.width - placed.width - 4)}px`);
  if (placed.bottom > room.bottom) area.style.setProperty("top", `${Math.max(0, room.height - placed.height - 4)}px`);
  return { area };
}

/** Ask for a JSON value in a dialog with line numbers that says where it is wrong; resolves to {value} or null. */
export function editJson(name, value) {
  return dialog(`Edit ${name}`, (close) => {
    const text = signal(JSON.stringify(value ?? null, null, 2));
    const problem = h("p.problem", { role: "alert" });
    const lines = h("pre.gridlines", { "aria-hidden": "true" }, () => text.value.split("\n")
      .map((_, index) => index + 1).join("\n"));
    const area = h("textarea.mono", {
      "aria-label": "JSON", value: text.peek(), spellcheck: "false", wrap: "off", rows: 18, autofocus: true,
      oninput: () => { text.value = area.value; problem.textContent = wrong(area.value); },
      onscroll: () => { lines.scrollTop = area.scrollTop; },
      onkeydown: (event) => {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) done();
        if (event.key !== "Tab" || event.shiftKey) return;
        event.preventDefault();
        area.setRangeText("  ", area.selectionStart, area.selectionEnd, "end");
        text.value = area.value;
      },
    });
    const done = () => {
      problem.textContent = wrong(area.value);
      if (!problem.textContent) close({ value: parseJson(area.value) });
    };
    const tidy = () => {
      if (wrong(area.value)) return;
      area.value = text.value = JSON.stringify(parseJson(area.value), null, 2);
    };
    return [h("div.gridjson", lines, area), problem,
      h("div.actions", h("span.faint", h("kbd", "Ctrl"), h("kbd", "Enter"), " applies"), h("span.grow"), button("Format", tidy),
        button("Cancel", () => close()), button("Apply", done, { kind: "primary" }))];
  }, { wide: true });
}

/** What is wrong with a JSON text, with its line; "" when it is right. */
export function wrong(text) {
  const message = refusal(text);
  if (!message) return "";
  const before = text.slice(0, wrongAt(text)).split("\n");
  const told = message.replace(/,? (in JSON )?at position.*/s, "").replace(/, (\.\.\.)?".*" is not valid JSON$/s, "");
  return `Line ${before.length}, column ${before[before.length - 1].length + 1}: ${told}`;
}

function refusal(text) {
  try {
    JSON.parse(text);
    return "";
  } catch (error) {
    return error.message;
  }
}

/** Where a text stops being the beginning of JSON; not every message of the browser says so. */
function wrongAt(text) {
  const isBeginning = (length) => {
    const message = refusal(text.slice(0, length));
    const place = /at position (\d+)/.exec(message);
    return !message || /end of JSON|Unterminated|missing|No number/.test(message) || Number(place?.[1]) >= length;
  };
  let [low, high] = [0, text.length];
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (isBeginning(middle)) low = middle;
    else high = middle - 1;
  }
  return low;
}
