// A list that is all in memory, shown a page at a time; the place in it stands in the address.
import { computed } from "./dom.js";
import { int } from "./format.js";
import { query, setQuery } from "./router.js";
import { pager } from "./table.js";

/**
 * The rows of the page that the query `from` names, and the buttons to turn it (nothing where all rows fit).
 * @template T
 * @param {() => T[]} rows
 * @param {number} [size]
 */
export function paged(rows, size = 200) {
  const from = computed(() => {
    const wanted = Math.max(0, Math.floor(Number(query("from")) || 0));
    return wanted < rows().length ? wanted : 0;
  });
  const turn = (step) => setQuery({ from: Math.max(0, from.peek() + step) || null }, false);
  const text = () => `${int(from.value + 1)} to ${int(Math.min(rows().length, from.value + size))} of ${int(rows().length)}`;
  const isLong = computed(() => rows().length > size);
  return {
    shown: () => rows().slice(from.value, from.value + size),
    controls: () =>
      isLong.value
        ? pager(
            text,
            () => (from.value ? () => turn(-size) : null),
            () => (from.value + size < rows().length ? () => turn(size) : null),
          )
        : null,
  };
}
