// The chart of one metric: sums as bars, distributions and levels as lines, by the values of one attribute.
import { computed, h, signal } from "../lib/dom.js";
import { lineChart, legend, SERIES } from "../lib/chart.js";
import { resource } from "../lib/data.js";
import { bytes, compact, duration, money, number, plural } from "../lib/format.js";
import { card } from "../lib/panels.js";
import { cutNote, loaded } from "../lib/parts.js";
import { setQuery } from "../lib/router.js";
import { stackedBars } from "../lib/stackedbars.js";
import { rangeQuery } from "../lib/timerange.js";

const HEIGHT = 180;
const COLOURED = 5;
const BUCKETS = 60;
const STEPS = [60, 300, 900, 1800, 3600, 10_800, 21_600, 43_200, 86_400, 604_800];
const FIRST_BY = ["gen_ai.request.model", "gen_ai.response.model", "model", "llm.model_name", "type", "gen_ai.token.type"];
const MEASURES = {
  sum: [["sum", "Sum"]],
  gauge: [["avg", "Mean"], ["min", "Least"], ["max", "Greatest"]],
  histogram: [["p50", "Median"], ["p95", "p95"], ["avg", "Mean"], ["sum", "Sum"], ["count", "Count"]],
};

/** One metric of /metrics/query between the `ends` (a signal of {from, to} in seconds). */
export function metricCard(metric, ends, hover) {
  const keys = Object.keys(metric.attributes);
  const by = signal(FIRST_BY.find((key) => metric.attributes[key]?.length > 0) ?? "");
  const measure = signal(MEASURES[metric.kind][0][0]);
  const step = computed(() => STEPS.find((one) => (ends.value.to - ends.value.from) / one <= BUCKETS) ?? STEPS.at(-1));
  const state = resource(() => ["/metrics/stats", requestOf(metric, ends.value, step.value, by.value, measure.value)]);
  const pick = (label, options, chosen) =>
    options.length > 1 &&
    h(
      "select",
      { "aria-label": `${label} of ${metric.name}`, onchange: (event) => { chosen.value = event.target.value; } },
      options.map(([value, text]) => h("option", { value, selected: value === chosen.peek() }, text)),
    );
  return card(
    h("span", { title: metric.description, dir: "auto" }, metric.name),
    [
      h("small.dim", unitText(metric)),
      pick("Measure", MEASURES[metric.kind], measure),
      pick("Groups", [["", "all"], ...keys.map((key) => [key, `by ${key}`])], by),
    ],
    loaded(state, (found) => chart(metric, found, step.peek(), by.peek(), measure.peek(), ends.peek(), hover)),
  );
}

function requestOf({ name, kind, unit }, { from, to }, granularity, by, measure) {
  const asked = measure.startsWith("p") ? { percentiles: [Number(measure.slice(1))] } : { aggregations: [measure] };
  return {
    name,
    kind,
    unit,
    start: new Date(from * 1000).toISOString(),
    end: new Date(to * 1000).toISOString(),
    granularity,
    timezone: Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC",
    group_by: by ? [by] : [],
    ...asked,
  };
}

function chart(metric, found, step, by, measure, ends, hover) {
  const isSum = measure === "sum" || measure === "count";
  const groups = largest(found.buckets, by, measure, isSum);
  const series = groups.map(({ label }, index) => ({
    key: `v${index}`,
    label,
    color: index < COLOURED ? SERIES[index] : "var(--faint)",
    dots: true,
  }));
  const places = new Map(found.timestamps.map((text, index) => [text, index]));
  const rows = found.timestamps.map((text) => ({ time: Date.parse(text) / 1000 }));
  groups.forEach(({ buckets }, index) => {
    for (const bucket of buckets) {
      const row = rows[places.get(bucket.timestamp)];
      row[`v${index}`] = (row[`v${index}`] ?? 0) + (bucket[measure] ?? 0);
    }
  });
  const label = `${metric.name} over time`;
  const formatY = (value) => valueText(value, measure === "count" ? "" : metric.unit, metric.name);
  const onrange = (from, to) => setQuery(rangeQuery(from, to), false);
  const drawn = isSum
    ? stackedBars({ rows: () => rows, step: () => step, series, label, height: HEIGHT, formatY, onrange, hover })
    : lineChart({
        rows: () => rows.filter((row) => Object.keys(row).length > 1),
        x: "time", series, time: true, zero: true, label, height: HEIGHT, formatY, onrange, hover,
        domain: () => [ends.from, ends.to],
      });
  const names = new Set(found.buckets.map((bucket) => nameOf(bucket, by))).size;
  return [names > COLOURED && !isSum && cutNote(COLOURED, names), by || groups.length > 1 ? h("div.legend", legend(series.map(({ color, label: text }) => [color, text]))) : null, drawn];
}

const nameOf = (bucket, by) => (by ? String(bucket.attributes[by] ?? "none") : "all");

/** The groups with most of it; of what can be added up, the others together. */
function largest(buckets, by, measure, isSum) {
  const found = new Map();
  for (const bucket of buckets) {
    const label = nameOf(bucket, by);
    const group = found.get(label) ?? { label, total: 0, buckets: [] };
    group.total += bucket[measure] ?? 0;
    group.buckets.push(bucket);
    found.set(label, group);
  }
  const ordered = [...found.values()].sort((one, other) => other.total - one.total);
  if (ordered.length <= COLOURED || !isSum) return ordered.slice(0, COLOURED);
  const rest = ordered.slice(COLOURED);
  return [
    ...ordered.slice(0, COLOURED),
    { label: plural(rest.length, "other"), total: 0, buckets: rest.flatMap((group) => group.buckets) },
  ];
}

const SECONDS = { s: 1, ms: 1e-3, us: 1e-6, ns: 1e-9, min: 60, h: 3600 };

/** What the numbers are, where it is said: not the "1" of plain counts, nor words in braces without the braces. */
function unitText({ unit }) {
  return unit === "1" ? "" : unit.replace(/^\{(.*)\}$/, "$1");
}

function valueText(value, unit, name) {
  if (unit === "USD" || (unit === "1" && name.endsWith("cost"))) return money(value);
  if (unit in SECONDS && value) return duration(value * SECONDS[unit]);
  if (unit === "By") return bytes(value);
  return value >= 10_000 ? compact(value) : number(value);
}
