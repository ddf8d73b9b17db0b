// A line between two panes that can be moved, with the pointer and with the keyboard; its place is kept.
import { effect, h } from "./dom.js";
import { stored } from "./data.js";

const [LEAST, MOST] = [25, 75];

/**
 * The line of a grid whose style sheet reads `--share` (a percentage): put it into the grid as its last child.
 * @param {{label: string, name: string, share?: number}} options `name` is one word under which the place is kept
 */
export function splitter({ label, name, share = 55 }) {
  const place = stored(`split.${name}`, share);
  const set = (value) => {
    place.value = Math.round(Math.min(MOST, Math.max(LEAST, value)) * 10) / 10;
  };
  const drag = (event) => {
    if (!element.hasPointerCapture(event.pointerId)) return;
    const area = element.parentElement.getBoundingClientRect();
    set(((event.clientX - area.left) / area.width) * 100);
  };
  const step = (event) => {
    const change = { ArrowLeft: -2, ArrowRight: 2 }[event.key];
    if (!change) return;
    event.preventDefault();
    event.stopPropagation();
    set(place.value + change);
  };
  const element = h("div.splitter", {
    role: "separator",
    tabindex: 0,
    "aria-label": label,
    "aria-orientation": "vertical",
    "aria-valuemin": LEAST,
    "aria-valuemax": MOST,
    "aria-valuenow": () => String(Math.round(place.value)),
    title: "Drag, or double-click to reset",
    onpointerdown: (event) => element.setPointerCapture(event.pointerId),
    onpointermove: drag,
    ondblclick: () => set(share),
    onkeydown: step,
  });
  effect(() => {
    const value = `${place.value}%`;
    queueMicrotask(() => element.parentElement?.style.setProperty("--share", value));
  });
  return element;
}
