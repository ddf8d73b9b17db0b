// Rows from and to files: CSV, TSV, JSON and JSON lines.
import { parseJson } from "./exactjson.js";

/**
 * Rows in a text, and its columns in their order; raises an Error that names the line of what cannot be read.
 * @param {string} text
 * @param {string} [name] the file's name, whose ending tells the form; without one the text is looked at
 * @returns {{rows: Record<string, any>[], columns: string[]}}
 */
export function readRows(text, name = "") {
  const clean = text.replace(/^\uFEFF/, "");
  const form = formOf(clean, name);
  const rows = form === "json" ? fromJson(clean) : form === "lines" ? fromLines(clean) : fromTable(clean, form);
  return { rows, columns: columnsOf(rows) };
}

function formOf(text, name) {
  const ending = /\.(\w+)$/.exec(name)?.[1]?.toLowerCase();
  const start = text.trimStart()[0];
  if (ending === "jsonl" || ending === "ndjson") return "lines";
  if (ending === "json") return start === "{" && /\}\s*\n\s*\{/.test(text) ? "lines" : "json";
  if (ending === "tsv") return "\t";
  if (ending === "csv") return delimiterOf(text, ",");
  if (start === "[") return "json";
  return start === "{" ? "lines" : delimiterOf(text, ",");
}

function delimiterOf(text, usual) {
  const line = text.slice(0, 5000).split("\n")[0];
  const counts = [usual, "\t", ";"].map((mark) => [line.split(mark).length, mark]);
  return /** @type {string} */ (counts.reduce((best, next) => (next[0] > best[0] ? next : best))[1]);
}

function fromJson(text) {
  const found = parseJson(text);
  const rows = Array.isArray(found) ? found : found.rows ?? found.data ?? [found];
  return rows.map((row) => (isObject(row) ? row : { value: row }));
}

function fromLines(text) {
  const rows = [];
  text.split("\n").forEach((line, index) => {
    if (!line.trim()) return;
    try {
      const row = parseJson(line);
      rows.push(isObject(row) ? row : { value: row });
    } catch (error) {
      throw new Error(`Line ${index + 1} is not valid JSON: ${error.message}`);
    }
  });
  return rows;
}

function fromTable(text, delimiter) {
  const [names = [], ...lines] = readTable(text, delimiter);
  const columns = names.map((name, index) => name.trim() || `column ${index + 1}`);
  const kept = lines.filter((cells) => cells.length > 1 || cells[0] !== "");
  const texts = columns.map((_, index) => isTextColumn(kept, index));
  return kept.map((cells) => Object.fromEntries(columns.map((name, index) =>
    [name, texts[index] ? cells[index] ?? "" : typed(cells[index] ?? "")])));
}

/** True when a column must stay text, as a part of it is neither number, boolean nor JSON, or has leading zeros. */
function isTextColumn(lines, index) {
  return lines.some((cells) => {
    const text = cells[index] ?? "";
    return text !== "" && (typeof typed(text) === "string" || /^[-+]?0\d/.test(text.trim()));
  });
}

/** The cells of a delimited text, line by line; quotes may hold delimiters, line ends and doubled quotes. */
export function readTable(text, delimiter = "\t") {
  const lines = [];
  let line = [];
  let cell = "";
  let quoted = false;
  for (let at = 0; at < text.length; at++) {
    const letter = text[at];
    if (quoted) {
      if (letter !== '"') cell += letter;
      else if (text[at + 1] === '"') { cell += '"'; at++; } else quoted = false;
    } else if (letter === '"' && cell === "") quoted = true;
    else if (letter === delimiter) { line.push(cell); cell = ""; } else if (letter === "\n") {
      line.push(cell.replace(/\r$/, ""));
      lines.push(line);
      line = [];
      cell = "";
    } else cell += letter;
  }
  if (cell !== "" || line.length) lines.push([...line, cell.replace(/\r$/, "")]);
  return lines;
}

/** What a text stands for: null, a boolean, a number, a JSON list or object, else the text itself. */
export function typed(text) {
  const trimmed = text.trim();
  if (trimmed === "" || trimmed === "null") return null;
  if (trimmed === "true" || trimmed === "false") return trimmed === "true";
  if (/^-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?$/.test(trimmed)) {
    const number = Number(trimmed);
    return Number.isInteger(number) && !Number.isSafeInteger(number) ? text : number;
  }
  if (/^[[{]/.test(trimmed)) {
    try {
      return parseJson(trimmed);
    } catch {
      return text;
    }
  }
  return text;
}

/** A value as the text of a cell. */
export const cellText = (value) => (value == null ? "" : typeof value === "string" ? value : JSON.stringify(value));

/** Cells as delimited text, quoted where they must be. */
export function writeTable(lines, delimiter = "\t") {
  const unsafe = new RegExp(`["\\n\\r${delimiter}]`);
  const quote = (text) => (unsafe.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  return lines.map((cells) => cells.map((cell) => quote(cellText(cell))).join(delimiter)).join("\n");
}

/** Every key of rows, in the order in which they first come. */
export function columnsOf(rows) {
  const names = new Set();
  for (const row of rows) for (const name in row) names.add(name);
  return [...names];
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

/** Give the reader's browser a file. */
export function download(name, parts, type = "text/plain") {
  const address = URL.createObjectURL(new Blob(parts, { type }));
  const anchor = document.createElement("a");
  anchor.href = address;
  anchor.download = name;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
