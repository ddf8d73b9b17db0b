// Amounts over time as stacked bars: one bar per bucket, one colour per series, a range to brush.
import { computed, effect, h, signal } from "./dom.js";
import { MARGIN, pointer, ticks, widthOf } from "./chart.js";
import { date, number, when } from "./format.js";
import { timeText, timeTicks } from "./timeaxis.js";

/**
 * Stacked bars over time. `rows()` are objects in order, each with the start of its bucket in seconds at `x` and a number
 * per series; `step()` is the width of a bucket in seconds; series are {key, label, color}; `onrange(from, to)` gets a
 * dragged range in seconds since 1970; `hover` (a signal of seconds) is shared with other charts of the same time.
 * @param {{rows: () => any[], step: () => number, series: any[] | (() => any[]), label: string, x?: string,
 *   height?: number, formatY?: (value: number) => string, formatX?: (seconds: number) => string,
 *   onrange?: (from: number, to: number) => void, hover?: import("./dom.js").Signal<number|null>}} options
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
  hover = signal(null),
}) {
  const list = typeof series === "function" ? series : () => series;
  const svg = h("svg.chart", { role: "img", "aria-label": label, height, width: "100%" });
  const tip = h("div.tip", { hidden: true });
  const box = h("div.chartbox", svg, tip);
  const width = widthOf(box);
  const scale = computed(() => scaleOf(rows(), list(), x, step(), width.value, height));
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
  );
  return box;
}

function scaleOf(data, list, x, step, width, height) {
  const sums = data.map((row) => list.reduce((sum, { key }) => sum + (row[key] ?? 0), 0));
  const most = Math.max(0, ...sums);
  if (!data.length || !(most > 0)) return null;
  const inner = { width: width - MARGIN.left - MARGIN.right, height: height - MARGIN.top - MARGIN.bottom };
  const first = data[0][x];
  const span = data.at(-1)[x] + step - first;
  const place = (value) => MARGIN.left + ((value - first) / span) * inner.width;
  const top = most * 1.04;
  return {
    data,
    top,
    first,
    last: first + span,
    inner,
    step,
    bar: (step / span) * inner.width,
    x: place,
    y: (value) => MARGIN.top + (1 - value / top) * inner.height,
    back: (pixel) => Math.max(first, Math.min(first + span, first + ((pixel - MARGIN.left) / inner.width) * span)),
    rowAt: (seconds) => data.findLast((row) => row[x] <= seconds) ?? null,
  };
}

function drawAll(scale, list, x, width, height, showX, showY) {
  const isWhole = scale.data.every((row) => list.every(({ key }) => Number.isInteger(row[key] ?? 0)));
  const grid = ticks(0, scale.top, height > 220 ? 6 : 4)
    .filter((value) => !isWhole || Number.isInteger(value))
    .flatMap((value) => [
      h("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: scale.y(value), y2: scale.y(value) }),
      h("text", { class: "axis", x: MARGIN.left - 8, y: scale.y(value) + 3.5, "text-anchor": "end" }, showY(value)),
    ]);
  const gap = scale.bar > 6 ? 1.5 : scale.bar > 3 ? 0.8 : 0;
  const drawn = scale.data.flatMap((row) => {
    let below = 0;
    return list.flatMap(({ key, color }) => {
      const value = row[key] ?? 0;
      if (!(value > 0)) return [];
      below += value;
      const tall = Math.max(1, scale.y(below - value) - scale.y(below));
      return [
        h("rect", {
          x: scale.x(row[x]) + gap / 2,
          y: scale.y(below),
          width: Math.max(0.6, scale.bar - gap),
          height: tall,
          fill: color,
        }),
      ];
    });
  });
  const marked = showX
    ? {
        places: everyFew(
          scale.data.map((row) => row[x]),
          width,
        ),
        write: showX,
      }
    : timeMarks(scale, width);
  const texts = marked.places.map((at) => {
    const middle = Math.min(scale.x(at) + (showX ? scale.bar / 2 : 0), width - 34);
    return h(
      "text",
      { class: "axis", x: Math.max(middle, MARGIN.left - 8), y: height - 6, "text-anchor": "middle" },
      marked.write(at),
    );
  });
  return [...grid, ...drawn, ...texts];
}

function everyFew(places, width) {
  const every = Math.max(1, Math.ceil(places.length / Math.max(1, Math.floor(width / 90))));
  return places.filter((_, index) => index % every === 0);
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
  h("text", { class: "axis", x: width / 2, y: height / 2, "text-anchor": "middle" }, "Nothing in this time");
