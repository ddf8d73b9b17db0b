// The calls of a project: over time, filtered, page by page.
import { computed, effect, h, onCleanup, scope, signal, untrack } from "../lib/dom.js";
import { postProject, resource } from "../lib/data.js";
import { filterChips, filterState, readConditions, rootsOnly, selectionOf, sourceOfRoots, writeConditions } from "../lib/filters.js";
import { sourceOps } from "../lib/sources.js";
import { compact, duration, int, money, plural } from "../lib/format.js";
import { button, dot, failure, kindChip, later, madeLine, page, searchBox, segments, skeleton, timeNode, title } from "../lib/parts.js";
import { link, path, query, setBeside, setQuery } from "../lib/router.js";
import { strip } from "../lib/strip.js";
import { pager, table } from "../lib/table.js";
import { rangeQuery, timeRange, timeRangePicker } from "../lib/timerange.js";

const FRESH_AFTER = 8_000;
const PAGE = 40;
const FEW = 2000;
const STATE = ["f", "search", "roots", "src", "cols", "sort", "t", "t0", "t1"];
const SOURCES = [["user", "User traffic"], ["evaluation", "Evaluations"], ["training", "Training"], ["all", "All traces"], ["0", "All calls"]];
const NO_PLACE = { after: null, before: null, peek: null };

/** The columns that are always there, by name: heading, width, cell, and how the heading sorts. */
const COLUMNS = {
  op: { label: "Operation", width: "210px", render: nameCell },
  input: { label: "Input", width: "auto", render: (row) => madeLine(row.input, row.input_media, "dim") },
  output: { label: "Output", width: "auto", render: (row) => (row.error ? text(row.error, "worse")
    : madeLine(row.output, row.output_media, "dim")) },
  model: { label: "Model", width: "112px", render: (row) => row.model && h("code", { title: row.model }, row.model) },
  seconds: {
    label: "Latency", width: "88px", number: true, sort: true, render: latencyCell,
    title: "Longest bar: 100 s; shortest: 0.1 ms",
  },
  tokens: { label: "Tokens", width: "70px", number: true, render: (row) => compact(row.tokens) },
  cost: { label: "Cost", width: "88px", number: true, render: (row) => money(row.cost) },
  user: { label: "User", width: "66px", render: (row) => h("span", { title: row.user }, row.user) },
  thread: { label: "Thread", width: "120px", render: threadCell },
  feedback: { label: "Feedback", width: "84px", number: true, render: (row) => int(row.feedback) },
  started: { label: "Started", width: "150px", number: true, sort: true, render: (row) => timeNode(row.at / 1e6) },
};
const MATCH = { label: "Match", width: "auto", render: matchCell };
const SHOWN = ["op", "input", "output", "model", "seconds", "tokens", "cost", "user", "started"];

/** The names of the columns in the address; what is no name of COLUMNS is a path into the data. */
function chosenColumns(cols = query("cols")) {
  const named = (cols ?? "").split(",").filter(Boolean).map(decodeURIComponent);
  return named.length ? named : SHOWN;
}

/** Put columns into the address. */
function showColumns(names) {
  const same = names.join() === SHOWN.join();
  setQuery({ cols: same ? null : names.map((name) => name.replaceAll("%", "%25").replaceAll(",", "%2C")).join(",") });
}

const text = (value, kind = "dim") => h("span", { class: kind, dir: "auto", title: value }, value ?? "");

/** Where the row, or a call inside its trace, holds what was searched for. */
function matchCell(row) {
  if (!row.hit?.parts.length) return null;
  const { field, parts, call } = row.hit;
  const text = parts.map((part, index) => (index % 2 ? h("mark", part) : part));
  const place = h("small.faint", { title: field }, field.split(".")[0], call ? " inside" : "", " ");
  const whole = { title: `${field}: ${parts.join("")}`, dir: "auto" };
  return h("span", whole, place,
    call ? h("a", { href: link(path`/traces/${row.trace}`, { call }) }, text) : text);
}

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
  return h("span.sharebar", h("i", { style: { width: `${share * 100}%`, background: "var(--series-5)" } }),
    h("span", duration(row.took / 1e6)));
}

/** What the list asks for: what the address selects, the order, the place, and the paths of columns. */
function listState(chosen) {
  const order = query("sort") === "relevance" && !query("search") ? "" : query("sort");
  const sort = { oldest: "started_at", slowest: "-latency", relevance: "relevance" }[order] ?? "-started_at";
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
const placeOf = (row, direction) => {
  const rank = row.rank + (direction === "older" ? 1 : 0);
  return `${row.rank == null ? (query("sort") === "slowest" ? Math.floor(row.took / 1000) : row.at) : rank}_${row.id}`;
};

/** The page. */
export default function Calls() {
  title("Calls");
  const range = timeRange();
  const chosen = computed(() => JSON.stringify(filterState(range.value)));
  const opensView = () => query("view") && query("view") !== "*" && !STATE.some((name) => query(name));
  const list = resource(() => (opensView() ? null : listState(JSON.parse(chosen.value))), readList);
  const summary = resource(() => (opensView() ? null : JSON.parse(chosen.value)), readSummary);
  const rows = computed(() => list.data.value?.rows ?? []);
  effect(() => {
    if (summary.data.value) sourceOps.value = { source: JSON.parse(chosen.peek()).source, ops: summary.data.value.source_ops };
  });
  const selected = signal(/** @type {Set<string>} */ (new Set()));
  // Either some calls by their ids, or all that match, on this page and on others.
  const all = signal(false);
  effect(() => {
    chosen.value;
    selected.value;
    all.value = false;
  });
  const context = { rows, selected, all, count: () => summary.data.value?.count ?? 0, state: () => JSON.parse(chosen.value), facets: remembered(() => JSON.parse(chosen.value)),
    columns: { known: COLUMNS, chosen: chosenColumns, show: showColumns },
    reload: () => { list.reload(); summary.reload(); } };
  const nothing = computed(() => summary.data.value?.any === false);
  effect(() => {
    if (opensView()) import("./calls_views.js").then((module) => module.openView(query("view"), context));
  });
  effect(() => {
    if (rows.value.length) sessionStorage.setItem("heddle.list", JSON.stringify(rows.value.map((row) => row.id)));
  });
  effect(() => {
    const peeked = query("peek");
    if (peeked) import("./calls_peek.js").then((module) => module.openPeek(peeked, context));
  });
  return page(
    { title: "Calls", extra: [count(summary), fresh(context)],
      actions: () => (nothing.value ? null : untrack(() => actions(context))) },
    () => (nothing.value ? later(() => import("./calls_empty.js"), (module) => module.teach(context.reload))
      : untrack(() => [tabs(context), tools(context), histogram(summary), content(list, context), footer(list, summary), bulk(context)])),
    { fixed: true },
  );
}

/** The saved views as tabs; loaded where there is any. */
function tabs(context) {
  const shown = signal(/** @type {any} */ (null));
  let off = /** @type {(() => void)|null} */ (() => {});
  onCleanup(() => {
    off?.();
    off = null;
  });
  const load = async () => {
    const { objs } = await postProject("/objs/query",
      { filter: { base_object_classes: ["SavedView"], latest_only: true }, limit: 1, metadata_only: true });
    const module = objs.length ? await import("./calls_tabs.js") : null;
    if (module && off) [shown.value, off] = scope(() => module.viewTabs(context, STATE), true);
  };
  context.showTabs = () => (shown.peek() ? context.tabs.reload() : load());
  load().catch(() => {});
  return () => shown.value;
}

/** The button with the number of new calls; loaded later, as it is not needed immediately. */
function fresh(context) {
  const shown = signal(/** @type {any} */ (null));
  const timer = setTimeout(() => import("./calls_fresh.js").then((module) => { shown.value = module.newCalls(context); }),
    FRESH_AFTER);
  onCleanup(() => clearTimeout(timer));
  return () => shown.value;
}

/** What the selected calls hold (with other conditions than those of the address), asked for once it is needed. */
function remembered(state) {
  let asked = { of: "", found: null };
  return (conditions = state().conditions) => {
    const wanted = { ...state(), conditions };
    const of = JSON.stringify(wanted);
    if (asked.of !== of) asked = { of, found: selectionOf(wanted).then((chosen) => postProject("/_ui/api/calls/facets", chosen)) };
    return asked.found;
  };
}

function count(summary) {
  return () => {
    if (summary.error.value) return h("span.count", { title: summary.error.value.message }, "not counted");
    const found = summary.data.value;
    return found && h("span.count", { role: "status", "aria-label": plural(found.count, "call"),
      title: found.errors ? `${int(found.errors)} failed` : "None failed" }, int(found.count), spent(found.spent));
  };
}

/** What the calls whose tokens count sum up to. */
const spent = (sums) => sums && h("span.spent", ` · ${plural(sums.prompt, "token")} in, ${int(sums.completion)} out`,
  sums.cost === null ? "" : ` · ${money(sums.cost)}`);

function actions(context) {
  const opens = (name, iconName, module, run) => button(name, async () => run(await module(), context), { iconName });
  return [
    opens("Views", "save", () => import("./calls_views.js"), (module) => module.chooseView(context)),
    opens("Columns", "columns", () => import("./calls_columns.js"), (module) => module.chooseColumns(context)),
    opens("Export", "download", () => import("./calls_export.js"), (module) => module.exportCalls(context)),
  ];
}

function tools(context) {
  const search = (value) => setQuery({ search: value.trim(), ...(query("sort") === "relevance" ? { sort: null } : {}), ...NO_PLACE });
  const isStatus = ([field, operator, value]) => field === "status" && operator === "is" && ["success", "error"].includes(value);
  const status = () => readConditions().find(isStatus)?.[2] ?? "";
  const setStatus = (value) => {
    const others = readConditions().filter(([field]) => field !== "status");
    writeConditions(value ? [...others, ["status", "is", value]] : others);
  };
  const setRoots = (value) => writeConditions(readConditions(),
    value === "user" ? { roots: null, src: null } : { roots: value === "0" ? "0" : "1", src: value === "0" ? null : value });
  return h("div.bar-of-tools", searchBox("Search everything", () => query("search") ?? "", search,
      { pause: 300, title: "Words, \"a phrase\" or a prefix*, in inputs, outputs, errors, attributes, feedback and names" }),
    () => (query("search") ? segments("Order of results", [["", "Newest"], ["relevance", "Relevance"]],
      () => (query("sort") === "relevance" ? "relevance" : ""), (sort) => setQuery({ sort, ...NO_PLACE }, false)) : null),
    segments("Status", [["", "Any"], ["success", "OK"], ["error", "Error"]], status, setStatus),
    segments("Which calls", SOURCES, () => (rootsOnly() ? sourceOfRoots() ?? "all" : "0"), setRoots),
    timeRangePicker(), filterChips(context.facets, isStatus));
}

function histogram(summary) {
  const data = computed(() => summary.data.value?.bars ?? null);
  return strip({ data: () => data.value, onrange: (from, to) => setQuery(rangeQuery(from, to), false) });
}

function content(list, context) {
  const isSearch = computed(() => Boolean(query("search")));
  const chosen = computed(() => query("cols"));
  const columns = computed(() => {
    const listed = chosenColumns(chosen.value);
    // What was found takes the place of the input.
    const names = isSearch.value ? ["op", "match", ...listed.filter((name) => name !== "op" && name !== "input")] : listed;
    const paths = names.filter((name) => !COLUMNS[name] && name !== "match");
    // One column takes the space that is left.
    const wide = names.some((name) => COLUMNS[name]?.width === "auto") ? "" : paths[0] ?? "op";
    const made = (name) => (name === "match" ? MATCH : COLUMNS[name]) ?? { label: name, width: "220px", title: name,
      render: (row) => valueCell(row.values?.[paths.indexOf(name)]) };
    return names.map((name) => ({ key: name, ...made(name), ...(name === wide ? { width: "auto" } : {}) }));
  });
  const shown = table({
    columns: () => columns.value, resizable: true, rows: () => context.rows.value, key: (row) => row.id, label: "Calls", href: () => "",
    selection: context.selected, busy: () => list.busy.value,
      onpeek: (row) => setBeside("peek", { peek: query("peek") === row.id ? null : row.id }),
    order: () => ({ key: query("sort") === "slowest" ? "seconds" : "started", descending: query("sort") !== "oldest" }),
    onsort: (key) => setQuery({ sort: nextOrder(key), ...NO_PLACE }, false),
  });
  shown.style.setProperty("table-layout", "fixed");
  effect(() => {
    const wide = columns.value.reduce((sum, column) => sum + (Number.parseInt(column.width) || 200), 44);
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
    const key = placeOf(found.rows.at(index), direction);
    return () => setQuery({ ...NO_PLACE, [direction === "older" ? "after" : "before"]: key }, false);
  };
  const told = () => {
    const [shown, all] = [list.data.value?.rows.length ?? 0, summary.data.value?.count];
    if (all === 1) return "1 call";
    const unindexed = list.data.value?.unindexed ?? 0;
    const left = unindexed > FEW ? `; ${int(unindexed)} older calls are still being indexed` : "";
    return shown || left ? `${int(shown)} of ${all == null ? "…" : int(Math.max(all, shown))} calls${left}` : "";
  };
  return pager(told, move("newer", 0), move("older", -1));
}

function bulk(context) {
  const module = signal(/** @type {any} */ (null));
  effect(() => {
    if (context.selected.value.size) import("./calls_actions.js").then((found) => { module.value = found; });
  });
  return () => (module.value && context.selected.value.size ? module.value.bulkBar(context) : null);
}
