// The charts of the overview: one time axis, one crosshair, and a dragged range opens the calls in it.
import { h, signal } from "../lib/dom.js";
import { SERIES, legend, lineChart } from "../lib/chart.js";
import { compact, duration, int, money } from "../lib/format.js";
import { card } from "../lib/panels.js";
import { go, link } from "../lib/router.js";
import { stackedBars } from "../lib/stackedbars.js";

const HEIGHT = 190;
const MOST_MODELS = 5;
const FINE = "color-mix(in srgb, var(--accent) 55%, var(--surface))";

/** Four charts of one answer of the overview. */
export function charts(data) {
  const open = (from, to, chosen) => go(link("/traces", { t0: Math.floor(from), t1: Math.ceil(to), ...chosen }));
  const shared = {
    hover: signal(null),
    onrange: (from, to) => open(from, to, {}),
  };
  const count = Math.max(1, Math.ceil((data.end - data.start) / data.step));
  const rows = Array.from({ length: count }, (_, index) => ({ time: data.start + index * data.step }));
  const bars = {
    ...shared,
    step: () => data.step,
    height: HEIGHT,
    onrange: (from, to) => open(from, to, { roots: "0" }),
    onpick: (from, to, series) => open(from, to, { ...series?.chosen, roots: "0" }),
  };
  return h(
    "div.overviewcharts",
    callsCard(data, rows, bars),
    latencyCard(data, shared),
    modelsCard(data, rows, bars),
    feedbackCard(data, rows, bars),
  );
}

function callsCard({ buckets }, rows, shared) {
  const found = rows.map((row) => ({ ...row }));
  for (const { bucket, calls, errors } of buckets)
    if (found[bucket]) Object.assign(found[bucket], { fine: calls - errors, errors });
  const series = [
    { key: "errors", label: "errors", color: "var(--error)", chosen: { status: "error" } },
    { key: "fine", label: "without error", color: FINE },
  ];
  return card(
    "Calls",
    legend([
      [FINE, "without error"],
      ["var(--error)", "errors"],
    ]),
    stackedBars({ ...shared, rows: () => found, series, label: "Calls and errors over time", formatY: compact }),
  );
}

function latencyCard({ buckets, start, end, step }, shared) {
  const rows = buckets
    .map(({ bucket, p50, p95 }) => ({ time: start + (bucket + 0.5) * step, p50, p95 }))
    .filter(({ p50 }) => p50 !== null);
  const dots = rows.length < 30;
  const series = [
    { key: "p50", label: "median", color: SERIES[0], dots },
    { key: "p95", label: "p95", color: SERIES[1], dots },
  ];
  return card(
    "Latency of root calls",
    legend(series.map(({ color, label }) => [color, label])),
    lineChart({
      ...shared,
      rows: () => rows,
      x: "time",
      series,
      time: true,
      zero: true,
      step,
      height: HEIGHT,
      label: "Latency over time",
      formatY: duration,
      domain: () => [start, Math.max(end, start + step)],
    }),
  );
}

function modelsCard({ models }, rows, shared) {
  const costs = models.some(({ cost }) => cost > 0);
  const place = costs ? 1 : 2;
  const known = costs ? models.filter(({ cost }) => cost > 0) : models;
  const most = known.length > MOST_MODELS + 1 ? MOST_MODELS : known.length;
  const series = known.slice(0, most).map(({ model }, index) => ({
    key: `m${index}`,
    label: model,
    color: SERIES[index],
    chosen: { model },
  }));
  if (known.length > most) series.push({ key: "rest", label: `${known.length - most} more`, color: "var(--faint)" });
  const found = rows.map((row) => ({ ...row }));
  known.forEach(({ buckets }, index) => {
    const key = index < most ? `m${index}` : "rest";
    for (const bucket of buckets)
      if (found[bucket[0]]) found[bucket[0]][key] = (found[bucket[0]][key] ?? 0) + (bucket[place] ?? 0);
  });
  const heading = costs || !models.length ? "Cost by model" : "Tokens by model";
  return card(
    heading,
    legend(series.map(({ color, label }) => [color, h("span.legendname", { title: label }, label)])),
    stackedBars({ ...shared, rows: () => found, series, label: `${heading} over time`, formatY: costs ? money : compact }),
  );
}

const KINDS = ["scores", "reactions", "notes", "annotations"];

function feedbackCard({ feedback }, rows, shared) {
  const found = rows.map((row) => ({ ...row }));
  for (const { bucket, ...kinds } of feedback) if (found[bucket]) Object.assign(found[bucket], kinds);
  const series = KINDS.map((key, index) => ({ key, label: key, color: SERIES[index] })).filter(({ key }) =>
    feedback.some((bucket) => bucket[key]),
  );
  return card(
    "Feedback",
    legend(series.map(({ color, label }) => [color, label])),
    stackedBars({
      ...shared,
      onrange: undefined,
      onpick: undefined,
      rows: () => found,
      series,
      label: "Feedback over time",
      formatY: int,
    }),
  );
}
