// The time range that pages share: `t` (1h, 24h, 7d, 30d, all, any other number of hours or days, or a name such as
// "yesterday") or `t0` and `t1` (seconds since 1970) in the address.
import { computed, h, signal } from "./dom.js";
import { when } from "./format.js";
import { button, chip, segments } from "./parts.js";
import { query, setQuery } from "./router.js";

const HOUR = 3600;
const PRESETS = ["1h", "24h", "7d", "30d", "all"];
const moved = signal(0);

/** Seconds of a period such as `24h` or `7d`; null for `all`, undefined for what is none. */
export function periodSeconds(period) {
  const found = /^([1-9]\d{0,3})([hd])$/.exec(period ?? "");
  return period === "all" ? null : found ? Number(found[1]) * (found[2] === "h" ? HOUR : 24 * HOUR) : undefined;
}

/** Ranges by the reader's calendar: their words, the first day and the day after the last; days count from 1, months from 0. */
const NAMED = {
  today: ["Today", (year, month, day) => [[year, month, day], null]],
  yesterday: ["Yesterday", (year, month, day) => [[year, month, day - 1], [year, month, day]]],
  week: ["This week", (year, month, day, weekday) => [[year, month, day - weekday], null]],
  lastweek: ["Last week", (year, month, day, weekday) => [[year, month, day - weekday - 7], [year, month, day - weekday]]],
  month: ["This month", (year, month) => [[year, month, 1], null]],
  lastmonth: ["Last month", (year, month) => [[year, month - 1, 1], [year, month, 1]]],
};

/** The words of a range that has a name, as [[name, words], …]. */
const namedRanges = () => Object.entries(NAMED).map(([name, [words]]) => [name, words]);

/** The ends of a range by its name or as a number of hours or days up to now; undefined for what is none. */
function rangeOfName(name) {
  const now = new Date();
  if (Object.hasOwn(NAMED, name)) {
    // A week begins on Monday.
    const ends = NAMED[name][1](now.getFullYear(), now.getMonth(), now.getDate(), (now.getDay() + 6) % 7);
    const [from, to] = ends.map((day) => day && new Date(day[0], day[1], day[2]).getTime() / 1000);
    return { from, to };
  }
  const span = periodSeconds(name);
  if (span === undefined) return undefined;
  return { from: span === null ? null : Math.floor(now.getTime() / 1000) - span, to: null };
}

/** Count relative ranges from the present moment again. */
export function refreshTime() {
  moved.value++;
}

/**
 * The chosen range in seconds since 1970; `from` is null for the beginning, `to` is null for now.
 * @param {string} [initial] the preset that holds where the address says nothing
 * @returns {import("./dom.js").Signal<{from: number|null, to: number|null, preset: string}>}
 */
export function timeRange(initial = "all") {
  const chosen = computed(() => JSON.stringify([query("t0"), query("t1"), query("t") ?? initial, moved.value]));
  return computed(() => {
    const [first, last, preset] = JSON.parse(chosen.value);
    if (first || last) return { from: seconds(first), to: seconds(last), preset: "" };
    const known = rangeOfName(preset) ? preset : initial;
    return { ...rangeOfName(known), preset: known };
  });
}

const seconds = (text) => (text && Number.isFinite(Number(text)) ? Number(text) : null);

/** What to put into the query to show a range; undoes a preset and the place in a list. */
export const rangeQuery = (from, to) => ({ t: null, t0: Math.floor(from), t1: Math.ceil(to), after: null, before: null });

/** A range as other pages take it in their address. */
export const sameRange = ({ preset = "", from, to }) => (preset ? { t: preset } : { t0: from, t1: to });

/**
 * The control for it: presets, the range that was brushed or typed as a chip, and a way to type one.
 * @param {string} [initial] as for `timeRange`
 */
export function timeRangePicker(initial = "all") {
  const range = timeRange(initial);
  const pick = (name) => {
    refreshTime();
    setQuery({ t: name === initial ? null : name, t0: null, t1: null, after: null, before: null }, false);
  };
  const names = PRESETS.map((name) => [name, name === "all" ? "All" : name]);
  return h("span.timerange", { style: { display: "inline-flex", gap: "8px", "align-items": "center" } },
    segments("Time range", names, () => range.value.preset, pick),
    () => (PRESETS.includes(range.value.preset) ? null : chip(wordsOf(range.value), () => pick(initial))),
    button(null, () => import("./timerange_form.js").then((module) => module.chooseRange(range.peek(), pick, namedRanges())),
      { kind: "quiet", iconName: "calendar", label: "Other time ranges" }));
}

const wordsOf = (range) => NAMED[range.preset]?.[0] ?? (range.preset ? `Last ${range.preset}` : rangeText(range));

/** A range in words. */
export function rangeText({ from, to }) {
  return `${from === null ? "…" : when(from)} – ${to === null ? "now" : when(to)}`;
}
