// The time axis of a trace: round steps, counted from the start of what is shown.
import { h } from "../lib/dom.js";
import { duration } from "../lib/format.js";

const STEPS = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400];

/** The bar of times above the rows; the rows' box learns where its lines stand. */
export function axis(view) {
  const marks = () => {
    const { from, until } = view.time.value;
    const found = ticks(from, until);
    view.box?.style.setProperty("--tick", `${found.step * 100}%`);
    return found.marks.map(({ place, text }) => h("span", { style: { left: `${place * 100}%` } }, text));
  };
  return h(
    "div.traceaxis",
    h("span", () => (view.time.value.isZoomed ? "Zoomed on a call" : "")),
    h("div.ticks", marks),
    h("span.used.usedtokens", { title: "The call itself / with child calls" }, "Tokens"),
    h("span.used.usedcost", { title: "The call itself / with child calls" }, "Cost"),
    h("span"),
  );
}

/**
 * Where a span of time has marks: places and the step as shares of it. The first says when it begins, the others how
 * much later they are.
 */
export function ticks(from, until) {
  const length = until - from;
  const step = tickSize(length);
  const count = Math.min(12, Math.floor((length * 0.93) / step) + 1);
  const text = (place) => (place ? `${from > 0 ? "+" : ""}${short((place * step) / 1e6)}` : from > 0 ? short(from / 1e6) : "0");
  return {
    step: step / length,
    marks: Array.from({ length: count }, (_, place) => ({ place: (place * step) / length, text: text(place) })),
  };
}

/** A round step, in microseconds, that cuts a length into four parts or so. */
function tickSize(length) {
  const raw = length / 4;
  if (raw > 1e6) return (STEPS.find((seconds) => seconds * 1e6 >= raw) ?? Math.ceil(raw / 864e8) * 86_400) * 1e6;
  const power = 10 ** Math.floor(Math.log10(raw));
  return Math.max(1, power * ([1, 2, 2.5, 5].find((step) => step * power >= raw) ?? 10));
}

const short = (seconds) =>
  duration(seconds)
    .replace(/\.?0+ s$/, " s")
    .replace(/ 0[sm]$/, "");
