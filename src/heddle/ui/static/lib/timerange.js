// The time range that pages share: `t` (1h, 24h, 7d, 30d, all) or `t0` and `t1` (seconds since 1970) in the address.
import { computed, h, signal } from "./dom.js";
import { when } from "./format.js";
import { button, chip, segments } from "./parts.js";
import { query, setQuery } from "./router.js";

const HOUR = 3600;
const PRESETS = { "1h": HOUR, "24h": 24 * HOUR, "7d": 7 * 24 * HOUR, "30d": 30 * 24 * HOUR, all: null };
const moved = signal(0);

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
    const known = preset in PRESETS ? preset : initial;
    const span = PRESETS[known];
    return { from: span === null ? null : Math.floor(Date.now() / 1000) - span, to: null, preset: known };
  });
}

const seconds = (text) => (text && Number.isFinite(Number(text)) ? Number(text) : null);

/** What to put into the query to show a range; undoes a preset and the place in a list. */
export const rangeQuery = (from, to) => ({ t: null, t0: Math.floor(from), t1: Math.ceil(to), after: null, before: null });

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
  const names = Object.keys(PRESETS).map((name) => [name, name === "all" ? "All" : name]);
  return h("span.timerange", { style: { display: "inline-flex", gap: "8px", "align-items": "center" } },
    segments("Time range", names, () => range.value.preset, pick),
    () => (range.value.preset ? null : chip(rangeText(range.value), () => pick(initial))),
    button(null, () => import("./timerange_form.js").then((module) => module.typeRange(range.peek())),
      { kind: "quiet", iconName: "calendar", label: "Type a time range" }));
}

/** A range in words. */
export function rangeText({ from, to }) {
  return `${from === null ? "…" : when(from)} – ${to === null ? "now" : when(to)}`;
}
