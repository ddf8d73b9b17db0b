// Tables with a keyboard, and lists that keep only the visible rows in the document.
import { computed, each, h, signal } from "./dom.js";
import { columnWidths } from "./columnwidths.js";
import { keys } from "./parts.js";

/**
 * A table of at most a few hundred rows.
 *
 * Columns are {key, label, render(row), number, width, sort, title}: `render` gives text or nodes; with `sort` the heading
 * is a button that calls `onsort(key)`. `href(row)` makes the row open on click and Enter, with a real link in the first
 * column. `selection` (a signal of a Set of keys) adds a checkbox per row; `onpeek(row)` binds the space key. With
 * `resizable` columns have handles, and their widths are kept under the label.
 * @param {{columns: () => any[], rows: () => any[], key: (row: any) => any, label: string,
 *   href?: (row: any) => string|null, onopen?: (row: any) => void, onpeek?: (row: any) => void,
 *   selection?: import("./dom.js").Signal<Set<any>>, order?: () => ({key: string, descending: boolean}|null),
 *   onsort?: (key: string) => void, busy?: () => boolean, keyboard?: boolean, resizable?: boolean, footer?: any}} options
 */
export function table({ columns, rows, key, label, href, onopen, onpeek, selection, order, onsort, busy, keyboard = true,
  resizable = false, footer }) {
  const active = signal(null);
  const open = (row) => (onopen ? onopen(row) : href && location.assign !== undefined && clickLink(row));
  const linkOf = (name) => body.querySelector(`tr[data-key="${CSS.escape(String(name))}"] a[href]`);
  const clickLink = (row) => linkOf(key(row))?.click();
  const openTab = (name) => {
    const anchor = href && linkOf(name);
    if (anchor) globalThis.open(anchor.href, "_blank");
  };
  const position = () => rows().findIndex((row) => key(row) === active.value);
  const move = (step) => {
    const list = rows();
    if (!list.length) return;
    const at = Math.max(0, Math.min(list.length - 1, position() + step));
    active.value = key(list[at]);
    body.children[at]?.scrollIntoView({ block: "nearest" });
  };
  const current = () => rows()[position()];
  if (keyboard) {
    keys({
      j: [() => move(1), "next row"],
      k: [() => move(-1), "previous row"],
      Enter: [() => current() && open(current()), "open the row"],
      ...(onpeek ? { " ": [() => current() && onpeek(current()), "preview the row beside the list"] } : {}),
      ...(selection ? { x: [() => current() && toggle(selection, key(current())), "select the row"] } : {}),
    });
  }
  const body = h("tbody");
  const cell = (column, item) => h("td", { class: column.number ? "number" : column.class ?? "" },
    () => column.render(item.value));
  each(body, () => { const shown = columns(); return rows().map((row) => ({ row, shown })); },
    ({ row, shown }) => `${key(row)} ${shown.map((column) => column.key).join(" ")}`,
    (held, { row: first, shown }) => {
      const item = computed(() => held.value.row);
      const name = key(first);
      return h("tr", {
        "data-key": name, class: () => (active.value === name ? "active" : ""),
        "aria-selected": selection ? () => String(selection.value.has(name)) : null,
        onfocusin: () => { active.value = name; },
        onclick: (event) => {
          active.value = name;
          if (event.target.closest("a,button,input,label") || getSelection()?.toString()) return;
          if (href && (event.ctrlKey || event.metaKey || event.shiftKey)) openTab(name);
          else open(item.peek());
        },
        onauxclick: (event) => event.button === 1 && !event.target.closest("a,button,input,label") && openTab(name),
      }, selection && h("td.select", checkbox(selection, name)), shown.map((column) => cell(column, item)));
    });
  const widths = resizable ? columnWidths(label, columns, () => element, selection ? 44 : 0) : null;
  const heading = (column) => {
    const sorted = () => order?.()?.key === column.key && (order().descending ? "descending" : "ascending");
    return h("th", { scope: "col", class: column.number ? "number" : "", style: widths ? () => widths.style(column) : column.width ? { width: column.width } : {},
      "aria-label": widths && typeof column.label === "string" ? column.label : null,
      "aria-sort": () => sorted() || null, title: column.title ?? null },
      column.sort && onsort ? h("button", { type: "button", onclick: () => onsort(column.key) }, column.label,
        () => (sorted() ? h("span", { "aria-hidden": "true" }, sorted() === "descending" ? " ↓" : " ↑") : null)) : column.label,
      widths && typeof column.label === "string" ? widths.handle(column, column.label) : null);
  };
  const element = h("table.table", { "aria-label": label, "aria-busy": () => String(Boolean(busy?.())),
    class: () => `${busy?.() ? "busy" : ""} ${widths?.isSet.value ? "sized" : ""}`,
    style: () => (widths?.isSet.value ? { "--table-width": widths.total() } : {}) },
    h("thead", () => h("tr", selection && h("th.select", { scope: "col" }, selectAll(selection, rows, key)),
      columns().map(heading))),
    body, footer && h("tfoot", footer));
  return element;
}

function toggle(selection, name) {
  const next = new Set(selection.value);
  if (!next.delete(name)) next.add(name);
  selection.value = next;
}

function checkbox(selection, name) {
  return h("input", { type: "checkbox", "aria-label": "Select row", checked: () => selection.value.has(name),
    onchange: () => toggle(selection, name) });
}

function selectAll(selection, rows, key) {
  const all = () => rows().length > 0 && rows().every((row) => selection.value.has(key(row)));
  return h("input", {
    type: "checkbox", "aria-label": "Select all rows of this page", checked: all,
    indeterminate: () => !all() && rows().some((row) => selection.value.has(key(row))),
    onchange: (event) => {
      const next = new Set(selection.peek());
      for (const row of rows()) if (event.target.checked) next.add(key(row)); else next.delete(key(row));
      selection.value = next;
    },
  });
}

/** Buttons for the pages of a list: `before` and `after` give actions, or null where there is nothing. */
export function pager(text, before, after) {
  keys({ "[": [() => before()?.(), "previous page"], "]": [() => after()?.(), "next page"] });
  const step = (label, action) => h("button.button", { type: "button", disabled: () => !action(), onclick: () => action()?.() },
    label);
  return h("div.pager", h("span", text), h("span.grow"), step("Previous", before), step("Next", after));
}
