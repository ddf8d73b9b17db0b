// The rows of a comparison, the worst change first: input, expected, and one column per run.
import { computed, effect, h, onCleanup, untrack } from "../lib/dom.js";
import { int, plural } from "../lib/format.js";
import { empty } from "../lib/panels.js";
import { chip, keys, segments } from "../lib/parts.js";
import { query, setBeside, setQuery } from "../lib/router.js";
import { scrollWith, windowed } from "../lib/windowed.js";
import { judged, ROW_FILTERS, ROW_ORDERS, rowContents } from "../lib/comparison.js";
import { measureLabel } from "../lib/runs.js";
import { openDetail } from "./compare_detail.js";
import { exampleRow } from "./compare_rows.js";
import { loadContents } from "./compare_export.js";

const ROW_HEIGHT = 80;

/** The example table with its filters. */
export const examples = (found) => untrack(() => made(found));

function made(found) {
  const { comparison, runs, baseline, others } = found;
  const looked = () => (others.some((run) => run.id === query("against")) ? [query("against")] : others.map((run) => run.id));
  const all = computed(() => judged(comparison, { name: found.measure(), baseline, others: looked() }));
  /** @type {(test: (row: any) => boolean) => any[]} */
  const filtered = (test) => inArea(all.value, comparison, found.measure()).filter(test);
  const counts = computed(() => Object.fromEntries(ROW_FILTERS.map(([name, , test]) => [name, filtered(test).length])));
  const show = () =>
    ROW_FILTERS.some(([name]) => name === query("show")) ? query("show") : others.length ? "regressions" : "all";
  const rows = computed(() => {
    const test = ROW_FILTERS.find(([name]) => name === show())?.[2] ?? (() => true);
    const name = query("order") ?? ordersFor(others)[0][0];
    const order = ROW_ORDERS.find(([value]) => value === name)?.[2] ?? ROW_ORDERS[0][2];
    return filtered(test).sort((one, other) => order(one, other) || one.row - other.row);
  });
  const content = rowContents((rows, abort) => loadContents(found, rows, abort));
  const differs = () => query("diff") === "1";
  const box = windowed({
    rows: () => rows.value,
    height: ROW_HEIGHT,
    key: ({ digest }) => digest,
    overscan: 6,
    attributes: { role: "rowgroup", tabindex: 0, "aria-label": "Rows" },
    make: (item, index) => exampleRow({ item, index, content, found, differs }),
  });
  const head = headings(found);
  scrollWith(box, head);
  browse(rows, box, (digest, close) => openDetail({ digest, content, found, differs, close, rows }));
  return [
    tools({ found, counts, show, differs }),
    h(
      "div.examples",
      { role: "table", "aria-label": "Examples", "aria-rowcount": () => rows.value.length, style: { "--runs": runs.length } },
      head,
      box,
      () => (rows.value.length ? null : nothing(show())),
    ),
    h(
      "div.pager",
      h("span", () => `${int(rows.value.length)} of ${plural(comparison.rows.length, "row")}`),
      h("span.grow"),
      h("span.dim.keyhint", h("kbd", "j"), h("kbd", "k"), " example ", h("kbd", "↵"), " open ", h("kbd", "d"), " differences"),
    ),
  ];
}

/** The rows whose two values lie in the area that was dragged in the scatter. */
function inArea(rows, comparison, name) {
  const [across, up, ...ends] = (query("area") ?? "").split(",");
  const [left, right, low, high] = ends.map(Number);
  if (ends.length !== 4 || [left, right, low, high].some(Number.isNaN)) return rows;
  const within = (value, from, to) => value !== null && value >= from && value <= to;
  return rows.filter(
    ({ row }) => within(comparison.value(across, name, row), left, right) && within(comparison.value(up, name, row), low, high),
  );
}

/** Keys, and the drawer of the row that the address names. */
function browse(rows, box, open) {
  let close = null;
  let isLeaving = false;
  const step = (by) => {
    const at = rows.value.findIndex(({ digest }) => digest === query("at"));
    const next = rows.value[Math.max(0, Math.min(rows.value.length - 1, at + by))];
    if (!next) return;
    setQuery({ at: next.digest, ...(query("row") ? { row: next.digest } : {}) });
    box.reveal(rows.value.indexOf(next));
  };
  keys({
    j: [() => step(1), "next example"],
    k: [() => step(-1), "previous example"],
    Enter: [() => query("at") && setBeside("row", { row: query("at") }), "open the example"],
    d: [() => setQuery({ diff: query("diff") ? null : "1" }), "show differences from the baseline"],
    Escape: [() => setBeside("row", { row: null }), "close the example"],
  });
  const opened = computed(() => query("row"));
  effect(() => {
    const digest = opened.value;
    close?.();
    close = digest
      ? open(digest, () => {
          if (!isLeaving && query("row") === digest) setBeside("row", { row: null });
        })
      : null;
  });
  onCleanup(() => {
    isLeaving = true;
    close?.();
  });
}

/** The orders to choose from, as [value, text]; one run alone has no changes. */
const ordersFor = (others) =>
  ROW_ORDERS.filter(([name]) => others.length || name === "low" || name === "row").map(([name, text]) => [name, text]);

function tools({ found, counts, show, differs }) {
  const { comparison, others, measure } = found;
  const counted = (name, text) =>
    h(
      "span",
      text,
      " ",
      h("small", () => int(counts.value[name])),
    );
  const filters = ROW_FILTERS.filter(([name]) => others.length || name === "failed" || name === "all");
  const select = (label, entries, value, onchange) =>
    h(
      "label.inlinefield",
      h("span", label),
      h(
        "select",
        { onchange: (event) => onchange(event.target.value) },
        entries.map(([name, text]) => h("option", { value: name, selected: name === value }, text)),
      ),
    );
  return h(
    "div.bar-of-tools",
    segments(
      "Rows",
      filters.map(([name, text]) => [name, counted(name, text)]),
      show,
      (name) => setQuery({ show: name, at: null }, false),
    ),
    select(
      "by",
      comparison.names.map((name) => [name, measureLabel(name)]),
      measure(),
      (name) => setQuery({ measure: name }),
    ),
    others.length > 1 &&
      select(
        "of",
        [["", "any run"], ...others.map((run) => [run.id, `${run.letter} ${run.model.name}`])],
        query("against") ?? "",
        (run) => setQuery({ against: run }),
      ),
    select("order", ordersFor(others), query("order") ?? ordersFor(others)[0][0], (order) =>
      setQuery({ order: order === ordersFor(others)[0][0] ? null : order }),
    ),
    others.length > 0 &&
      h(
        "button.button",
        { type: "button", "aria-pressed": () => String(differs()), onclick: () => setQuery({ diff: differs() ? null : "1" }) },
        "Differences",
      ),
    () => (query("area") ? chip("Selected area of the plot", () => setQuery({ area: null })) : null),
  );
}

function headings({ runs }) {
  return h(
    "div.examplehead",
    { role: "rowgroup" },
    h(
      "div.examplerow.head",
      { role: "row" },
      h("span", { role: "columnheader" }, "Input"),
      h("span", { role: "columnheader" }, "Expected"),
      runs.map((run, index) =>
        h(
          "span.runhead",
          { role: "columnheader", title: run.model.name },
          h("i", { style: { background: run.color } }),
          h("span.one-line", `${run.letter} ${run.model.name}`.trim()),
          index === 0 && runs.length > 1 && h("span.faint", "baseline"),
        ),
      ),
    ),
  );
}

function nothing(show) {
  const words = {
    regressions: "No row got worse",
    improvements: "No row got better",
    disagreements: "The runs agree on every row",
    failed: "No answer failed",
  };
  return empty({
    title: words[show] ?? "No rows",
    text: "Choose another measure, another run or all rows.",
  });
}
