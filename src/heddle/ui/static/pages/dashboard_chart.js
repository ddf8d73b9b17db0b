// One chart of a dashboard: what it asks for, the drawing, the figures as a table, and the calls behind each of them.
import { legend, lineChart, SERIES } from "../lib/chart.js";
import { callsLink, groupName, groupText, measureText, readFigures, requestOf, writerOf } from "../lib/dashboards.js";
import { resource } from "../lib/data.js";
import { dialog } from "../lib/dialog.js";
import { computed, h, signal } from "../lib/dom.js";
import { date, int, when } from "../lib/format.js";
import { failure, skeleton } from "../lib/parts.js";
import { setQuery } from "../lib/router.js";
import { stackedBars } from "../lib/stackedbars.js";
import { rangeQuery } from "../lib/timerange.js";

const HEIGHTS = [180, 380, 580];
const MOST_LINES = 400;
const REST = "var(--faint)";
const seconds = (text) => date(text).getTime() / 1000;

/**
 * What a chart shows.
 * @param {() => any} chart
 * @param {() => {filter: any, query: any}} selection which calls the whole dashboard is about
 * @param {() => {from: number|null, to: number|null}} range
 * @param {{figures?: () => boolean, hover?: import("../lib/dom.js").Signal<number|null>}} [options] `figures` shows them as a table
 */
export function chartView(chart, selection, range, { figures = () => false, hover = signal(null) } = {}) {
  const state = resource(() => requestOf(chart(), selection(), range()), readFigures);
  // What a chart is called and how wide it is changes nothing of what it draws.
  const drawn = computed(() => JSON.stringify({ ...chart(), title: "", width: 0, id: "" }));
  return h("div.chartview", { class: () => (state.busy.value && state.data.value ? "busy" : ""), "aria-busy": () => String(state.busy.value) },
    () => {
      if (state.error.value) return failure(state.error.value, state.reload);
      const data = state.data.value;
      if (data === null) return skeleton(3);
      const view = viewOf(JSON.parse(drawn.value), data, selection);
      if (!view.points) return h("p.nothing", "No data in this time range");
      return [unpriced(data), figures() && view.chart.kind !== "table" ? figureTable(view) : draw(view, hover)];
    });
}

function unpriced({ unpriced_models: models }) {
  return models.length ? h("p.faint", `Not included in the cost, as they have no price: ${models.join(", ")}`) : null;
}

/** What is drawn: series with their colours and writers, rows over time, and the address of each point. */
function viewOf(chart, data, selection) {
  const bins = data.bins;
  const names = data.groups;
  const ends = [seconds(data.start), seconds(data.end)];
  const told = bins.length
    ? (names.length && chart.group_by ? names : [undefined]).map((group, at) => ({ measure: 0, group, is_other: group === null,
      value: bins.reduce((sum, bin) => sum + bin.counts[at], 0), values: [] }))
    : data.series;
  const series = told.map((one, index) => {
    const measure = chart.measures[one.measure] ?? chart.measures[0];
    const group = chart.group_by ? (one.is_other ? null : one.group) : undefined;
    const texts = [chart.group_by && groupText(chart.group_by, group), (chart.measures.length > 1 || !chart.group_by)
      && measureText(measure)];
    return { key: `s${index}`, measure, group, value: one.value, values: one.values, index: one.measure,
      label: texts.filter(Boolean).join(" · "), color: one.is_other || index >= SERIES.length ? REST : SERIES[index],
      dashed: index >= SERIES.length, write: writerOf(measure) };
  });
  const linkTo = (one, more = {}) => callsLink(chart, selection(), { measure: one.measure, group: one.group, groups: names,
    from: Math.floor(ends[0]), to: Math.ceil(ends[1]), ...more });
  const starts = data.buckets.map(seconds);
  const times = starts.map((start, at) => [Math.max(start, ends[0]), starts[at + 1] ?? ends[1]]);
  const rows = starts.map((start, at) => ({ time: start, at, ...Object.fromEntries(series.map((one) => [one.key, one.values[at]])) }));
  const points = bins.length || series.some((one) => one.value || one.values.some((value) => value));
  return { chart, series, rows, times, bins, step: data.granularity, linkTo, ends, points };
}

function draw(view, hover) {
  const { chart, series, rows } = view;
  if (chart.kind === "number") return numbers(view);
  if (chart.kind === "table") return groupTable(view);
  if (chart.kind === "histogram") return histogram(view);
  if (chart.kind === "bar" && chart.group_by) return groupBars(view);
  const height = HEIGHTS[(chart.height ?? 1) - 1];
  const shared = { rows: () => rows, series, height, label: chart.title || series.map((one) => one.label).join(", "), hover,
    formatY: series[0].write, onrange: (from, to) => setQuery(rangeQuery(from, to), false) };
  const box = chart.kind === "line" ? lineChart({ ...shared, x: "time", time: true, zero: true })
    : stackedBars({ ...shared, step: () => view.step });
  pickOnClick(box, () => hover.peek(), (at) => {
    const found = chart.kind === "line" ? nearest(rows, at) : rows.findLast((row) => row.time <= at) ?? rows[0];
    openPoint(view, found);
  });
  return [h("div.legend", legend(series.map(({ color, label }) => [color, label]))), box];
}

const nearest = (rows, at) => rows.reduce((best, row) => (Math.abs(row.time - at) < Math.abs(best.time - at) ? row : best));

/** A click that drags nothing. */
function pickOnClick(box, at, pick) {
  let down = null;
  box.classList.add("pickable");
  box.addEventListener("pointerdown", (event) => { down = [event.clientX, at()]; }, true);
  box.addEventListener("click", (event) => {
    const place = at() ?? down?.[1];
    if (down && Math.abs(event.clientX - down[0]) < 5 && place != null) pick(place);
  });
}

/** The calls behind one bucket: at once where there is one series, else after a choice. */
function openPoint(view, row) {
  const [from, to] = wholeSeconds(view.times[row.at]);
  const known = view.series.filter((one) => row[one.key]);
  dialog(`${when(from)} – ${when(to)}`, () => (known.length ? h("ul.pointlinks", known.map((one) =>
    h("li", h("a", { href: view.linkTo(one, { from, to }) }, h("i.swatch", { style: { background: one.color } }),
      h("span", { dir: "auto" }, one.label), h("b", one.write(row[one.key])))))) : h("p.dim", "No data in this time range.")));
}

function numbers({ series, linkTo }) {
  return h("div.boardnumbers", series.map((one) => h("a", { href: linkTo(one) }, h("small", one.label),
    h("b", one.value === null ? "–" : one.write(one.value)))));
}

function groupBars({ chart, series, linkTo }) {
  const most = Math.max(...series.map((one) => one.value ?? 0), Number.MIN_VALUE);
  // Of each measure the largest first, and all others last.
  const sorted = [...series].sort((one, other) => one.index - other.index || Number(one.group === null) - Number(other.group === null)
    || (other.value ?? 0) - (one.value ?? 0));
  return h("ul.groupbars", sorted.map((one) => h("li", h("a", { href: linkTo(one), title: one.label },
    h("span.one-line", { dir: "auto" }, one.label),
    h("span.groupbar", h("i", { style: { width: `${(100 * Math.max(0, one.value ?? 0)) / most}%`,
      background: chart.measures.length > 1 ? SERIES[one.index % SERIES.length] : one.group === null ? REST : SERIES[0] } })),
    h("b", one.value === null ? "–" : one.write(one.value))))));
}

/** Groups as rows, measures as columns. */
function groupTable({ chart, series, linkTo }) {
  const groups = [...new Set(series.map((one) => one.group))];
  const heading = chart.group_by ? h("th", { scope: "col" }, groupName(chart.group_by)) : null;
  return h("div.tablebox", { tabindex: 0, role: "region", "aria-label": chart.title || "Figures" }, h("table.table",
    h("thead", h("tr", heading, chart.measures.map((measure) => h("th.number", { scope: "col" }, measureText(measure))))),
    h("tbody", groups.map((group) => h("tr", chart.group_by && h("td", { dir: "auto" }, groupText(chart.group_by, group)),
      series.filter((one) => one.group === group).map((one) => h("td.number",
        one.value === null ? "–" : h("a", { href: linkTo(one) }, one.write(one.value)))))))));
}

function histogram(view) {
  const { chart, series, bins } = view;
  const write = writerOf({ ...chart.measures[0], aggregation: "avg" });
  if (!bins.length) return h("p.nothing", "No values in this time range");
  const height = HEIGHTS[(chart.height ?? 1) - 1];
  const hover = signal(/** @type {number|null} */ (null));
  const rows = bins.map((bin, at) => ({ time: bin.lower, at, ...Object.fromEntries(bin.counts.map((count, one) => [`s${one}`, count])) }));
  const box = stackedBars({ rows: () => rows, step: () => bins[0].upper - bins[0].lower, series, label: chart.title || "Histogram",
    height, hover, formatY: int, formatX: write });
  pickOnClick(box, () => hover.peek(), (at) => openBin(view, rows.findLast((row) => row.time <= at) ?? rows[0]));
  return [series.length > 1 ? h("div.legend", legend(series.map(({ color, label }) => [color, label]))) : null, box];
}

/** The conditions of the values in a bin; of latencies as the list has them, in seconds. */
function binConditions(chart, bin) {
  const { field } = chart.measures[0];
  if (field === "latency_ms") return [["duration", "gte", bin.lower / 1000], ["duration", "lt", bin.upper / 1000]];
  return field.endsWith("_tokens") ? [] : [[field, "gte", bin.lower], [field, "lt", bin.upper]];
}

function openBin(view, row) {
  const bin = view.bins[row.at];
  const write = writerOf({ ...view.chart.measures[0], aggregation: "avg" });
  const known = view.series.filter((_, at) => bin.counts[at]);
  dialog(`${write(bin.lower)} – ${write(bin.upper)}`, () => h("ul.pointlinks", known.map((one) =>
    h("li", h("a", { href: view.linkTo(one, { more: binConditions(view.chart, bin) }) },
      h("i.swatch", { style: { background: one.color } }), h("span", { dir: "auto" }, one.label),
      h("b", int(bin.counts[view.series.indexOf(one)])))))));
}

/** The same figures to read: a row per bucket, each a link to its calls. */
function figureTable(view) {
  const { chart, series, rows, times, bins, linkTo } = view;
  const write = writerOf({ ...chart.measures[0], aggregation: "avg" });
  const lines = bins.length
    ? bins.map((bin) => [`${write(bin.lower)} – ${write(bin.upper)}`, series.map((one, at) => bin.counts[at] &&
      h("a", { href: linkTo(one, { more: binConditions(chart, bin) }) }, int(bin.counts[at])))])
    : rows.length
      ? rows.slice(-MOST_LINES).map((row) => [when(row.time), series.map((one) => row[one.key] == null ? "–" : row[one.key] === 0
        ? one.write(0) : h("a", { href: linkTo(one, { from: wholeSeconds(times[row.at])[0], to: wholeSeconds(times[row.at])[1] }) },
          one.write(row[one.key])))])
      : [["All", series.map((one) => (one.value === null ? "–" : h("a", { href: linkTo(one) }, one.write(one.value))))]];
  return h("div.tablebox", { tabindex: 0, role: "region", "aria-label": `Figures of ${chart.title || "the chart"}` }, h("table.table",
    h("thead", h("tr", h("th", { scope: "col" }, bins.length ? "Value" : "From"),
      series.map((one) => h("th.number", { scope: "col" }, one.label)))),
    h("tbody", lines.map(([name, cells]) => h("tr", h("td", name), cells.map((cell) => h("td.number", cell)))))));
}

const wholeSeconds = ([from, to]) => [Math.floor(from), Math.ceil(to)];
