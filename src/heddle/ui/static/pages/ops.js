// The ops that programs traced: their versions, how often they are called, how long they take and how often they fail.
import { computed, h } from "../lib/dom.js";
import { get, postProject, resource } from "../lib/data.js";
import { ago, compact, duration, int, percent, plural } from "../lib/format.js";
import { paged } from "../lib/pages.js";
import { empty } from "../lib/panels.js";
import { kindChip, loaded, page, searchBox, segments, timeNode, title } from "../lib/parts.js";
import { link, path, projectId, query, setQuery } from "../lib/router.js";
import { serverAddress } from "../lib/setup.js";
import { table } from "../lib/table.js";

const MOST = 10_000;
const WHICH = [
  ["", "All"],
  ["code", "With code"],
  ["names", "Names only"],
];
const which = () => (WHICH.some(([name]) => name === query("show")) ? query("show") : "");

/** The list of ops. */
export default function Ops() {
  title("Ops");
  const state = resource(() => projectId(), load);
  const rows = computed(() => chosen(state.data.value ?? []));
  const { shown, controls } = paged(() => rows.value);
  const hasRows = computed(() => rows.value.length > 0);
  return page(
    { title: "Ops", extra: () => (state.data.value ? h("span.count", int(rows.value.length)) : null) },
    [
      h(
        "div.bar-of-tools",
        searchBox(
          "Search ops",
          () => query("q") ?? "",
          (text) => setQuery({ q: text, from: null }),
        ),
        segments(
          "Which",
          WHICH,
          which,
          (value) => setQuery({ show: value, from: null }),
        ),
      ),
      h(
        "div.tablebox",
        { tabindex: 0, role: "region", "aria-label": "Ops" },
        loaded(state, (all) => () => (hasRows.value ? list(rows, shown, state) : nothing(all))),
      ),
      controls,
    ],
    { fixed: true },
  );
}

async function load(project, abort) {
  const [{ objs }, { ops }] = await Promise.all([
    postProject(
      "/objs/query",
      { filter: { is_op: true }, metadata_only: true, limit: MOST, sort_by: [{ field: "created_at", direction: "desc" }] },
      abort,
    ),
    get(`/_ui/api/ops?project=${encodeURIComponent(project)}`, abort),
  ]);
  const byName = new Map(ops.map((entry) => [entry.name, { ...entry, count: 0, latest: null }]));
  for (const version of objs) {
    const name = version.object_id;
    if (!byName.has(name)) byName.set(name, { name, calls: 0, last: null, p50: null, error_share: null, count: 0, latest: null });
    const entry = byName.get(name);
    entry.count++;
    if (version.is_latest || !entry.latest) entry.latest = version;
  }
  return [...byName.values()];
}

const ORDERS = {
  name: (op) => op.name.toLowerCase(),
  count: (op) => op.count,
  calls: (op) => op.calls,
  p50: (op) => op.p50 ?? -1,
  errors: (op) => op.error_share ?? -1,
  last: (op) => op.last ?? op.latest?.created_at ?? "",
};

function order() {
  const [key, direction] = (query("sort") ?? "last.desc").split(".");
  return { key: key in ORDERS ? key : "last", descending: direction === "desc" };
}

function sortBy(key) {
  const now = order();
  setQuery({ sort: `${key}.${now.key === key && now.descending ? "asc" : "desc"}`, from: null });
}

function chosen(all) {
  const words = (query("q") ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const show = which();
  const { key, descending } = order();
  const of = ORDERS[key];
  const sign = descending ? -1 : 1;
  return all
    .filter((op) => words.every((word) => op.name.toLowerCase().includes(word)) && (!show || (show === "code") === op.count > 0))
    .sort((one, other) => (of(one) < of(other) ? -sign : of(one) > of(other) ? sign : 0));
}

const hrefOf = (op) => (op.count ? link(path`/ops/${op.name}/versions/latest`) : link("/traces", { op: op.name }));

function list(rows, shown, state) {
  const slowest = computed(() => Math.max(...rows.value.map((op) => op.p50 ?? 0)));
  const columns = [
    {
      key: "name",
      label: "Op",
      sort: true,
      width: "40%",
      render: (op) => h("a", { href: hrefOf(op), title: op.name, dir: "auto" }, op.name),
    },
    { key: "kind", label: "Kind", render: (op) => kindChip(op.kind) },
    {
      key: "count",
      label: "Versions",
      sort: true,
      number: true,
      render: (op) => (op.count ? int(op.count) : h("span.faint", { title: "Called by name; no code was published" }, "–")),
    },
    {
      key: "calls",
      label: "Calls",
      sort: true,
      number: true,
      render: (op) =>
        op.calls
          ? h("a.plainlink", { href: link("/traces", { op: op.name }), title: plural(op.calls, "call") }, compact(op.calls))
          : h("span.faint", "0"),
    },
    {
      key: "p50",
      label: "p50 latency",
      sort: true,
      number: true,
      title: "Median of the newest 200 calls of each version",
      render: (op) => latency(op, slowest.value),
    },
    {
      key: "errors",
      label: "Errors",
      sort: true,
      number: true,
      title: "Share of the calls that failed",
      render: (op) => errors(op),
    },
    {
      key: "last",
      label: "Last call",
      sort: true,
      number: true,
      render: (op) => (op.last ? timeNode(op.last, ago) : h("span.faint", "never")),
    },
  ];
  return table({
      resizable: true,
    columns: () => columns,
    rows: shown,
    key: (op) => op.name,
    label: "Ops",
    href: hrefOf,
    order,
    onsort: sortBy,
    busy: () => state.busy.value,
  });
}

function errors(op) {
  if (op.error_share === null) return "";
  if (!op.errors) return h("span.dim", percent(0));
  const href = link("/traces", { op: op.name, status: "error" });
  return h("a.plainlink.worse", { href, title: `${int(op.errors)} of ${plural(op.calls, "call")} failed` }, percent(op.error_share));
}

/** The bar is on a log scale from 10 µs: one slow op would flatten all others. */
function latency(op, slowest) {
  if (op.p50 === null) return "";
  const share = Math.log10(Math.max(op.p50, 1e-5) / 1e-5) / Math.log10(Math.max(slowest, 1e-4) / 1e-5);
  return h("span.latency", h("i", { style: { width: `${Math.round(share * 48)}px` } }), duration(op.p50));
}

function nothing(all) {
  if (all.length)
    return empty({
      title: "Nothing found",
      text: "No op matches this search.",
      action: h("button.button", { type: "button", onclick: () => setQuery({ q: null, show: null }) }, "Show all"),
    });
  return empty({
    title: "No ops yet",
    text: "A function with @weave.op is an op: each change of its code is a version here, and every call of it is traced.",
    code: [
      "import weave",
      `# WANDB_BASE_URL=${serverAddress()}`,
      `weave.init("${projectId()}")`,
      "",
      "@weave.op",
      "def answer(question: str) -> str:",
      "    return question.upper()",
      "",
      'answer("hello")',
    ].join("\n"),
    action: h("a.button", { href: link("/traces") }, "Calls"),
  });
}
