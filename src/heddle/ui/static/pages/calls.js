// The calls of a project: over time, filtered, page by page.
import { computed, effect, h, onCleanup, signal, untrack } from "../lib/dom.js";
import { postProject, resource } from "../lib/data.js";
import { filterChips, filterState, readConditions, rootsOnly, selectionOf, writeConditions } from "../lib/filters.js";
import { compact, duration, int, money, when } from "../lib/format.js";
import { button, dot, failure, kindChip, page, searchBox, segments, skeleton, title } from "../lib/parts.js";
import { link, path, projectId, query, setQuery } from "../lib/router.js";
import { strip } from "../lib/strip.js";
import { pager, table } from "../lib/table.js";
import { rangeQuery, timeRange, timeRangePicker } from "../lib/timerange.js";

const FRESH_AFTER = 8_000;
const PAGE = 40;
const STATE = ["f", "s", "roots", "cols", "sort", "t", "t0", "t1"];
const NO_PLACE = { after: null, before: null, peek: null };

/** The columns that are always there, by name: heading, width, cell, and how the heading sorts. */
export const COLUMNS = {
  op: { label: "Operation", width: "226px", render: nameCell },
  input: { label: "Input", width: "auto", render: (row) => text(row.input) },
  output: { label: "Output", width: "auto", render: (row) => text(row.error ?? row.output, row.error ? "worse" : "dim") },
  model: { label: "Model", width: "122px", render: (row) => row.model && h("code", { title: row.model }, row.model) },
  seconds: {
    label: "Latency", width: "88px", number: true, sort: true, render: latencyCell,
    title: "Longest bar: a hundred seconds; shortest: a tenth of a millisecond",
  },
  tokens: { label: "Tokens", width: "70px", number: true, render: (row) => compact(row.tokens) },
  cost: { label: "Cost", width: "88px", number: true, render: (row) => money(row.cost) },
  user: { label: "User", width: "72px", render: (row) => h("span", { title: row.user }, row.user) },
  thread: { label: "Thread", width: "120px", render: threadCell },
  feedback: { label: "Feedback", width: "84px", number: true, render: (row) => int(row.feedback) },
  started: { label: "Started", width: "144px", number: true, sort: true, render: (row) => when(row.at / 1e6) },
};
const SHOWN = ["op", "input", "output", "model", "seconds", "tokens", "cost", "user", "started"];

/** The names of the columns in the address; what is no name of COLUMNS is a path into the data. */
export function chosenColumns() {
  const named = (query("cols") ?? "").split(",").filter(Boolean).map(decodeURIComponent);
  return named.length ? named : SHOWN;
}

/** Put columns into the address. */
export function showColumns(names) {
  const same = names.join() === SHOWN.join();
  setQuery({ cols: same ? null : names.map((name) => name.replaceAll("%", "%25").replaceAll(",", "%2C")).join(",") });
}

const text = (value, kind = "dim") => h("span", { class: kind, dir: "auto", title: value }, value ?? "");

function threadCell(row) {
  return row.thread && h("a", { href: link(path`/threads/${row.thread}`), title: row.thread }, row.thread);
}

function nameCell(row) {
  const name = row.name ?? row.op;
  const href = link(path`/traces/${row.trace}`, { call: row.child ? row.id : null });
  const status = !row.status || row.status === "descendant_error" ? "success" : row.status;
  return h("span", { style: { display: "flex", gap: "8px", "align-items": "center" } }, dot(status),
    h("a.one-line", { href, title: name === row.op ? name : `${name} (${row.op})`, dir: "auto" }, name || "unnamed"),
      kindChip(row.kind ?? "fn"));
}

/** Between 0.1 ms and 100 s on a logarithmic scale: on a linear one a single slow call would flatten all others. */
function latencyCell(row) {
  if (row.took == null) return row.status === "running" ? h("span.dim", "running") : null;
  const share = Math.max(0.03, Math.min(1, (Math.log10(Math.max(row.took / 1e6, 1e-4)) + 4) / 6));
  const bar = h("i", { style: { left: "auto", right: 0, width: `${share * 100}%`, background: "var(--series-5)",
    opacity: ".7" } });
  return h("span.sharebar", { style: { padding: 0, "min-width": "60px", "line-height": "26px" } }, bar,
    h("span", duration(row.took / 1e6)));
}

/** What the list asks for: what the address selects, the order, the place, and the paths of columns. */
function listState(chosen) {
  const sort = { oldest: "started_at", slowest: "-latency" }[query("sort")] ?? "-started_at";
  return { chosen, sort, limit: PAGE, after: query("after"), before: query("before"), columns: chosenColumns()
    .filter((name) => !COLUMNS[name]) };
}

async function readList({ chosen, ...rest }, abort) {
  const found = await postProject("/_ui/api/calls", { ...(await selectionOf(chosen)), ...rest }, abort);
  const fields = Object.entries(found.rows);
  const rows = (found.rows.id ?? []).map((_, index) => Object.fromEntries(fields.map(([name, values]) => [name, values[index]])));
  return { ...found, rows };
}

const readSummary = async (chosen, abort) => postProject("/_ui/api/calls/summary", await selectionOf(chosen), abort);

/** Where a row stands in the order, as `after` and `before` name it. */
const placeOf = (row) => `${query("sort") === "slowest" ? Math.floor(row.took / 1000) : row.at}_${row.id}`;

/** The page. */
export default function Calls() {
  title(`Calls of ${projectId()}`);
  const range = timeRange();
  const chosen = computed(() => JSON.stringify(filterState(range.value)));
  const opensView = () => query("view") && !STATE.some((name) => query(name));
  const list = resource(() => (opensView() ? null : listState(JSON.parse(chosen.value))), readList);
  const summary = resource(() => (opensView() ? null : JSON.parse(chosen.value)), readSummary);
  const rows = computed(() => list.data.value?.rows ?? []);
  const selected = signal(/** @type {Set<string>} */ (new Set()));
  const context = { rows, selected, state: () => JSON.parse(chosen.value), facets: remembered(),
    reload: () => { list.reload(); summary.reload(); } };
  const nothing = computed(() => summary.data.value?.any === false);
  effect(() => {
    if (opensView()) import("./calls_views.js").then((module) => module.openView(query("view")));
  });
  effect(() => {
    if (rows.value.length) sessionStorage.setItem("heddle.list", JSON.stringify(rows.value.map((row) => row.id)));
  });
  effect(() => {
    const peeked = query("peek");
    if (peeked) import("./calls_peek.js").then((module) => module.openPeek(peeked, context));
  });
  onCleanup(() => document.querySelector("dialog.drawer")?.dispatchEvent(new Event("replace")));
  return page(
    { title: "Calls", extra: [count(summary), fresh(context)],
      actions: () => (nothing.value ? null : untrack(() => actions(context))) },
    () => (nothing.value ? later(() => import("./calls_empty.js"), (module) => module.teach())
      : untrack(() => [tools(context), histogram(summary), content(list, context), footer(list, summary), bulk(context)])),
    { fixed: true },
  );
}

/** What a module that is loaded now will show. */
function later(load, make) {
  const shown = signal(/** @type {any} */ (null));
  load().then((module) => { shown.value = make(module); });
  return () => shown.value;
}

/** The pill of new calls; nobody needs it at once. */
function fresh(context) {
  const shown = signal(/** @type {any} */ (null));
  const timer = setTimeout(() => import("./calls_fresh.js").then((module) => { shown.value = module.newCalls(context); }),
    FRESH_AFTER);
  onCleanup(() => clearTimeout(timer));
  return () => shown.value;
}

/** The facets of the project, asked for once they are needed. */
function remembered() {
  let asked = null;
  return () => (asked ??= postProject("/_ui/api/calls/facets"));
}

function count(summary) {
  return () => {
    if (summary.error.value) return h("span.count", { title: summary.error.value.message }, "not counted");
    const found = summary.data.value;
    return found && h("span.count", { role: "status", "aria-label": `${int(found.count)} calls`,
      title: found.errors ? `${int(found.errors)} failed` : "None failed" }, int(found.count));
  };
}

function actions(context) {
  const opens = (name, iconName, module, run) => button(name, async () => run(await module(), context), { iconName });
  return [
    opens("Views", "save", () => import("./calls_views.js"), (module) => module.chooseView(context)),
    opens("Columns", "columns", () => import("./calls_columns.js"), (module) => module.chooseColumns(context)),
    opens("Export", "download", () => import("./calls_export.js"), (module) => module.exportCalls(context)),
  ];
}

function tools(context) {
  let typing = 0;
  const search = (value) => {
    clearTimeout(typing);
    typing = setTimeout(() => setQuery({ s: value.trim(), ...NO_PLACE }), 300);
  };
  onCleanup(() => clearTimeout(typing));
  const isStatus = ([field, operator, value]) => field === "status" && operator === "is" && ["success", "error"].includes(value);
  const status = () => readConditions().find(isStatus)?.[2] ?? "";
  const setStatus = (value) => {
    const others = readConditions().filter(([field]) => field !== "status");
    writeConditions(value ? [...others, ["status", "is", value]] : others);
  };
  const setRoots = (value) => writeConditions(readConditions(), { roots: value === "1" ? null : value });
  return h("div.bar-of-tools", searchBox("Search inputs and outputs", query("s") ?? "", search),
    segments("Status", [["", "Any"], ["success", "OK"], ["error", "Error"]], status, setStatus),
    segments("Which calls", [["1", "Traces"], ["0", "All calls"]], () => (rootsOnly() ? "1" : "0"), setRoots),
    timeRangePicker(), filterChips(context.facets, isStatus));
}

function histogram(summary) {
  const data = computed(() => summary.data.value?.bars ?? null);
  return strip({ data: () => data.value, onrange: (from, to) => setQuery(rangeQuery(from, to), false) });
}

function content(list, context) {
  const columns = computed(() => {
    const names = chosenColumns();
    const paths = names.filter((name) => !COLUMNS[name]);
    // One column takes the space that is left.
    const wide = names.some((name) => COLUMNS[name]?.width === "auto") ? "" : paths[0] ?? "op";
    const made = (name) => COLUMNS[name] ?? { label: name, width: "160px", title: name,
      render: (row) => valueCell(row.values?.[paths.indexOf(name)]) };
    return names.map((name) => ({ key: name, ...made(name), ...(name === wide ? { width: "auto" } : {}) }));
  });
  const shown = table({
    columns: () => columns.value, rows: () => context.rows.value, key: (row) => row.id, label: "Calls", href: () => "",
    selection: context.selected, busy: () => list.busy.value,
      onpeek: (row) => setQuery({ peek: query("peek") === row.id ? null : row.id }),
    order: () => ({ key: query("sort") === "slowest" ? "seconds" : "started", descending: query("sort") !== "oldest" }),
    onsort: (key) => setQuery({ sort: nextOrder(key), ...NO_PLACE }, false),
  });
  shown.style.setProperty("table-layout", "fixed");
  effect(() => {
    const wide = columns.value.reduce((sum, column) => sum + (Number.parseInt(column.width) || 150), 44);
    shown.style.setProperty("min-width", `${wide}px`);
  });
  return h("div.tablebox", { tabindex: 0, role: "region", "aria-label": "List of calls" }, () => {
    if (list.error.value) return failure(list.error.value, list.reload);
    if (list.data.value === null) return skeleton(12);
    return context.rows.value.length ? shown : later(() => import("./calls_empty.js"), (module) => module.noMatch(STATE));
  });
}

/** The order after a click on a heading: the newest first, the oldest, or the slowest, where an index serves each. */
function nextOrder(key) {
  const order = key === "seconds" ? "slowest" : "oldest";
  if (key === "seconds") return query("sort") === order ? null : order;
  return query("sort") ? null : order;
}

function valueCell(value) {
  if (value == null) return null;
  return h("span", { class: typeof value === "number" ? "number" : "dim", dir: "auto", title: String(value) }, String(value));
}

function footer(list, summary) {
  const move = (direction, index) => () => {
    const found = list.data.value;
    if (!found?.rows.length || !found[direction]) return null;
    const key = placeOf(found.rows.at(index));
    return () => setQuery({ ...NO_PLACE, [direction === "older" ? "after" : "before"]: key }, false);
  };
  const told = () => {
    const [shown, all] = [list.data.value?.rows.length ?? 0, summary.data.value?.count];
    if (all === 1) return "1 call";
    return shown ? `${int(shown)} of ${all == null ? "…" : int(Math.max(all, shown))} calls` : "";
  };
  const labels = { slowest: ["Slower", "Faster"], oldest: ["Older", "Newer"] };
  return () => pager(told, move("newer", 0), move("older", -1), labels[query("sort")]);
}

function bulk(context) {
  const module = signal(/** @type {any} */ (null));
  effect(() => {
    if (context.selected.value.size) import("./calls_actions.js").then((found) => { module.value = found; });
  });
  return () => (module.value && context.selected.value.size ? module.value.bulkBar(context) : null);
}
