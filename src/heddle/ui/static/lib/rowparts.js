// The row of a dataset as people read it: what was asked, and what was expected.
import { h } from "./dom.js";
import { cut } from "./format.js";
import { wordDiff } from "./textdiff.js";

const EXPECTED = ["target", "expected", "expected_output", "expected_answer", "answer", "ground_truth", "reference", "label"];
const DIFF_UP_TO = 4000;

/** {input, expected} of a row; expected is undefined where no column has a name for it. */
export function splitRow(row) {
  if (row === null || typeof row !== "object" || Array.isArray(row)) return { input: row, expected: undefined };
  const name = EXPECTED.find((key) => key in row);
  if (!name) return { input: row, expected: undefined };
  const { [name]: expected, ...input } = row;
  return { input, expected };
}

/** Any value as text: an object with one column as that column, others as lines of "name: value". */
export function plainText(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "string") return value;
  if (typeof value !== "object" || Array.isArray(value)) return JSON.stringify(value);
  const entries = Object.entries(value);
  if (entries.length === 1) return plainText(entries[0][1]);
  return entries.map(([key, item]) => `${key}: ${typeof item === "string" ? item : JSON.stringify(item)}`).join("\n");
}

/** The words of a text with what was added to and removed from another; texts that are too long are shown as they are. */
export function diffText(before, after) {
  if (before === after || before.length + after.length > DIFF_UP_TO) return [after];
  return wordDiff(before, after).map(({ kind, text }) => (kind === "same" ? text : h(kind === "added" ? "ins" : "del", text)));
}

/** A text cut for a cell of a list. */
export const cellText = (value) => cut(plainText(value), 600);
