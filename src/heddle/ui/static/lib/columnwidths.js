// Widths of columns that the reader chooses, with the pointer or the keyboard; they are kept in this browser.
import { computed, h } from "./dom.js";
import { stored } from "./data.js";

const [LEAST, MOST, STEP] = [48, 1600, 16];

/**
 * The handle at the end of a column's heading, which must be a positioned element.
 * @param {{label: string, width: () => number, set: (width: number) => void, reset: () => void}} options
 */
export function widthHandle({ label, width, set, reset }) {
  const limited = (value) => set(Math.round(Math.min(MOST, Math.max(LEAST, value))));
  let from = null;
  const begin = () => element.closest("th, [role=columnheader]")?.clientWidth ?? width();
  const drag = (event) => from && limited(from.width + event.clientX - from.x);
  const step = (event) => {
    const by = { ArrowLeft: -STEP, ArrowRight: STEP }[event.key];
    if (by) limited(begin() + by);
    else if (event.key === "Home") reset();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const element = h("span.widthhandle", {
    role: "separator", tabindex: 0, "aria-orientation": "vertical", "aria-label": `Width of ${label}`,
    "aria-valuemin": LEAST, "aria-valuemax": MOST, "aria-valuenow": () => String(Math.round(width())),
    title: "Drag, or use the arrow keys; double-click to reset",
    onpointerdown: (event) => {
      event.preventDefault();
      event.stopPropagation();
      from = { x: event.clientX, width: begin() };
      element.setPointerCapture(event.pointerId);
    },
    onpointermove: drag, onpointerup: () => { from = null; }, onpointercancel: () => { from = null; },
    onclick: (event) => event.stopPropagation(), ondblclick: reset, onkeydown: step,
  });
  return element;
}

/**
 * The widths of a table's columns. Until one is changed the style sheet decides; then each column has a width of its own.
 * @param {string} name one word under which they are kept
 * @param {() => any[]} columns
 * @param {() => HTMLTableElement} element
 * @param {number} more what else the table holds beside the columns
 */
export function columnWidths(name, columns, element, more) {
  const kept = stored(`widths.${name}`, /** @type {Record<string, number>} */ ({}));
  const isSet = computed(() => columns().some(({ key }) => kept.value[key]));
  const cells = () => /** @type {HTMLElement[]} */ ([...element().querySelectorAll("thead th:not(.select)")]);
  const shown = () => Object.fromEntries(columns().map(({ key }, index) => [key, cells()[index]?.offsetWidth ?? 150]));
  const of = (column) => kept.value[column.key] ?? (Number.parseInt(column.width) || 220);
  return {
    isSet,
    total: () => `${columns().reduce((sum, column) => sum + of(column), more)}px`,
    style: (column) => (isSet.value ? { width: `${of(column)}px` } : column.width ? { width: column.width } : {}),
    handle: (column, label) => widthHandle({ label, reset: () => { kept.value = {}; },
      width: () => (isSet.value ? of(column) : Number.parseInt(column.width) || 220),
      set: (width) => { kept.value = { ...(isSet.peek() ? kept.peek() : shown()), [column.key]: width }; } }),
  };
}
