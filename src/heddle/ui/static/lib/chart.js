// Charts as SVG in the colours of the style sheet: lines with bands, bars, sparks.
import { computed, effect, h, onCleanup, signal } from "./dom.js";
import { axisTexts, date, number, when } from "./format.js";
import { timeText, timeTicks } from "./timeaxis.js";
import { loadStyle } from "./router.js";

await loadStyle("lib/chart");

/** The margins around a plot for its axes. */
export const MARGIN = { left: 46, right: 12, top: 10, bottom: 24 };

/** The colours of series, in order. */
export const SERIES = ["var(--series-1)", "var(--series-2)", "var(--series-3)", "var(--series-4)", "var(--series-5)",
  "var(--series-6)"];

/** Round values between two ends, about `count` of them; `whole` numbers only where that is said. */
export function ticks(low, high, count, whole = false) {
  const raw = Math.max((high - low) / Math.max(1, count) || 1, whole ? 1 : 0);
  const power = 10 ** Math.floor(Math.log10(raw));
  const factors = whole && power < 10 ? [1, 2, 5, 10] : [1, 2, 2.5, 5, 10];
  const step = factors.find((factor) => factor * power >= raw) * power;
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-6; value += step) found.push(
    Number(value.toFixed(10)));
  return found;
}

const CHARACTER = 6.2;
const APART = 8;

/** How wide a label of an axis is, roughly, in pixels. */
const widthOfText = (text) => String(text).length * CHARACTER;

/** The room at the left of a plot for the labels of its y axis. */
export const roomFor = (texts) => Math.max(MARGIN.left, ...texts.map((text) => widthOfText(text) + 10));

/** Labels in a row at `y`, each centred at its place or pushed inside the ends; one that would touch the last is left out. */
export function labelsAt(y, entries, [low, high]) {
  let free = -Infinity;
  return entries.flatMap(([place, text]) => {
    const half = widthOfText(text) / 2;
    const at = Math.max(low + half, Math.min(place, high - half));
    if (at - half < free) return [];
    free = at + half + APART;
    return [h("text", { class: "axis", x: at.toFixed(1), y, "text-anchor": "middle" }, text)];
  });
}

/** A legend, names with their colours: [[color, text], …]. */
export function legend(entries) {
  return entries.map(([color, text]) => h("span", h("i", { style: { background: color } }), text));
}

/** The width of a box in pixels, as a signal. */
export function widthOf(box) {
  const width = signal(640);
  const observer = new ResizeObserver((entries) => { width.value = Math.max(160, Math.round(entries[0].contentRect.width)); });
  observer.observe(box);
  onCleanup(() => observer.disconnect());
  return width;
}

const FEWEST_VALUES = 8;
const FAR = 4;

/**
 * Where a scale is cut off, so that a few values far above all others do not flatten them: a little above what 95 of 100
 * stay below; null where no value is that far out.
 * @param {number[]} values
 */
export function cutOf(values) {
  const known = values.filter((value) => Number.isFinite(value) && value > 0).sort((one, other) => one - other);
  if (known.length < FEWEST_VALUES) return null;
  const usual = known[Math.floor(0.95 * (known.length - 1))];
  return known.at(-1) > FAR * usual ? usual * 1.25 : null;
}

/** A mark for a value beyond the end of the scale, with its text. */
export const beyond = (left, text, color) =>
  h("path", { class: "beyond", fill: color, d: `M${left - 5} ${MARGIN.top}h10l-5 -7z` }, h("title", text));

/**
 * The switch of a chart with values beyond its scale: `count()` of them are cut off, or none when `whole` is on.
 * @param {() => number} count
 * @param {import("./dom.js").Signal<boolean>} whole
 */
export function cutSwitch(count, whole) {
  const stop = (event) => event.stopPropagation();
  const text = () => (whole.value ? "Cut off outliers" : `${count()} beyond the scale: show all`);
  const toggle = (event) => {
    stop(event);
    whole.value = !whole.peek();
  };
  return h("button.cutswitch", { type: "button", hidden: () => !whole.value && !count(), onpointerdown: stop, onclick: toggle }, text);
}

/** The lowest and highest value of some series with margins, or null without any. */
export function rangeOf(rows, series, logarithmic, zero = false) {
  let low = Infinity;
  let high = -Infinity;
  for (const row of rows) {
    for (const { key, band } of series) {
      const value = row[key];
      if (value == null || !Number.isFinite(value) || (logarithmic && value <= 0)) continue;
      const spread = band && !logarithmic ? row[band] ?? 0 : 0;
      low = Math.min(low, value - spread);
      high = Math.max(high, value + spread);
    }
  }
  if (low > high) return null;
  if (logarithmic) return high === low ? [low / 2, high * 2] : [low, high];
  if (low > 0 && (zero || low < high - low)) low = 0;
  // A range far narrower than its values is widened, so that the labels of its axis differ.
  const pad = (high === low ? Math.abs(high) * 0.1 : Math.max((high - low) * 0.06, Math.abs(high) * 0.005)) || 1;
  return [low === 0 ? 0 : low - pad, high + pad];
}

/**
 * Lines of live data. `rows()` are objects in the order of `x`; series are {key, label, color, band, dots, dashed}.
 * `hover` (a signal of an x value) shares the crosshair between charts; `time` says that x is seconds since 1970;
 * `onrange(from, to)` lets a part be brushed; `logarithmic()` switches the y axis; `domain()` fixes the ends of the x axis;
 * `wholeX` and `wholeY` mark whole numbers only, `zero` lets the y axis begin at 0. `nameX` and `nameY` are written at the
 * axes. A click or Enter gives the nearest row to `onpick`, or its `step` of time to `onrange`; `opens` says what that opens.
 * @param {{rows: () => any[], x: string, series: any[] | (() => any[]), label: string, height?: number, time?: boolean,
 *   hover?: import("./dom.js").Signal<number|null>, formatY?: (value: number) => string,
 *   formatX?: (value: number) => string, onrange?: (from: number, to: number) => void, onpick?: (row: any) => void,
 *   logarithmic?: () => boolean, domain?: () => [number, number]|null, nameX?: string, nameY?: string, step?: number,
 *   opens?: string, wholeX?: boolean, wholeY?: boolean, zero?: boolean}} options
 */
export function lineChart({ rows, x, series, label, height = 200, time = false, hover = signal(null), formatY = number, formatX,
  onrange, onpick, logarithmic = () => false, domain, nameX = x, nameY = "", step = 0, opens = "its calls", wholeX = false,
  wholeY = false, zero = false }) {
  const showX = formatX ?? (time ? (value) => when(date(value * 1000)) : number);
  const list = typeof series === "function" ? series : () => series;
  const svg = h("svg.chart", { role: "img", "aria-label": label, height, width: "100%" });
  const tip = h("div.tip", { hidden: true });
  const box = h("div.chartbox", svg, tip);
  const width = widthOf(box);
  const whole = signal(false);
  const cut = computed(() => (!time || logarithmic() || whole.value ? null
    : cutOf(rows().flatMap((row) => list().map(({ key }) => row[key])))));
  box.prepend(cutSwitch(() => (cut.value === null ? 0
    : rows().filter((row) => list().some(({ key }) => row[key] > cut.value)).length), whole));
  const scales = computed(() => {
    const data = rows();
    const range = rangeOf(data, list(), logarithmic(), zero);
    if (!data.length || !range) return null;
    if (cut.value !== null) range[1] = cut.value;
    const [first, last] = domain?.() ?? [data[0][x], data.at(-1)[x]];
    const left = roomFor(textsOf(marksOf(range, height, wholeY, logarithmic()), formatY, logarithmic()));
    const top = MARGIN.top + (nameY ? NAME : 0);
    const inner = { width: width.value - left - MARGIN.right, height: height - top - MARGIN.bottom };
    const bend = logarithmic() ? (value) => Math.log10(Math.max(value, range[0])) : (value) => value;
    const isShown = logarithmic() ? (value) => value > 0 && Number.isFinite(value) : Number.isFinite;
    const [low, high] = range.map(bend);
    const span = last - first || 1;
    return {
      data, range, first, last, left, inner, isShown, wholeX, wholeY, nameX: time ? "" : nameX, nameY,
      x: (value) => left + ((value - first) / span) * inner.width,
      y: (value) => top + (1 - (Math.min(high, bend(value)) - low) / (high - low || 1)) * inner.height,
      back: (pixel) => first + ((pixel - left) / inner.width) * span,
    };
  });
  effect(() => {
    const scale = scales.value;
    if (!scale) svg.replaceChildren(h("text", { class: "axis", x: width.value / 2, y: height / 2, "text-anchor": "middle" },
      "No data yet"));
    else svg.replaceChildren(...axes(scale, width.value, height, formatX ?? (time ? null : showX), formatY, logarithmic()),
      ...list().flatMap((entry) => drawSeries(scale, entry, x)),
      ...(cut.value === null ? [] : list().flatMap(({ key, color }) => scale.data.filter((row) => row[key] > cut.value)
        .map((row) => beyond(scale.x(row[x]), `${showX(row[x])}: ${formatY(row[key])}`, color)))));
  });
  const cross = h("line", { class: "cross", y1: MARGIN.top, y2: height - MARGIN.bottom });
  effect(() => {
    const scale = scales.value;
    const at = hover.value;
    const row = scale && at != null ? nearest(scale.data, x, at) : null;
    tip.hidden = !row;
    cross.remove();
    if (!row) return;
    const left = scale.x(row[x]);
    cross.setAttribute("x1", left);
    cross.setAttribute("x2", left);
    svg.append(cross);
    tip.replaceChildren(h("b", time ? showX(row[x]) : `${nameX} ${showX(row[x])}`),
      ...list().filter(({ key }) => row[key] != null)
        .map((entry) => h("div", h("i", { style: { background: entry.color } }), entry.label,
        h("span", formatY(row[entry.key])))));
    tip.style.setProperty("left", `${left > width.value / 2 ? left - tip.offsetWidth - 12 : left + 12}px`);
  });
  const pick = onpick ?? (onrange && step ? (row) => onrange(row[x] - step / 2, row[x] + step / 2) : null);
  const pickAt = pick && ((value) => scales.peek() && pick(nearest(scales.peek().data, x, value)));
  pointer(box, (pixel) => { hover.value = pixel === null || !scales.peek() ? null : scales.peek().back(pixel); },
    onrange && ((from, to) => scales.peek() && onrange(scales.peek().back(from), scales.peek().back(to))),
    pickAt && ((pixel) => scales.peek() && pickAt(scales.peek().back(pixel))));
  if (pickAt) steps(box, { label, opens, places: () => (scales.peek()?.data ?? []).map((row) => row[x]), hover, pick: pickAt });
  return box;
}

const NAME = 14;

/**
 * The values that are marked on a y axis.
 * @param {number[]} range
 */
function marksOf(range, height, wholeY, logarithmic) {
  const [low, high] = range;
  if (logarithmic) return ticks(Math.log10(low), Math.log10(high), 4).map((power) => 10 ** power);
  return ticks(low, high, height > 220 ? 7 : 5, wholeY);
}

const textsOf = (marks, showY, logarithmic) => (logarithmic ? marks.map((value) => showY(value)) : axisTexts(showY, marks));

/** The grid and the labels of a plot. */
export function axes(scale, width, height, showX, showY, logarithmic) {
  const { left = MARGIN.left, nameX = "", nameY = "" } = scale;
  const marks = marksOf(scale.range, height, scale.wholeY, logarithmic);
  const written = textsOf(marks, showY, logarithmic);
  const lines = marks.flatMap((value, index) => [
    h("line", { class: "grid", x1: left, x2: width - MARGIN.right, y1: scale.y(value), y2: scale.y(value) }),
    h("text", { class: "axis", x: left - 8, y: scale.y(value) + 3.5, "text-anchor": "end" }, written[index]),
  ]);
  const marked = showX ? null : timeTicks(scale.first, scale.last, width / 110);
  const places = marked?.places ?? ticks(scale.first, scale.last, width / 90)
    .filter((value) => value >= scale.first && value <= scale.last && (!scale.wholeX || Number.isInteger(value)));
  const write = marked ? timeText(marked.step) : showX;
  const end = width - (nameX ? widthOfText(nameX) + APART : 0);
  const names = [
    nameX && h("text", { class: "axis", x: width, y: height - 6, "text-anchor": "end" }, nameX),
    nameY && h("text", { class: "axis", x: 0, y: 10 }, nameY),
  ].filter(Boolean);
  return [...lines, ...labelsAt(height - 6, places.map((value) => [scale.x(value), write(value)]), [0, end]), ...names];
}

function drawSeries(scale, { key, color, band, dots, dashed }, x) {
  const step = Math.max(1, Math.floor(scale.data.length / (scale.inner.width * 1.2)));
  const points = scale.data.filter((row, index) => scale.isShown(row[key])
    && (index % step === 0 || index === scale.data.length - 1));
  if (!points.length) return [];
  const place = (row, value) => `${scale.x(row[x]).toFixed(1)} ${scale.y(value).toFixed(1)}`;
  const drawn = [];
  if (band) {
    const upper = points.map((row) => place(row, row[key] + (row[band] ?? 0)));
    const lower = points.map((row) => place(row, row[key] - (row[band] ?? 0))).reverse();
    drawn.push(h("path", { class: "band", fill: color, d: `M${upper.join("L")}L${lower.join("L")}Z` }));
  }
  drawn.push(h("path",
    { class: dashed ? "line dashed" : "line", stroke: color, d: `M${points.map((row) => place(row, row[key])).join("L")}` }));
  if (dots || points.length === 1) drawn.push(...points
    .map((row) => h("circle", { cx: scale.x(row[x]), cy: scale.y(row[key]), r: 2.6, fill: color })));
  return drawn;
}

function nearest(rows, x, value) {
  let [low, high] = [0, rows.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rows[middle][x] < value) low = middle + 1;
    else high = middle;
  }
  return low && value - rows[low - 1][x] < rows[low][x] - value ? rows[low - 1] : rows[low];
}

/** Arrow keys that go through a chart's places, and Enter that picks one. */
export function steps(box, { label, opens = "its calls", places, hover, pick }) {
  const move = (event) => {
    const all = places();
    const at = all.findIndex((place) => place === hover.peek());
    const to = { ArrowRight: at + 1, ArrowLeft: at < 0 ? all.length - 1 : at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (to !== undefined) hover.value = all[Math.max(0, Math.min(all.length - 1, to))] ?? null;
    else if (event.key === "Enter" && at >= 0) pick(hover.peek());
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  for (const [name, value] of Object.entries({ tabindex: "0", role: "group",
    "aria-label": `${label}: arrow keys choose, Enter opens ${opens}` })) box.setAttribute(name, value);
  box.addEventListener("keydown", move);
  box.addEventListener("blur", () => { hover.value = null; });
}

/** Follow the pointer over a chart: its place in pixels (null when it leaves), a dragged range, and a clicked place with what is drawn there. */
export function pointer(box, onhover, onrange, onpick) {
  const brush = h("div.brush", { hidden: true });
  box.append(brush);
  let start = null;
  let hit = null;
  const left = (event) => event.clientX - box.getBoundingClientRect().left;
  box.addEventListener("pointermove", (event) => {
    onhover?.(left(event));
    if (start === null || !onrange) return;
    brush.hidden = false;
    brush.style.setProperty("left", `${Math.min(start, left(event))}px`);
    brush.style.setProperty("width", `${Math.abs(left(event) - start)}px`);
  });
  box.addEventListener("pointerleave", () => onhover?.(null));
  if (!onrange && !onpick) return;
  box.classList.add(onrange ? "brushable" : "pickable");
  box.addEventListener("pointerdown", (event) => {
    start = left(event);
    hit = event.target;
    box.setPointerCapture(event.pointerId);
  });
  box.addEventListener("pointerup", (event) => {
    const end = left(event);
    if (start !== null && Math.abs(end - start) > 4) onrange?.(Math.min(start, end), Math.max(start, end));
    else if (start !== null) onpick?.(end, hit);
    start = null;
    brush.hidden = true;
  });
  box.addEventListener("pointercancel", () => {
    start = null;
    brush.hidden = true;
  });
}

/** A small line without axes for a table cell; null values are gaps. */
export function spark(values, { color = SERIES[0], width = 90, height = 20, label = "" } = {}) {
  const known = values.filter((value) => Number.isFinite(value));
  const svg = h("svg.spark", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": label || `from ${number(known[0])} to ${number(known.at(-1))}` });
  if (!known.length) return svg;
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const points = values.map((value, index) => [values.length < 2 ? width : (index / (values.length - 1)) * (width - 3) + 1,
    value])
    .filter(([, value]) => Number.isFinite(value))
    .map(([left, value]) => `${left.toFixed(1)} ${(height - 2 - ((value - low) / (high - low || 1)) * (height - 4)).toFixed(1)}`);
  if (points.length === 1) svg.append(h("circle", { cx: points[0].split(" ")[0], cy: height / 2, r: 2, fill: color }));
  else svg.append(h("path", { class: "line", stroke: color, d: `M${points.join("L")}` }));
  return svg;
}

/** A bar from 0 to 1 of its cell, with a text. */
export function shareBar(share, text, color = SERIES[0]) {
  return h("span.sharebar", h("i", { style: { width: `${Math.max(0, Math.min(1, share ?? 0)) * 100}%`, background: color } }),
    h("span", text));
}

/**
 * Vertical bars of counts: bins are {from, to, count, color}; for distributions.
 * @param {{bins: () => any[], label: string, height?: number, formatX?: (value: any) => string}} options
 */
export function bars({ bins, label, height = 120, formatX = number }) {
  const svg = h("svg.chart", { role: "img", "aria-label": label, height, width: "100%" });
  const box = h("div.chartbox", svg);
  const width = widthOf(box);
  effect(() => {
    const data = bins();
    const most = Math.max(1, ...data.map(({ count }) => count));
    const step = (width.value - 8) / Math.max(1, data.length);
    const middle = (index) => 4 + index * step + Math.min(40, step / 2);
    const counts = data.every(({ count }) => widthOfText(count) < step);
    svg.replaceChildren(...data.flatMap((bin, index) => {
      const tall = (bin.count / most) * (height - 34);
      const left = 4 + index * step;
      return [
        h("rect.bar", { x: left + 1, y: height - 20 - tall,
          width: Math.max(1, Math.min(80, step - 2)), height: tall, rx: 2, fill: bin.color ?? SERIES[0] }, h("title", `${formatX(bin.from)}: ${bin.count}`)),
        bin.count && counts ? h("text", { class: "axis", x: middle(index), y: height - 24 - tall,
          "text-anchor": "middle" }, bin.count) : null,
      ].filter(Boolean);
    }), ...labelsAt(height - 6, data.map((bin, index) => [middle(index), bin.text ?? formatX(bin.from)]), [0, width.value]));
  });
  return box;
}
