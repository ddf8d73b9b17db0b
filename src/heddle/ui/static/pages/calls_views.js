// Saved views: filters, order and columns under a name, as objects of the class that the SDKs know.
import { postProject } from "../lib/data.js";
import { attempt, confirm, dialog, form, toast } from "../lib/dialog.js";
import { computed, h, signal } from "../lib/dom.js";
import { publicSelection, selectionOf } from "../lib/filterquery.js";
import { ago } from "../lib/format.js";
import { empty } from "../lib/panels.js";
import { button, failure, skeleton } from "../lib/parts.js";
import { projectId, query, setQuery } from "../lib/router.js";
import { plain, readFilters } from "../lib/savedfilters.js";
import { COLUMNS, chosenColumns } from "./calls.js";

const PATHS = {
  op: ["op_name"], input: ["inputs"], output: ["output"], model: ["summary", "usage"], tokens: ["summary", "usage"],
  cost: ["summary", "weave", "costs"], seconds: ["summary", "weave", "latency_ms"], user: ["wb_user_id"], thread: ["thread_id"],
  feedback: ["summary", "weave", "feedback"], started: ["started_at"],
};
const ORDERS = { slowest: ["summary.weave.latency_ms", "desc"], oldest: ["started_at", "asc"] };

const read = (filter) =>
  postProject("/objs/query", { filter: { base_object_classes: ["SavedView"], latest_only: true, ...filter }, limit: 500 });

/** Show what the view of that name shows; it may have been saved here or by an SDK. */
export async function openView(name) {
  const found = await attempt(() => read({ object_ids: [name] }));
  if (!found) return;
  if (found.objs.length) show(found.objs[0], true);
  else {
    toast(`There is no view ${name} in this project`, { kind: "error" });
    setQuery({ view: null });
  }
}

function show(view, replace) {
  const value = plain(view.val);
  setQuery(addressOf(view.object_id, value), replace);
  const order = value.definition?.sort_by?.[0];
  if (order && !query("sort") && order.field !== "started_at") toast(
    `The list cannot be sorted by ${order.field}: the newest come first`);
}

/** The address of a view: everything that the page reads from there. */
function addressOf(name, value) {
  const { definition = {} } = value;
  const { conditions, text, roots, from, to } = readFilters(definition.filter, definition.query);
  const order = definition.sort_by?.[0];
  const sort = Object.keys(ORDERS).find((key) => ORDERS[key][0] === order?.field && ORDERS[key][1] === order?.direction);
  const columns = [...new Set((definition.columns ?? []).map(columnOf).filter(Boolean))];
  if (columns.length && !columns.includes("op")) columns.unshift("op");
  const shown = columns.length ? columns : shownBy(definition.cols);
  return {
    view: name, f: conditions.length ? JSON.stringify(conditions) : null, s: text, roots: roots ? "1" : "0", sort,
    cols: shown?.map((column) => column.replaceAll("%", "%25").replaceAll(",", "%2C")).join(",") ?? null,
    t0: seconds(from), t1: seconds(to), after: null, before: null, peek: null,
  };
}

const seconds = (value) => (value == null ? null : typeof value === "number" ? value : new Date(value).getTime() / 1000);

function columnOf({ path: parts, label }) {
  const known = Object.keys(COLUMNS).find((name) => COLUMNS[name].label === label) ??
    Object.keys(PATHS).find((name) => PATHS[name].join(".") === parts?.join("."));
  return known ?? (parts ? parts.map((part) => String(part).replaceAll(".", "\\.")).join(".") : null);
}

/** The older way of the SDKs: paths that are switched on beside the ordinary columns. */
function shownBy(cols) {
  const extra = Object.entries(cols ?? {}).filter(([name, on]) => on && /^(inputs|output|attributes|summary)\./.test(name))
    .map(([name]) => name);
  return extra.length ? [...chosenColumns().filter((name) => COLUMNS[name]), ...extra] : null;
}

/** The dialog with the views of the project. */
export function chooseView(context) {
  return dialog("Saved views", (close) => {
    const views = signal(/** @type {any} */ (null));
    const problem = signal(/** @type {any} */ (null));
    const load = () => read({}).then((found) => { views.value = found.objs; problem.value = null; },
      (error) => { problem.value = error; });
    load();
    const ofCalls = computed(() => views.value?.filter((view) => view.val.view_type === "traces") ?? []);
    return [() => {
      if (problem.value) return failure(problem.value, load);
      if (!views.value) return skeleton(3);
      if (!ofCalls.value.length) return empty(
        { title: "No saved views yet",
        text: "A view keeps the filters, the order and the columns of this list under a name, for everybody in the project." });
      return h("ul", ofCalls.value.map((view) => viewLine(view, close, load)));
    }, h("div.actions", button("Save this view", () => saveView(context, close), { kind: "primary", iconName: "save" }))];
  });
}

function viewLine(view, close, reload) {
  const open = () => {
    close();
    show(view, false);
  };
  const remove = async () => {
    if (await confirm("Delete this view?", `“${view.val.label}” goes for everybody in the project; calls stay.`)) {
      await attempt(() => postProject("/obj/delete", { object_id: view.object_id }), "View deleted");
      if (query("view") === view.object_id) setQuery({ view: null });
      reload();
    }
  };
  return h("li", { style: { display: "flex", gap: "8px", "align-items": "center", padding: "2px 0" } },
    h("button.nav", { type: "button", "aria-current": query("view") === view.object_id ? "true" : null, onclick: open,
      title: view.object_id },
      h("span.one-line", { dir: "auto" }, view.val.label),
        h("span.faint", { style: { "margin-left": "auto" } }, ago(view.created_at))),
    button(null, remove, { kind: "quiet", iconName: "trash", label: `Delete ${view.val.label}` }));
}

async function saveView(context, close) {
  const label = query("view") ?? "";
  const saved = await form("Save view", [{ name: "label", label: "Name", value: label, required: true, maxlength: 100 }], {
    text: context.state().conditions.some(([field]) => field === "cost") ? "The filter on cost is left out: views know no cost."
      : "",
    submit: ({ label: name }) => store(name.trim(), context),
  });
  if (!saved) return;
  close();
  setQuery({ view: saved.object_id, roots: query("roots") ?? "1" });
  toast(`View saved; its address is this page's`);
}

/** Store the view as the class SavedView of the SDKs; a name that exists gets a new version. */
async function store(label, context) {
  const name = label.replace(/[^\p{L}\p{N}_-]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 100) || "view";
  const { filter, query: expression } = publicSelection(
    { ...selectionOf(context.state()), ...(query("t0") || query("t1") ? {} : { from: null, to: null }) });
  const order = ORDERS[query("sort")];
  const columns = chosenColumns().map(
    (column) => ({ label: COLUMNS[column]?.label ?? column, path: PATHS[column] ?? column.split(/(?<!\\)\./)
    .map((part) => part.replaceAll("\\.", ".")) }));
  const value = { name, view_type: "traces", label,
    definition: { filter, query: expression, columns, sort_by: order ? [{ field: order[0], direction: order[1] }] : null } };
  await postProject("/obj/create",
    { obj: { project_id: projectId(), object_id: name, val: value, builtin_object_class: "SavedView" } });
  return { object_id: name };
}
