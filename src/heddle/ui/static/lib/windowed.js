// Lists that keep only the visible rows in the document.
import { computed, each, effect, h, onCleanup, signal } from "./dom.js";

/** The height of a row that is this high for a mouse: a finger needs more. */
export const rowHeight = (height) => (matchMedia("(pointer: coarse)").matches ? Math.max(44, height) : height);

/** Have the headings above a list scroll sideways with it. */
export function scrollWith(box, head) {
  box.addEventListener("scroll", () => { head.scrollLeft = box.scrollLeft; }, { passive: true });
}

/** How many rows a list moves on at a time. */
const STEP = 4;

/**
 * A list of any length that keeps only the visible rows in the document.
 *
 * `make(item, index)` gets signals and returns the row's element, which is placed absolutely; returns the box to scroll,
 * with `reveal(index)`. `attributes` go to the box (a role and a label are needed). Rows keep their element by `key`; without
 * it an element that leaves at one end shows the row that comes in at the other, which costs half as much, so that all of it
 * must follow its signals.
 * @param {{rows: () => any[], height: number, key?: (row: any, index: number) => any,
 *   make: (item: any, index: any) => any, attributes?: any, overscan?: number}} options
 */
export function windowed({ rows, height, key = null, make, attributes = {}, overscan = 6 }) {
  const top = signal(0);
  const space = signal(800);
  const canvas = h("div.canvas", { role: "presentation", style: () => ({ height: `${rows().length * height}px` }) });
  const box = h("div.windowed", { ...attributes, style: { "--row-height": `${height}px` },
    onscroll: () => { top.value = Math.floor(box.scrollTop / height / STEP) * STEP; } }, canvas);
  const observer = new ResizeObserver(() => { space.value = box.clientHeight; });
  observer.observe(box);
  onCleanup(() => observer.disconnect());
  const count = computed(() => Math.ceil(space.value / height) + 2 * overscan + STEP);
  const visible = computed(() => {
    const first = Math.max(0, Math.min(top.value - overscan, rows().length - count.value));
    const shift = key ? 0 : first % count.value;
    return Array.from({ length: Math.min(count.value, rows().length) }, (_, place) => {
      const index = first + ((place - shift + count.value) % count.value);
      return { row: rows()[index], index };
    });
  });
  each(canvas, () => visible.value, ({ row, index }) => (key ? key(row, index) : index % count.value), (held) => {
    const item = computed(() => held.value.row);
    const index = computed(() => held.value.index);
    const element = make(item, index);
    effect(() => element.style.setProperty("transform", `translateY(${index.value * height}px)`));
    return element;
  });
  const reveal = (index) => {
    const y = index * height;
    if (y < box.scrollTop) box.scrollTop = y - height;
    else if (y + height > box.scrollTop + box.clientHeight) box.scrollTop = y + 2 * height - box.clientHeight;
  };
  return Object.assign(box, { reveal });
}
