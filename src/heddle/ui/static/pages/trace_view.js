// What a trace page shows and how that changes.
import { computed, signal } from "../lib/dom.js";
import { isNarrow } from "../lib/parts.js";
import { query, setQuery } from "../lib/router.js";

/** The views of a trace and their names. */
export const VIEWS = [
  ["tree", "Tree"],
  ["time", "By time"],
  ["flame", "Flame"],
  ["chat", "Chat"],
];

/**
 * The state of a trace page: what is shown of the tree, which call is chosen, and what changes both. All of it but the
 * closed calls lives in the address.
 */
export function makeView(data) {
  const closed = signal(new Set());
  const { tree } = data;
  // Separate signals: a new address alone must not redraw every row.
  const modeShown = computed(() => VIEWS.find(([name]) => name === query("view"))?.[0] ?? "tree");
  const zoomed = computed(() => query("zoom"));
  const mode = () => modeShown.value;
  const callId = computed(() => query("call") ?? (tree.value ? tree.value.columns.id[tree.value.roots[0]] : null));
  const selected = computed(() => tree.value?.columns.positions.get(callId.value) ?? -1);
  const isFlat = () => mode() === "time";
  const wanted = computed(() => query("q") ?? "");
  const shown = computed(() => {
    const found = tree.value;
    if (!found) return { rows: [], kept: null };
    const matches = wanted.value ? found.matcher(wanted.value) : null;
    if (isFlat()) {
      const all = Array.from({ length: found.count }, (_, index) => index);
      return { rows: matches ? all.filter(matches) : all, kept: null };
    }
    return matches ? found.filtered(matches) : { rows: found.rows(closed.value), kept: null };
  });
  const rows = computed(() => shown.value.rows);
  const time = computed(() => timeShown(tree.value, zoomed.value));
  const view = {
    tree,
    done: data.done,
    rows,
    time,
    mode,
    isFlat,
    closed,
    box: null,
    callId: () => callId.value,
    selected: () => selected.value,
    isClosed: (index) => !wanted.value && closed.value.has(tree.value.columns.id[index]),
    isDimmed: (index) => shown.value.kept?.[index] === 2,
    position: () => rows.value.indexOf(selected.value),
    pick: (index) => pick(view, index),
    step: (count) => step(view, count),
    toggle: (index) => {
      const next = new Set(closed.value);
      const id = tree.value.columns.id[index];
      if (!next.delete(id)) next.add(id);
      closed.value = next;
    },
  };
  return view;
}

/** Which time the waterfall covers, in microseconds from the first start: the whole trace, or the call zoomed on. */
function timeShown(tree, zoomed) {
  if (!tree) return { from: 0, until: 1, isZoomed: false };
  const index = tree.columns.positions.get(zoomed);
  if (index === undefined) return { from: tree.from, until: tree.until, isZoomed: false };
  const from = tree.columns.start[index];
  return { from, until: Math.max(tree.end(index), from + 1), isZoomed: true };
}

function pick(view, index) {
  if (index === undefined || index < 0) return;
  open(view, index);
  // Where the list gives way to the call, Back leads to the list again.
  setQuery({ call: view.tree.value.columns.id[index] }, Boolean(query("call")) || !isNarrow());
}

/** Open what is closed above a call. */
function open(view, index) {
  const { columns } = view.tree.value;
  const hiding = view.tree.value
    .above(index)
    .map((above) => columns.id[above])
    .filter((id) => view.closed.value.has(id));
  if (hiding.length) view.closed.value = new Set([...view.closed.value].filter((id) => !hiding.includes(id)));
}

function step(view, count) {
  const rows = view.rows.value;
  const at = Math.max(0, Math.min(rows.length - 1, view.position() + count));
  pick(view, rows[at]);
}

/** Choose the next failed call in the order of the tree, or the one before (-1). */
export function nextError(view, direction) {
  const tree = view.tree.value;
  const start = view.selected() < 0 ? -1 : tree.place[view.selected()];
  for (let step = 1; step <= tree.count; step++) {
    const index = tree.order[(start + direction * step + 2 * tree.count) % tree.count];
    if (tree.isError(index)) return pick(view, index);
  }
}

/** Show only the time of the chosen call, or the whole time again. */
export function toggleZoom(view) {
  setQuery({ zoom: query("zoom") === view.callId() ? null : view.callId() }, false);
}

/** Close everything below the first level, or open everything. */
export function toggleAll(view) {
  const tree = view.tree.value;
  const inner = tree ? Array.from(tree.order).filter((index) => tree.size[index] > 1 && tree.depth[index] > 0) : [];
  view.closed.value = view.closed.value.size ? new Set() : new Set(inner.map((index) => tree.columns.id[index]));
  if (view.selected() < 0 || !tree) return;
  const above = tree.above(view.selected());
  if (view.closed.value.size && above.length > 1) pick(view, above[above.length - 2]);
}
