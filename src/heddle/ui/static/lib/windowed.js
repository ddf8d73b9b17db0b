// Lists that keep only the visible rows in the document.
import { computed, each, effect, h, onCleanup, signal } from "./dom.js";

/**
 * A list of any length that keeps only the visible rows in the document.
 *
 * `make(item, index)` gets signals and returns the row's element, which is placed absolutely; returns the box to scroll,
 * with `reveal(index)`. `attributes` go to the box (a role and a label are needed). Rows keep their element by `key`.
 * @param {{rows: () => any[], height: number, key: (row: any, index: number) => any,
 *   make: (item: any, index: any) => any, attributes?: any, overscan?: number}} options
 */
export function windowed({ rows, height, key, make, attributes = {}, overscan = 12 }) {
  const top = signal(0);
  const space = signal(800);
  const canvas = h("div.canvas", { role: "presentation", style: () => ({ height: `${rows().length * height}px` }) });
  const box = h("div.windowed", { ...attributes, onscroll: () => { top.value = Math.floor(box.scrollTop / height / 8) * 8; } },
    canvas);
  const observer = new ResizeObserver(() => { space.value = box.clientHeight; });
  observer.observe(box);
  onCleanup(() => observer.disconnect());
  const visible = computed(() => {
    const first = Math.max(0, top.value - overscan);
    const last = top.value + Math.ceil(space.value / height) + overscan + 8;
    return rows().slice(first, last).map((row, offset) => ({ row, index: first + offset }));
  });
  each(canvas, () => visible.value, ({ row, index }) => key(row, index), (held) => {
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
