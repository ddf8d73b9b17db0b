// Failed calls in groups: the same op, type, message (but for what varies) and innermost frame.
import { computed, effect, h, untrack } from "../lib/dom.js";
import { postProject, resource } from "../lib/data.js";
import { spark } from "../lib/chart.js";
import { menu } from "../lib/dialog.js";
import { actionsOf, callsOf, headline } from "../lib/errorgroups.js";
import { ago, int, plural } from "../lib/format.js";
import { empty } from "../lib/panels.js";
import { button, failure, page, segments, skeleton, timeNode, title } from "../lib/parts.js";
import { link, projectId, query, setBeside, setQuery } from "../lib/router.js";
import { table } from "../lib/table.js";
import { sameRange, timeRange, timeRangePicker } from "../lib/timerange.js";

const RANGE = "7d";
const MOST = 100;
const ORDERS = [["calls", "Most calls"], ["last", "Last seen"], ["first", "Newest"]];

/** The page of errors; `show` in the address is the group that is looked at. */
export default function Errors() {
  title(`Errors of ${projectId()}`);
  const range = timeRange(RANGE);
  const order = () => (ORDERS.some(([name]) => name === query("sort")) ? query("sort") : "calls");
  const state = resource(() => ({ from: range.value.from, to: range.value.to, sort: order(), limit: MOST }),
    (asked, abort) => postProject("/_ui/api/errors", asked, abort));
  const groups = computed(() => state.data.value?.groups ?? []);
  const context = { range, state, groups };
  const shown = computed(() => groups.value.find((group) => nameOf(group) === query("show")));
  effect(() => {
    const name = shown.value && nameOf(shown.value);
    if (name) import("./errors_group.js").then((module) => module.openGroup(name, context));
  });
  const isMissing = () => Boolean(query("show") && state.data.value && !state.busy.value && !shown.value);
  const count = () => state.data.value && h("span.count", { role: "status" },
    `${int(groups.value.length)}${state.data.value.more ? "+" : ""}`);
  return page({ title: "Errors", extra: count, actions: timeRangePicker(RANGE) }, [
    h("div.bar-of-tools", segments("Order", ORDERS, order, (name) => setQuery({ sort: name === "calls" ? null : name })),
      h("span.grow"), h("a", { href: () => link("/traces", { status: "error", ...sameRange(range.value) }) }, "All failed calls")),
    () => (isMissing() ? notFound(groups.value.length > 0) : null),
    () => {
      if (state.error.value) return failure(state.error.value, state.reload);
      if (!state.data.value) return skeleton(8);
      return groups.value.length ? untrack(() => list(context)) : nothing();
    },
    () => (state.data.value?.more ? h("p.dim", `The first ${MOST} groups. Choose a shorter time range to see others.`) : null),
  ], { fixed: true });
}

const nameOf = (group) => `${group.group} ${group.op}`;

function list(context) {
  const { groups, range } = context;
  const open = (group) => setBeside("show", { show: nameOf(group) });
  const shown = table({
    label: "Errors", resizable: true, rows: () => groups.value, key: nameOf, onopen: open, columns: () => [
      { key: "error", label: "Error", width: "auto", render: errorCell },
      { key: "op", label: "Operation", width: "180px", render: ({ op }) => h("span.one-line", { title: op, dir: "auto" }, op) },
      { key: "trend", label: "Trend", width: "120px", title: "Calls over time", render: trendCell },
      { key: "calls", label: "Calls", width: "84px", number: true, render: (group) => h("a", { href: callsOf(group, range.peek()),
        title: "Show these calls" }, int(group.calls)) },
      { key: "traces", label: "Traces", width: "74px", number: true, render: ({ traces }) => int(traces) },
      { key: "users", label: "Users", width: "66px", number: true, render: ({ users }) => int(users) },
      { key: "first", label: "First seen", width: "104px", number: true, render: ({ first }) => instant(first) },
      { key: "last", label: "Last seen", width: "104px", number: true, render: ({ last }) => instant(last) },
      { key: "actions", label: h("span.hidden-text", "Actions"), width: "64px", number: true, render: (group) =>
        menu(null, () => actionsOf(runner(group, context)), { label: `Actions for ${group.type || group.message}`, kind: "quiet" }) },
    ],
  });
  shown.style.setProperty("table-layout", "fixed");
  shown.style.setProperty("min-width", "1000px");
  return h("div.tablebox", { tabindex: 0, role: "region", "aria-label": "List of errors" }, shown);
}

function errorCell(group) {
  const text = [group.type, group.message].filter(Boolean).join(": ");
  return h("span.errorcell",
    h("button.one-line", { type: "button", title: text, dir: "auto",
      onclick: () => setBeside("show", { show: nameOf(group) }) }, headline(group)),
    group.frame && h("small.faint.one-line", { title: group.frame }, `in ${group.frame.replace(/^:|:$/, "")}`));
}

function trendCell({ trend, calls }) {
  return spark(trend, { color: "var(--error)", label: `${plural(calls, "call")}, ${int(Math.max(...trend))} at most per interval` });
}

const instant = (seconds) => timeNode(seconds, ago);

/** What does something with the calls of a group, loaded when it is wanted. */
const runner = (group, { range, state }) => async (action) =>
  (await import("./errors_group.js")).run(action, group, range.peek(), state.reload);

/** The address names a group that is not in the list: an old link, or another time range. */
function notFound(isListed) {
  return h("div.bar-of-tools", { role: "alert" }, h("span", "The error of this link is not in the list below."),
    isListed && showAll(), button("Close", () => setQuery({ show: null }), { kind: "quiet" }));
}

const showAll = () => button("Show all time", () => setQuery({ t: "all", t0: null, t1: null }));

function nothing() {
  return empty({ title: "No failed calls in this time range", text: "Failed calls appear here, grouped by op, exception type, message "
    + "(without numbers, ids and quoted values) and innermost frame.", action: showAll() });
}
