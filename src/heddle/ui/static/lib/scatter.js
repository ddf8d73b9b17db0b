// Points by two values, to find what differs.
import { effect, h } from "./dom.js";
import { MARGIN, SERIES, axes, rangeOf, widthOf } from "./chart.js";
import { number } from "./format.js";

/**
 * Points by two values, to find what differs. Points are {x, y, key, label, color}; the diagonal is drawn when
 * `diagonal`; `onpick(key)` opens one; `onselect({x: [from, to], y: [from, to]})` gets a dragged area.
 * @param {{points: () => any[], label: string, labelX: string, labelY: string, height?: number, diagonal?: boolean,
 *   onpick?: (key: any) => void, onselect?: (area: any) => void}} options
 */
export function scatter({ points, label, labelX, labelY, height = 320, diagonal = false, onpick, onselect }) {
  const svg = h("svg.chart", { role: "img", "aria-label": label, height, width: "100%" });
  const box = h("div.chartbox", svg);
  const width = widthOf(box);
  let scale = null;
  effect(() => {
    const data = points();
    const spread = (key) => rangeOf(data, [{ key }], false) ?? [0, 1];
    const [xs, ys] = [spread("x"), spread("y")];
    const inner = { width: width.value - MARGIN.left - MARGIN.right, height: height - MARGIN.top - MARGIN.bottom - 14 };
    scale = {
      first: xs[0], last: xs[1], range: ys, inner,
      x: (value) => MARGIN.left + ((value - xs[0]) / (xs[1] - xs[0] || 1)) * inner.width,
      y: (value) => MARGIN.top + (1 - (value - ys[0]) / (ys[1] - ys[0] || 1)) * inner.height,
      backX: (pixel) => xs[0] + ((pixel - MARGIN.left) / inner.width) * (xs[1] - xs[0]),
      backY: (pixel) => ys[0] + (1 - (pixel - MARGIN.top) / inner.height) * (ys[1] - ys[0]),
    };
    const low = Math.max(xs[0], ys[0]);
    const high = Math.min(xs[1], ys[1]);
    svg.replaceChildren(
      ...axes(scale, width.value, height - 14, number, number, false),
      h("text", { class: "axis", x: width.value / 2, y: height - 2, "text-anchor": "middle" }, labelX),
      h("text", { class: "axis", x: 4, y: 10 }, labelY),
      ...(diagonal && low < high
        ? [h("line", { class: "diagonal", x1: scale.x(low), y1: scale.y(low), x2: scale.x(high), y2: scale.y(high) })] : []),
      ...data.map((point) => h("circle", {
        class: onpick ? "point pick" : "point", cx: scale.x(point.x), cy: scale.y(point.y), r: 4, fill: point.color ?? SERIES[0],
        onclick: () => onpick?.(point.key),
      }, h("title", point.label ?? ""))),
    );
  });
  if (onselect) {
    let down = null;
    const place = (event) => [event.clientX - box.getBoundingClientRect().left, event.clientY - box.getBoundingClientRect().top];
    const area = h("div.brush", { hidden: true });
    box.append(area);
    box.classList.add("brushable");
    box.addEventListener("pointerdown",
      (event) => { if (!event.target.classList.contains("pick")) { down = place(event); box.setPointerCapture(
      event.pointerId); } });
    box.addEventListener("pointermove", (event) => {
      if (!down) return;
      const to = place(event);
      area.hidden = false;
      for (const [name, value] of [["left", Math.min(down[0], to[0])], ["top", Math.min(down[1], to[1])],
        ["width", Math.abs(to[0] - down[0])], ["height", Math.abs(to[1] - down[1])]]) {
        area.style.setProperty(String(name), `${value}px`);
      }
    });
    box.addEventListener("pointerup", (event) => {
      const to = place(event);
      if (down && Math.abs(to[0] - down[0]) > 4) {
        const sorted = (a, b) => [Math.min(a, b), Math.max(a, b)];
        onselect({ x: sorted(scale.backX(down[0]), scale.backX(to[0])), y: sorted(scale.backY(down[1]), scale.backY(to[1])) });
      }
      down = null;
      area.hidden = true;
    });
  }
  return box;
}
