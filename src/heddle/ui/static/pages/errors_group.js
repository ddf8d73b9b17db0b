// One group of errors: examples with their traceback, and what is made of its calls.
import { lines } from "../lib/data.js";
import { dialog, drawer } from "../lib/dialog.js";
import { computed, effect, h, signal } from "../lib/dom.js";
import { actionsOf, callsOf, headline } from "../lib/errorgroups.js";
import { ago, int, when } from "../lib/format.js";
import { publicSelection, selectionOf } from "../lib/filterquery.js";
import { codeBlock, facts, field } from "../lib/panels.js";
import { button, failure, icon, skeleton, timeNode } from "../lib/parts.js";
import { problemView } from "../lib/problem.js";
import { link, path, projectId, query, setBeside } from "../lib/router.js";
import { keyText, serverAddress } from "../lib/setup.js";

const EXAMPLES = 5;
let open = null;

/** The filter and the query that choose exactly the calls of a group. */
function selection(group, { from = null, to = null } = {}) {
  const conditions = [["op", "is", group.op], ["error", "is", group.group]];
  return selectionOf({ conditions, text: "", roots: false, from, to });
}

const publicly = (group, range) => {
  const { filter, query: chosen } = publicSelection({ from: null, to: null, ...selection(group, range) });
  return { filter: { op_names: filter.op_names }, query: chosen };
};

/** Show the group of the address in a drawer that follows the address until it is closed. */
export function openGroup(name, context) {
  if (open) return;
  const shown = computed(() => context.groups.value.find((group) => `${group.group} ${group.op}` === (query("show") ?? name)));
  open = drawer("Error", () => {
    effect(() => {
      if (!query("show")) queueMicrotask(() => open?.());
    });
    return () => (shown.value ? content(shown.value, context) : null);
  }, () => {
    open = null;
    if (query("show")) setBeside("show", { show: null });
  });
}

function content(group, context) {
  const range = context.range.peek();
  const found = signal(/** @type {any} */ (null));
  const problem = signal(/** @type {any} */ (null));
  const load = () => lines("/calls/stream_query", { ...publicly(group, range), limit: EXAMPLES,
    sort_by: [{ field: "started_at", direction: "desc" }],
    columns: ["id", "trace_id", "op_name", "started_at", "exception", "wb_user_id"] }).then(
    (calls) => { found.value = calls; problem.value = null; }, (error) => { problem.value = error; });
  load();
  return [
    h("p", { dir: "auto", style: { "overflow-wrap": "anywhere" } }, headline(group)),
    facts([["Operation", group.op], ["Raised in", group.frame], ["Calls", h("a", { href: callsOf(group, range) }, int(group.calls))],
      ["Traces", int(group.traces)], ["Users", int(group.users)],
      ["First seen", timeNode(group.first)], ["Last seen", timeNode(group.last)]]),
    h("div.actions", { style: { "flex-wrap": "wrap", "justify-content": "start" } },
      h("a.button", { href: callsOf(group, range) }, icon("calls"), "Show calls"),
      actionsOf(async (action) => run(action, group, context.range.peek(), context.state.reload)).map(([text, action, options]) => button(text.replace("…", ""), action, options))),
    h("h3", "Newest examples"),
    () => {
      if (problem.value) return failure(problem.value, load);
      return found.value ? found.value.map((call, index) => example(call, index === 0)) : skeleton(4);
    },
  ];
}

function example(call, isFirst) {
  const view = problemView(call.exception);
  if (isFirst) view?.querySelector("details")?.setAttribute("open", "");
  return h("section", { style: { "margin-top": "12px" } },
    h("p", h("a", { href: link(path`/traces/${call.trace_id}`, { call: call.id }) }, when(call.started_at)),
      h("span.faint", ` ${ago(call.started_at)}${call.wb_user_id ? `, ${call.wb_user_id}` : ""}`)), view);
}

/** Make something of the calls of a group: a dataset, items of a queue, a monitor, an alert, a gate. */
export async function run(action, group, range, reload) {
  if (action === "dataset") return (await import("../lib/addtodataset.js")).addToDataset({ selection: selection(group, range), count: group.calls });
  if (action === "queue") return (await import("../lib/addtoqueue.js")).addToQueue({ selection: selection(group, range), count: group.calls });
  const { filter, query: chosen } = publicly(group, {});
  const name = [group.op, group.type || "error"].join(" ");
  if (action === "monitor") {
    const { newMonitor } = await import("./scorers_monitors.js");
    return newMonitor({ name, ops: group.op, query: chosen });
  }
  if (action === "alert") {
    const { editAlert } = await import("./alerts_form.js");
    const rule = { metric: "count", operator: ">", threshold: 0, window_seconds: 3600, filter, query: chosen };
    return editAlert(null, reload, { name, rule });
  }
  return gate(group, publicly(group, {}));
}

function gate(group, { filter, query: chosen }) {
  const since = new Date().toISOString();
  const later = { $gt: [{ $getField: "started_at" }, { $literal: since }] };
  const body = JSON.stringify({ project_id: projectId(), filter, query: { $expr: { $and: [chosen.$expr, later] } } });
  const command = [
    `curl -sf -u api:${keyText()} ${serverAddress()}/calls/query_stats \\`,
    `  -H 'content-type: application/json' -d '${body.replaceAll("'", "'\\''")}' \\`,
    "  | python3 -c 'import json, sys; n = json.load(sys.stdin)[\"count\"]; sys.exit(f\"{n} calls failed again\" if n else 0)'",
  ].join("\n");
  return dialog("Gate in CI", () => [
    h("p", "This fails a CI job if this error occurs again from now on. Run it after the tests that trace to this "
      + "project, or after a deployment."),
    codeBlock(command),
    field("Exit codes", h("span.dim", "0: no such error. 1: the error occurred, or the server did not answer.")),
  ], { wide: true });
}
