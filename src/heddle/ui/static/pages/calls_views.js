// Saved views: filters, order and columns under a name, as objects of the class that the SDKs know.
import { postProject, storeObject } from "../lib/data.js";
import { attempt, confirm, dialog, form, toast } from "../lib/dialog.js";
import { computed, h, signal } from "../lib/dom.js";
import { publicSelection, selectionOf, storedQuery } from "../lib/filterquery.js";
import { ago } from "../lib/format.js";
import { empty } from "../lib/panels.js";
import { button, failure, skeleton } from "../lib/parts.js";
import { query, setQuery } from "../lib/router.js";
import { plain, readFilters } from "../lib/savedfilters.js";

const PATHS = {
  op: ["op_name"], input: ["inputs"], output: ["output"], model: ["summary", "usage"], tokens: ["summary", "usage"],
  cost: ["summary", "weave", "costs"], seconds: ["summary", "weave", "latency_ms"], user: ["wb_user_id"], thread: ["thread_id"],
  feedback: ["summary", "weave", "feedback"], started: ["started_at"],
};
const ORDERS = { slowest: ["summary.weave.latency_ms", "desc"], oldest: ["started_at", "asc"] };

/** The object that holds the order of the tabs, in the place of columns. */
const TABS = "calls-tabs";

const read = (filter) =>
  postProject("/objs/query", { filter: { base_object_classes: ["SavedView"], latest_only: true, ...filter }, limit: 500 });

/** Show what the view of that name shows; it may have been saved here or by an SDK. */
export async function openView(name, context) {
  const found = await attempt(() => read({ object_ids: [name] }));
  if (!found) return;
  if (found.objs.length) show(found.objs[0], context, true);
  else {
    toast(`This project has no view ${name}`, { kind: "error" });
    setQuery({ view: null });
  }
}

/** Show a view that was read. */
export function show(view, context, replace) {
  const value = plain(view.val);
  setQuery(addressOf(view.object_id, value, context), replace);
  const order = value.definition?.sort_by?.[0];
  if (order && !query("sort") && order.field !== "started_at") toast(
    `The list cannot be sorted by ${order.field}; the newest calls come first`);
}

/** The views of calls that the project has, and the names of the tabs in their order; `*` stands for all calls. */
export async function readTabs() {
  const { objs } = await read({});
  const views = objs.filter((view) => view.val.view_type === "traces");
  const kept = objs.find((view) => view.object_id === TABS)?.val.definition?.column_order ?? ["*"];
  const names = ["*", ...views.map((view) => view.object_id)];
  const known = kept.filter((name) => names.includes(name));
  return { views, order: [...known, ...names.filter((name) => !known.includes(name))] };
}

/** Keep the order of the tabs, for everybody in the project. */
export const storeOrder = (order) => create(TABS, { name: TABS, view_type: "traces_tabs", label: "Tabs of Calls",
  definition: { column_order: order } });

/** Give a view another name for people; its address stays. */
export async function renameView(view) {
  const saved = await form("Rename view", [{ name: "label", label: "Name", value: view.val.label, required: true, maxlength: 100 }],
    { submit: ({ label }) => create(view.object_id, { ...plain(view.val), label: label.trim() }, view.digest) });
  return Boolean(saved);
}

/** Let a view show what the list shows now. */
export const updateView = (view, context) => create(view.object_id, valueOf(view.object_id, view.val.label, context),
  view.digest);

/** Ask, and delete a view; true when it is gone. */
export async function removeView(view) {
  if (!(await confirm("Delete this view?", `“${view.val.label}” is deleted for everyone in the project. Calls are kept.`))) return false;
  if (!(await attempt(() => postProject("/obj/delete", { object_id: view.object_id }), "View deleted"))) return false;
  if (query("view") === view.object_id) setQuery({ view: null });
  return true;
}

/** Store a view; refused where the digest `after` is no longer that of the newest version. */
const create = (name, value, after = null) => storeObject(name, value, { builtin_object_class: "SavedView", after });

/** The address of a view: everything that the page reads from there. */
function addressOf(name, value, { columns: { known, chosen } }) {
  const { definition = {} } = value;
  const { conditions, text, roots, from, to } = readFilters(definition.filter, definition.query);
  const order = definition.sort_by?.[0];
  const sort = Object.keys(ORDERS).find((key) => ORDERS[key][0] === order?.field && ORDERS[key][1] === order?.direction);
  const columns = [...new Set((definition.columns ?? []).map((column) => columnOf(column, known)).filter(Boolean))];
  if (columns.length && !columns.includes("op")) columns.unshift("op");
  const shown = columns.length ? columns : shownBy(definition.cols, known, chosen);
  return {
    view: name, f: conditions.length ? JSON.stringify(conditions) : null, search: text, roots: roots ? "1" : "0", sort,
    cols: shown?.map((column) => column.replaceAll("%", "%25").replaceAll(",", "%2C")).join(",") ?? null,
    t0: seconds(from), t1: seconds(to), after: null, before: null, peek: null,
  };
}

const seconds = (value) => (value == null ? null : typeof value === "number" ? value : new Date(value).getTime() / 1000);

function columnOf({ path: parts, label }, known) {
  const found = Object.keys(known).find((name) => known[name].label === label) ??
    Object.keys(PATHS).find((name) => PATHS[name].join(".") === parts?.join("."));
  return found ?? (parts ? parts.map((part) => String(part).replaceAll(".", "\\.")).join(".") : null);
}

/** The older format of the SDKs: paths that are enabled in addition to the ordinary columns. */
function shownBy(cols, known, chosen) {
  const extra = Object.entries(cols ?? {}).filter(([name, on]) => on && /^(inputs|output|attributes|summary)\./.test(name))
    .map(([name]) => name);
  return extra.length ? [...chosen().filter((name) => known[name]), ...extra] : null;
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
        text: "A view saves the filters, sort order and columns of this list for everyone in the project." });
      return h("ul", ofCalls.value.map((view) => viewLine(view, context, close, load)));
    }, h("div.actions", button("Save this view", () => saveView(context, close), { kind: "primary", iconName: "save", needs: "write" }))];
  });
}

function viewLine(view, context, close, reload) {
  const open = () => {
    close();
    show(view, context, false);
  };
  const remove = async () => {
    if (!(await removeView(view))) return;
    reload();
    context.showTabs?.();
  };
  return h("li", { style: { display: "flex", gap: "8px", "align-items": "center", padding: "2px 0" } },
    h("button.nav", { type: "button", "aria-current": query("view") === view.object_id ? "true" : null, onclick: open,
      title: view.object_id },
      h("span.one-line", { dir: "auto" }, view.val.label),
        h("span.faint", { style: { "margin-left": "auto" } }, ago(view.created_at))),
    button(null, remove, { kind: "quiet", iconName: "trash", label: `Delete ${view.val.label}`, needs: "delete" }));
}

/** Ask for a name and save what the list shows under it. */
export async function saveView(context, close = () => {}) {
  const label = query("view") ?? "";
  const saved = await form("Save view", [{ name: "label", label: "Name", value: label, required: true, maxlength: 100 }], {
    text: context.state().conditions.some(([field]) => field === "cost") ? "The cost filter is not saved: views do not support it."
      : "",
    submit: ({ label: name }) => store(name.trim(), context),
  });
  if (!saved) return;
  close();
  context.showTabs?.();
  setQuery({ view: saved.object_id, roots: query("roots") ?? "1", src: query("roots") ? query("src") : "user" });
  toast(`View saved; the address of this page opens it`);
}

/** Store the view as the class SavedView of the SDKs; only the name of the view that is shown gets a new version. */
async function store(label, context) {
  const name = label.replace(/[^\p{L}\p{N}_-]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 100) || "view";
  const shown = name === query("view") ? context.tabs?.data.peek()?.views.find((view) => view.object_id === name) : null;
  await create(name, valueOf(name, label, context), shown?.digest ?? "");
  return { object_id: name };
}

/** What the list shows now, as a view. */
function valueOf(name, label, context) {
  const { filter, query: chosen } = publicSelection(
    { ...selectionOf(context.state()), ...(query("t0") || query("t1") ? {} : { from: null, to: null }) });
  const order = ORDERS[query("sort")];
  const columns = context.columns.chosen().map(
    (column) => ({ label: context.columns.known[column]?.label ?? column, path: PATHS[column] ?? column.split(/(?<!\\)\./)
    .map((part) => part.replaceAll("\\.", ".")) }));
  return { name, view_type: "traces", label,
    definition: { filter, query: storedQuery(chosen), columns, sort_by: order ? [{ field: order[0], direction: order[1] }] : null } };
}
