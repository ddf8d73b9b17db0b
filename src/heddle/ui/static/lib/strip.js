// A histogram strip over time, to see and to choose a range.
import { effect, h } from "./dom.js";
import { when } from "./format.js";

const HEIGHT = 54;

/**
 * Calls over time with their errors; dragging chooses a range. `data()` is null or {start, step, total: [], errors: []}
 * with start and step in seconds; `onrange(from, to)` gets seconds since 1970.
 * @param {{data: () => any, onrange: (from: number, to: number) => void, label?: string}} options
 */
export function strip({ data, onrange, label = "Calls over time" }) {
  const svg = h("svg", { viewBox: `0 0 900 ${HEIGHT}`, preserveAspectRatio: "none", height: HEIGHT, width: "100%", role: "img",
    "aria-label": label });
  const brush = h("div.brush", { hidden: true });
  const note = h("div.striptimes");
  const box = h("div.strip.brushable", svg, brush);
  const share = (event) => (event.clientX - box.getBoundingClientRect().left) / box.clientWidth;
  let start = null;
  box.addEventListener("pointerdown", (event) => {
    start = share(event);
    box.setPointerCapture(event.pointerId);
  });
  box.addEventListener("pointermove", (event) => {
    if (start === null) return;
    brush.hidden = false;
    brush.style.setProperty("left", `${Math.min(start, share(event)) * 100}%`);
    brush.style.setProperty("width", `${Math.abs(share(event) - start) * 100}%`);
  });
  box.addEventListener("pointerup", (event) => {
    const [found, end] = [data(), share(event)];
    if (start !== null && found) {
      const at = (part) => found.start + part * found.step * found.total.length;
      const index = Math.min(found.total.length - 1, Math.floor(end * found.total.length));
      if (Math.abs(end - start) > 0.005) onrange(at(Math.min(start, end)), at(Math.max(start, end)));
      else if (found.total[index]) onrange(found.start + index * found.step, found.start + (index + 1) * found.step);
    }
    start = null;
    brush.hidden = true;
  });
  box.addEventListener("pointercancel", () => {
    start = null;
    brush.hidden = true;
  });
  effect(() => {
    const found = data();
    if (!found) return;
    const { total, errors } = found;
    const most = Math.max(1, ...total);
    const width = 900 / total.length;
    const bar = (name, index, from, tall) =>
      h("rect", { class: name, x: index * width + 0.8, width: Math.max(0.6, width - 1.6), y: HEIGHT - from - tall,
      height: tall });
    svg.replaceChildren(...total.flatMap((count, index) => {
      if (!count) return [];
      const bad = errors[index] ? Math.max(1.5, (errors[index] / most) * (HEIGHT - 2)) : 0;
      const good = Math.max(0, (count / most) * (HEIGHT - 2) - bad);
      return [bar("good", index, bad, good), bad ? bar("bad", index, 0, bad) : null].filter(Boolean);
    }));
    const end = found.start + found.step * total.length;
    note.replaceChildren(h("span", when(found.start)), h("span", when((found.start + end) / 2)), h("span", when(end)));
  });
  return h("div.stripbox", box, note);
}
