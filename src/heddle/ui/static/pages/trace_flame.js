// A trace as a flame: time from left to right, each call below its parent. Drawn, as there may be very many; the tree
// shows the same calls to the keyboard and to screen readers.
import { computed, effect, h, onCleanup, signal } from "../lib/dom.js";
import { duration } from "../lib/format.js";
import { query, setQuery } from "../lib/router.js";
import { ticks } from "./trace_axis.js";
import { lanes } from "./trace_lanes.js";

const LANE = 22;
const NARROWEST_LABEL = 34;
const KINDS = ["agent", "tool", "llm", "scorer", "chain", "fn"];
const AXIS = 22;

/** The flame of a trace: a click chooses a call, a double click zooms on it. */
export function flame(view) {
  const placed = computed(() => (view.tree.value ? lanes(view.tree.value) : { rows: new Int32Array(0), count: 0 }));
  const size = signal([0, 0]);
  const top = signal(0);
  const over = signal(-1);
  const canvas = h("canvas.flame", { "aria-hidden": "true" });
  const tip = h("div.tip.flametip", { hidden: () => over.value < 0 }, () =>
    over.value < 0 ? null : tipText(view.tree.value, over.value),
  );
  const floor = h("div.flamefloor", { style: () => ({ height: `${AXIS + placed.value.count * LANE + 8}px` }) });
  const box = h(
    "div.flamebox",
    {
      role: "img",
      tabindex: 0,
      "aria-label": "Flame graph of the trace; the tree view lists the same calls",
      onscroll: () => {
        top.value = box.scrollTop;
      },
      onclick: (event) => view.pick(at(event)),
      ondblclick: (event) => at(event) >= 0 && setQuery({ zoom: view.tree.value.columns.id[at(event)] }, false),
      onpointermove: (event) => {
        over.value = at(event);
        moveTip(tip, box, event);
      },
      onpointerleave: () => {
        over.value = -1;
      },
      onkeydown: (event) => stepByKey(view, event),
    },
    floor,
    canvas,
  );
  const at = (event) => callAt(view, placed.value, box, event);
  const observer = new ResizeObserver(() => {
    size.value = [box.clientWidth, box.clientHeight];
  });
  observer.observe(box);
  onCleanup(() => observer.disconnect());
  const theme = signal(0);
  const themes = new MutationObserver(() => {
    theme.value++;
  });
  themes.observe(document.documentElement, { attributeFilter: ["data-theme"] });
  onCleanup(() => themes.disconnect());
  effect(() => {
    theme.value;
    if (view.tree.value && size.value[0]) draw(canvas, view, placed.value, size.value[0], size.value[1], top.value);
  });
  effect(() => reveal(box, placed.value, view.selected()));
  return h("div.flamepane", box, tip);
}

function reveal(box, placed, index) {
  if (index < 0) return;
  const y = placed.rows[index] * LANE;
  if (y < box.scrollTop) box.scrollTop = y;
  else if (y + LANE + AXIS > box.scrollTop + box.clientHeight) box.scrollTop = y + LANE + AXIS - box.clientHeight;
}

function stepByKey(view, event) {
  const step = { ArrowDown: 1, ArrowUp: -1, ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (event.key === "Enter") setQuery({ zoom: query("zoom") === view.callId() ? null : view.callId() }, false);
  else if (step) view.step(step);
  else return;
  event.preventDefault();
}

function tipText(tree, index) {
  return [
    h("b", { dir: "auto" }, tree.name(index)),
    h("span", tree.isRunning(index) ? "running" : duration(tree.columns.length[index] / 1e6)),
  ];
}

function moveTip(tip, box, event) {
  const area = box.getBoundingClientRect();
  tip.style.setProperty("left", `${Math.min(event.clientX - area.left + 12, area.width - 240)}px`);
  tip.style.setProperty("top", `${Math.min(event.clientY - area.top + 16, area.height - 40)}px`);
}

/** The call at a place of the picture, or -1; a linear look, as it happens only under the pointer. */
function callAt(view, { rows }, box, event) {
  const tree = view.tree.value;
  if (!tree) return -1;
  const area = box.getBoundingClientRect();
  const lane = Math.floor((event.clientY - area.top + box.scrollTop - AXIS) / LANE);
  const { from, until } = view.time.value;
  const each = (until - from) / box.clientWidth;
  const moment = from + (event.clientX - area.left) * each;
  let best = -1;
  for (let index = 0; index < tree.count; index++) {
    if (rows[index] === lane && tree.columns.start[index] <= moment + each && tree.end(index) >= moment - 2 * each) best = index;
  }
  return best;
}

function draw(canvas, view, { rows }, width, height, top) {
  const scale = devicePixelRatio || 1;
  canvas.width = width * scale;
  canvas.height = height * scale;
  canvas.style.setProperty("width", `${width}px`);
  canvas.style.setProperty("height", `${height}px`);
  const pen = canvas.getContext("2d");
  const paint = colours(canvas);
  pen.scale(scale, scale);
  pen.font = `12px ${paint.font}`;
  pen.textBaseline = "middle";
  const tree = view.tree.value;
  const { from, until } = view.time.value;
  const filledTo = new Map();
  for (let index = 0; index < tree.count; index++) {
    const y = AXIS + rows[index] * LANE - top;
    if (y < -LANE || y > height) continue;
    const left = ((tree.columns.start[index] - from) / (until - from)) * width;
    const right = ((tree.end(index) - from) / (until - from)) * width;
    if (right < 0 || left > width) continue;
    // Calls narrower than a pixel are drawn once per pixel, not once each.
    if (right - left < 1 && Math.floor(left) <= (filledTo.get(rows[index]) ?? -1) && index !== view.selected()) continue;
    filledTo.set(rows[index], Math.floor(right));
    bar(pen, paint, tree, index, Math.max(-2, left), Math.min(width + 2, right), y, index === view.selected());
  }
  times(pen, paint, from, until, width);
}

function bar(pen, paint, tree, index, left, right, y, isSelected) {
  const width = Math.max(1, right - left - 1);
  const colour = tree.isError(index) ? paint.error : paint[tree.kind(index)];
  pen.globalAlpha = isSelected ? 1 : 0.3;
  pen.fillStyle = colour;
  pen.fillRect(left, y + 1, width, LANE - 2);
  pen.globalAlpha = 1;
  pen.fillRect(left, y + 1, Math.min(3, width), LANE - 2);
  if (width < NARROWEST_LABEL) return;
  pen.save();
  pen.beginPath();
  pen.rect(left + 7, y, width - 10, LANE);
  pen.clip();
  pen.fillStyle = isSelected ? paint.surface : paint.text;
  pen.fillText(tree.name(index), left + 7, y + LANE / 2 + 0.5);
  pen.restore();
}

function times(pen, paint, from, until, width) {
  pen.fillStyle = paint.surface;
  pen.fillRect(0, 0, width, AXIS - 2);
  pen.fillStyle = paint.faint;
  pen.font = `11px ${paint.font}`;
  for (const { place, text } of ticks(from, until).marks) pen.fillText(text, width * place + 6, AXIS / 2);
}

function colours(element) {
  const style = getComputedStyle(element);
  const probe = h("span", { class: "flameprobe" });
  element.after(probe);
  const read = (name) => {
    probe.style.setProperty("color", `var(${name})`);
    return getComputedStyle(probe).color;
  };
  const found = Object.fromEntries(KINDS.map((kind, index) => [kind, read(`--series-${index + 1}`)]));
  const more = {
    error: read("--error"),
    text: read("--text"),
    surface: read("--surface"),
    faint: read("--faint"),
    font: style.fontFamily,
  };
  probe.remove();
  return /** @type {Record<string, string>} */ ({ ...found, ...more });
}
