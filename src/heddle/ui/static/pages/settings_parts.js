// Parts of the settings page: a table in a card, and bytes by kind as rows with a bar each.
import { h } from "../lib/dom.js";
import { bytes, percent } from "../lib/format.js";
import { table } from "../lib/table.js";

/** A table that fills its card and scrolls where it is too wide. */
export function listing(label, rows, key, columns) {
  return h("div.tablebox", { tabindex: 0, role: "region", "aria-label": label },
    table({ label, keyboard: false, rows, key, columns: () => columns }));
}

/**
 * A table of names and bytes, with the sum below.
 * @param {string} label
 * @param {{name: string, bytes: number, note?: string}[]} parts
 */
export function shares(label, parts) {
  const sum = parts.reduce((all, part) => all + part.bytes, 0);
  const row = ({ name, bytes: count, note }) => h("tr",
    h("th", { scope: "row" }, name, note && h("small", note)),
    h("td.sharecell", { "aria-hidden": "true" },
      h("span.sharetrack", h("i", { style: { width: sum ? `${(100 * count) / sum}%` : "0" } }))),
    h("td.number", bytes(count)), h("td.number.dim", sum ? percent(count / sum) : ""));
  return h("table.shares", { "aria-label": label }, h("tbody", parts.map(row)),
    h("tfoot", h("tr", h("th", { scope: "row" }, "Together"), h("td"), h("td.number", bytes(sum)), h("td"))));
}
