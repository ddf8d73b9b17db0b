// What cells of the editor grid hold: kinds of values, and what a typed text means.
import { cellText, typed } from "./importers.js";

/** The kind of a value: null, text, number, boolean or json. */
export function kindOf(value) {
  if (value == null) return "null";
  return { string: "text", number: "number", bigint: "number", boolean: "boolean" }[typeof value] ?? "json";
}

/** The kind of a column by its values: the one that all share, else text, or json where a value is a list or object. */
export function columnKind(values) {
  const kinds = new Set(values.map(kindOf));
  kinds.delete("null");
  if (kinds.size === 1) return [...kinds][0];
  return kinds.has("json") ? "json" : "text";
}

/** What a typed text means in a column of a kind; what does not fit stays text. */
export function converted(text, kind) {
  if (kind === "text") return text;
  const value = typed(text);
  return kindOf(value) === kind || value === null || kind === "json" ? value : text;
}

/** The text with which an editor of a cell begins. */
export const editable = cellText;

/** The rows and columns of a selection, as lists of numbers. */
export function range({ row, column, toRow, toColumn }) {
  const between = (one, other) => Array.from({ length: Math.abs(other - one) + 1 }, (_, step) => Math.min(one, other) + step);
  return { rows: between(row, toRow), columns: between(column, toColumn) };
}
