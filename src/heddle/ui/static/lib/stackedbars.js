// Amounts over time as stacked bars: one bar per bucket, one colour per series, a range to brush.
import { computed, effect, h, signal } from "./dom.js";
import { beyond, cutOf, cutSwitch, MARGIN, labelsAt, pointer, roomFor, steps, ticks, widthOf } from "./chart.js";
import { axisTexts, date, number, when } from "./format.js";
import { timeText, timeTicks } from "./timeaxis.js";

/**
 * Stacked bars over time. `rows()` are objects in order, each with the start of its bucket in seconds at `x` and a number
 * per series; `step()` is the width of a bucket in seconds; series are {key, label, color}; `onrange(from, to)` gets a
 * dragged range in seconds since 1970; `onpick(from, to, series)` gets a bucket that was clicked or chosen by Enter, and the
 * part of the bar that was hit, if one was; `opens` says what that opens; `hover` (a signal of seconds) is shared with other charts of the same time.
 * @param {{rows: () => any[], step: () => number, series: any[] | (() => any[]), label: string, x?: string,
 *   height?: number, formatY?: (value: number) => string, formatX?: (seconds: number) => string,
 *   onrange?: (from: number, to: number) => void,
 *   onpick?: (from: number, to: number, series: any) => void, opens?: string, hover?: import("./dom.js").Signal<number|null>}} options
 */
export function stackedBars({
  rows,
  step,
  series,
  label,
  x = "time",
  height = 200,
  formatY = number,
  formatX,
  onrange,
  onpick,
  opens = "its calls",
  hover = signal(null),
}) {
  const list = typeof series === "function" ? series : () => series;
  const svg = h("svg.chart", { role: "img", "aria-label": label, height, width: "100%" });
  const tip = h("div.tip", { hidden: true });
  const box = h("div.chartbox", svg, tip);
  const width = widthOf(box);
  const whole = signal(false);
  const sumOf = (row) => list().reduce((sum, { key }) => sum + (row[key] ?? 0), 0);
  const cut = computed(() => (whole.value ? null : cutOf(rows().map(sumOf))));
  box.prepend(cutSwitch(() => (cut.value === null ? 0 : rows().filter((row) => sumOf(row) > cut.value).length), whole));
  const scale = computed(() => scaleOf(rows(), list(), x, step(), width.value, height, formatY, cut.value));
  effect(() => {
    const found = scale.value;
    svg.replaceChildren(
      ...(found ? drawAll(found, list(), x, width.value, height, formatX, formatY) : [nothing(width.value, height)]),
    );
  });
  const mark = h("rect", { class: "columnmark", y: MARGIN.top });
  effect(() => {
    const found = scale.value;
    const row = found && hover.value !== null ? found.rowAt(hover.value) : null;
    tip.hidden = !row;
    mark.remove();
    if (!row) return;
    const left = found.x(row[x]);
    for (const [name, value] of Object.entries({ x: left, width: found.bar, height: found.inner.height }))
      mark.setAttribute(name, String(value));
    svg.prepend(mark);
    tip.replaceChildren(h("b", formatX ? formatX(row[x]) : when(date(row[x] * 1000))), ...tipLines(row, list(), formatY));
    tip.style.setProperty("left", `${left > width.value / 2 ? left - tip.offsetWidth - 12 : left + found.bar + 12}px`);
  });
  const at = (pixel) => scale.peek()?.back(pixel) ?? null;
  pointer(
    box,
    (pixel) => {
      hover.value = pixel === null ? null : at(pixel);
    },
    onrange && ((from, to) => scale.peek() && onrange(at(from), at(to))),
    onpick && ((pixel, hit) => pick(at(pixel), hit)),
  );
  const pick = (seconds, hit = null) => {
    const row = scale.peek()?.rowAt(seconds);
    if (row) onpick(row[x], row[x] + step(), list().find(({ key }) => key === hit?.dataset.series) ?? null);
  };
  if (onpick) steps(box, { label, opens, places: () => (scale.peek()?.data ?? []).map((row) => row[x]), hover, pick });
  return box;
}

function scaleOf(data, list, x, step, width, height, showY, cut) {
  const sums = data.map((row) => list.reduce((sum, { key }) => sum + (row[key] ?? 0), 0));
  const most = Math.max(0, ...sums);
  if (!data.length || !(most > 0)) return null;
  const top = cut ?? most * 1.04;
  const isWhole = data.every((row) => list.every(({ key }) => Number.isInteger(row[key] ?? 0)));
  const marks = ticks(0, top, height > 220 ? 6 : 4, isWhole);
  const written = axisTexts(showY, marks);
  const left = roomFor(written);
  const inner = { width: width - left - MARGIN.right, height: height - MARGIN.top - MARGIN.bottom };
  const first = data[0][x];
  const span = data.at(-1)[x] + step - first;
  const place = (value) => left + ((value - first) / span) * inner.width;
  return {
    data,
    marks,
    written,
    left,
    top,
    first,
    last: first + span,
    inner,
    step,
    bar: (step / span) * inner.width,
    x: place,
    cut,
    y: (value) => MARGIN.top + (1 - Math.min(value, top) / top) * inner.height,
    back: (pixel) => Math.max(first, Math.min(first + span, first + ((pixel - left) / inner.width) * span)),
    rowAt: (seconds) => data.findLast((row) => row[x] <= seconds) ?? null,
  };
}

function drawAll(scale, list, x, width, height, showX, showY) {
  const grid = scale.marks.flatMap((value, index) => [
    h("line", { class: "grid", x1: scale.left, x2: width - MARGIN.right, y1: scale.y(value), y2: scale.y(value) }),
    h("text", { class: "axis", x: scale.left - 8, y: scale.y(value) + 3.5, "text-anchor": "end" }, scale.written[index]),
  ]);
  const gap = scale.bar > 6 ? 1.5 : scale.bar > 3 ? 0.8 : 0;
  const drawn = scale.data.flatMap((row) => {
    let below = 0;
    return list.flatMap(({ key, color }) => {
      const value = row[key] ?? 0;
      if (!(value > 0)) return [];
      below += value;
      if (below - value >= scale.top) return [];
      const tall = Math.max(1, scale.y(below - value) - scale.y(below));
      return [
        h("rect", {
          x: scale.x(row[x]) + gap / 2,
          y: scale.y(below),
          width: Math.max(0.6, scale.bar - gap),
          height: tall,
          fill: color,
          "data-series": key,
        }),
      ];
    });
  });
  const { places, write } = showX ? { places: scale.data.map((row) => row[x]), write: showX } : timeMarks(scale, width);
  const entries = places.map((at) => [scale.x(at) + (showX ? scale.bar / 2 : 0), write(at)]);
  const sum = (row) => list.reduce((total, { key }) => total + (row[key] ?? 0), 0);
  const far = scale.cut === null ? [] : scale.data.filter((row) => sum(row) > scale.cut);
  const colorOf = (row) => list.findLast(({ key }) => row[key] > 0).color;
  const marks = far.map((row) => beyond(scale.x(row[x]) + scale.bar / 2, showY(sum(row)), colorOf(row)));
  return [...grid, ...drawn, ...marks, ...labelsAt(height - 6, entries, [0, width])];
}

function timeMarks(scale, width) {
  const { step, places } = timeTicks(scale.first, scale.last, width / 90);
  return { places, write: timeText(step) };
}

function tipLines(row, list, formatY) {
  const shown = list.filter(({ key }) => row[key] > 0).slice(0, 8);
  const total = list.reduce((sum, { key }) => sum + (row[key] ?? 0), 0);
  const line = (color, text, value) => h("div", h("i", { style: { background: color } }), text, h("span", formatY(value)));
  return [
    ...shown.map(({ key, label, color }) => line(color, label, row[key])),
    ...(shown.length === 1 ? [] : [line("transparent", "total", total)]),
  ];
}

const nothing = (width, height) =>
  h("text", { class: "axis", x: width / 2, y: height / 2, "text-anchor": "middle" }, "No data in this time range");
