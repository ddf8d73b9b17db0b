// How numbers, times and names are written. Everything unknown is an empty text, never "undefined".

/** A list that a stored value should hold; empty where it holds something else. */
export const listOf = (value) => (Array.isArray(value) ? value : []);

const wholes = new Intl.NumberFormat("en");
const shorts = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const dates = new Intl.DateTimeFormat("en-GB", { day: "2-digit", month: "short", year: "numeric" });
const times = new Intl.DateTimeFormat("en-GB", {
  day: "2-digit", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit",
});
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const exacts = new Intl.DateTimeFormat("en-GB", {
  weekday: "short", day: "2-digit", month: "short", year: "numeric",
  hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short",
});

/** 12345 as "12,345". */
export const int = (value) => (value == null ? "" : wholes.format(value));

/** 12345 as "12.3K". */
export const compact = (value) => (value == null ? "" : shorts.format(value));

/** A count with its noun: "1 call", "1,234 calls"; `many` is the plural of an irregular noun. */
export const plural = (count, noun, many = `${noun}s`, write = int) => `${write(count)} ${count === 1 ? noun : many}`;

/** A number with up to four significant digits. */
export function number(value) {
  if (value == null || typeof value === "boolean") return value == null ? "" : String(value);
  if (!Number.isFinite(value)) return String(value);
  return Math.abs(value) >= 10_000 ? compact(value) : String(Number(value.toPrecision(4)));
}

/** How many digits behind the point tell values apart that are so many times a unit; at most 10. */
function digitsOf(marks) {
  for (let digits = 0; digits < 10; digits++)
    if (marks.every((value) => Math.abs(value - Number(value.toFixed(digits))) <= Math.abs(value) * 1e-6)) return digits;
  return 10;
}

/**
 * Values with the same unit and the same digits.
 * @param {number[]} marks
 * @param {[number, string][]} units
 * @param {(text: string, unit: string) => string} write
 */
function uniform(marks, units, write) {
  const top = Math.max(0, ...marks.map(Math.abs));
  const [unit, name] = units.findLast(([least]) => top >= least) ?? units[0];
  const digits = digitsOf(marks.map((value) => value / unit));
  return marks.map((value) => (value === 0 ? write("0", "") : write((value / unit).toFixed(digits), name)));
}

/** Large amounts in thousands, millions and so on. */
function scaled(marks, write) {
  const top = Math.max(0, ...marks.map(Math.abs));
  return uniform(marks, top < 10_000 ? [[1, ""]] : [[1e3, "K"], [1e6, "M"], [1e9, "B"], [1e12, "T"]], write);
}

/**
 * The texts of the marks of an axis: with one unit, with as many digits as tell them apart. A way of writing values may
 * have its own for axes.
 * @param {((value: number) => string) & {axis?: (marks: number[]) => string[]}} write
 * @param {number[]} marks
 * @returns {string[]}
 */
export function axisTexts(write, marks) {
  const texts = write.axis ? write.axis(marks) : marks.map((value) => write(value));
  return new Set(texts).size === texts.length ? texts : number.axis(marks);
}

number.axis = (/** @type {number[]} */ marks) => scaled(marks, (text, unit) => text + unit);
int.axis = number.axis;
compact.axis = number.axis;

/** Seconds as "12 µs", "340 ms", "4.20 s", "3m 12s", "2h 5m"; rounded before the unit is chosen, so never "1m 60s". */
export function duration(seconds) {
  if (seconds == null) return "";
  if (seconds < 0) return `−${duration(-seconds)}`;
  if (seconds > 0 && seconds < 1e-6) return "< 1 µs";
  if (seconds === 0) return "0 s";
  if (seconds < 0.0009995) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 0.9995) return `${(seconds * 1e3).toFixed(0)} ms`;
  if (seconds < 59.995) return `${seconds.toFixed(2)} s`;
  const [whole, minutes] = [Math.round(seconds), Math.round(seconds / 60)];
  if (whole < 3600) return `${Math.floor(whole / 60)}m ${whole % 60}s`;
  return `${Math.floor(minutes / 60)}h ${minutes % 60}m`;
}

duration.axis = (/** @type {number[]} */ marks) => (Math.max(...marks) < 120
  ? uniform(marks, [[1e-6, "µs"], [1e-3, "ms"], [1, "s"]], (text, unit) => (unit ? `${text} ${unit}` : text))
  : marks.map((value) => (value === 0 ? "0" : duration(value))));

/** Dollars; small amounts keep their digits, and one that is not nothing never reads as nothing. */
export function money(dollars) {
  if (dollars == null) return "";
  const [amount, sign] = [Math.abs(dollars), dollars < 0 ? "−" : ""];
  if (amount === 0) return "$0";
  if (amount < 0.00001) return `${sign ? ">" : "<"} ${sign}$0.00001`;
  if (amount < 0.009995) return `${sign}$${amount.toFixed(5)}`;
  return `${sign}$${amount < 999.995 ? amount.toFixed(2) : wholes.format(Math.round(amount))}`;
}

money.axis = (/** @type {number[]} */ marks) => scaled(marks, (text, unit) => `$${text.replace(/\.(\d)$/, ".$10")}${unit}`);

/** Bytes as "12.3 kB" (decimal). */
export function bytes(count) {
  if (count == null) return "";
  const units = ["B", "kB", "MB", "GB", "TB"];
  // Rounded to the digits that show first: 999,950 bytes are 1 MB, not 1000 kB.
  const rounded = count < 1000 ? count : Number(count.toPrecision(3));
  const step = rounded < 1000 ? 0 : Math.min(4, Math.floor(Math.log10(rounded) / 3));
  return `${Number((count / 1000 ** step).toPrecision(3))} ${units[step]}`;
}

/** 0.1234 as "12.3 %". */
export const percent = (share, digits = 1) => (share == null ? "" : `${(share * 100).toFixed(digits)} %`);

percent.axis = (/** @type {number[]} */ marks) => uniform(marks, [[0.01, "%"]], (text) => `${text} %`);

/** A Date from what the API sends: an ISO text, or seconds or milliseconds since 1970; null for nothing. */
export function date(value) {
  if (value == null || value === "") return null;
  if (value instanceof Date) return value;
  if (typeof value === "number") return new Date(value < 1e11 ? value * 1000 : value);
  return new Date(/[zZ]|[+-]\d\d:?\d\d$/.test(value) ? value : `${value}Z`);
}

/** "30 May 22:28:32" in the reader's own zone, "30 May 2024 22:28:32" for another year than this. */
export function when(value) {
  const at = date(value);
  if (!at) return "";
  if (at.getFullYear() === new Date().getFullYear()) return times.format(at).replace(",", "");
  return `${dates.format(at)} ${clock.format(at)}`;
}

/** "Sat, 30 May 2026, 22:28:32 CEST": for the title of a shorter text. */
export function exact(value) {
  const at = date(value);
  return at ? exacts.format(at) : "";
}

/** "30 May 2026". */
export function day(value) {
  const at = date(value);
  return at ? dates.format(at) : "";
}

/** "just now", "5 min ago", "3 h ago", "2 d ago", else the day. */
export function ago(value) {
  const at = date(value);
  if (!at) return "";
  const seconds = (Date.now() - at.getTime()) / 1000;
  if (seconds < 45) return "just now";
  if (seconds < 3600) return `${Math.max(1, Math.round(seconds / 60))} min ago`;
  if (seconds < 86_400) return `${Math.round(seconds / 3600)} h ago`;
  return seconds < 30 * 86_400 ? `${Math.round(seconds / 86_400)} d ago` : day(at);
}

/** Seconds between two times of the API, or null; a Date knows milliseconds only, so microseconds are read from texts. */
export function secondsBetween(start, end) {
  const [first, last] = [date(start), date(end)];
  if (!first || !last) return null;
  const micros = (value) => Number(/\.\d{3}(\d{3})/.exec(value)?.[1] ?? 0);
  return (last.getTime() - first.getTime()) / 1000 + (micros(end) - micros(start)) / 1e6;
}

/** The parts of a ref `weave:///entity/project/kind/name:digest/extra`, or null. */
export function parseRef(ref) {
  const found = /^weave:\/\/\/([^/]+)\/([^/]+)\/(object|op|call|table)\/([^/:]+)(?::([^/]*))?(?:\/(.*))?$/.exec(ref ?? "");
  if (!found) return null;
  const [, entity, project, kind, name, digest = "", extra = ""] = found;
  return { entity, project, kind, name: unquote(name), digest, extra };
}

/** What a person calls an op or object: the name in its ref, else the text itself. */
export function nameOf(refOrName) {
  return parseRef(refOrName)?.name ?? refOrName ?? "";
}

function unquote(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** A text cut to a length, with an ellipsis; never inside a surrogate pair. */
export function cut(text, length) {
  const letters = text == null ? "" : String(text);
  return letters.length <= length ? letters : `${[...letters.slice(0, length)].slice(0, -1).join("")}…`;
}

/** One line for any JSON value. */
export function oneLine(value, length = 160) {
  if (value == null) return "";
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return cut(text.slice(0, length * 2).replace(/\s+/g, " "), length);
}
