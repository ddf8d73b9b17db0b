// One annotation queue: how far it is, its items by state, its guideline and fields, and who did what.
import { h } from "../lib/dom.js";
import { get, postProject, resource, send } from "../lib/data.js";
import { attempt, confirm, menu, toast } from "../lib/dialog.js";
import { ago, int, nameOf, percent, plural } from "../lib/format.js";
import { card, empty, tabs, tile } from "../lib/panels.js";
import { button, dot, loaded, page, segments, timeNode, title } from "../lib/parts.js";
import { go, link, path, projectId, query, setQuery } from "../lib/router.js";
import { pager, table } from "../lib/table.js";
import { addCallsDialog } from "./queue_add.js";
import { annotators } from "./queue_people.js";
import { loadFields, optionText } from "./queue_fields.js";
import { kindText, queueForm } from "./queue_form.js";
import { progressBar } from "./queues.js";

const PAGE = 50;
const STATES = [["", "All"], ["unstarted", "Waiting"], ["in_progress", "In progress"], ["completed", "Completed"],
  ["skipped", "Skipped"]];
const SHAPES = { unstarted: "waiting", in_progress: "running", completed: "success", skipped: "cancelled" };

/** The page of a queue. */
export default function Queue({ queue: id }) {
  const state = resource(() => id, load);
  const items = resource(() => ({ id, state: query("state") ?? "", page: Number(query("page") ?? 0) }), loadItems);
  const reload = () => { state.reload(); items.reload(); };
  const add = async () => {
    const answer = await addCallsDialog(id);
    if (!answer) return;
    toast(`${int(answer.added_count)} added${answer.duplicates ? `, ${int(answer.duplicates)} already there` : ""}`);
    reload();
  };
  const head = {
    crumbs: [["Annotation", link("/queues")]], title: h("span", { dir: "auto", title: () => state.data.value?.queue.name },
      () => state.data.value?.queue.name ?? "Queue"),
    actions: () => state.data.value && actions(state.data.value.queue, add, reload),
  };
  return page(head, h("div.queuebody", loaded(state, (data) => {
    title(data.queue.name);
    return [tiles(data), tabs("Queue", [
      ["items", "Items", () => itemList(id, items, data, add)],
      ["guideline", "Guideline & fields", () => guideline(data)],
      ["people", "Annotators & labels", () => annotators(id, data.fields)],
    ])];
  })), { fixed: true });
}

async function load(id, abort) {
  const [{ queue }, { stats: [stats] }] = await Promise.all([
    get(`${path`/annotation_queues/${id}`}?${new URLSearchParams({ project_id: projectId() })}`, abort),
    postProject("/annotation_queues/stats", { queue_ids: [id] }, abort),
  ]);
  return { queue, total: stats.total_items, done: stats.completed_items, fields: await loadFields(queue.scorer_refs, abort) };
}

async function loadItems({ id, state, page: number }, abort) {
  const { items } = await postProject(path`/annotation_queues/${id}/items/query`, {
    filter: state ? { annotation_states: [state] } : null, limit: PAGE + 1, offset: number * PAGE, include_position: true,
  }, abort);
  return items;
}

function actions(queue, add, reload) {
  const edit = async () => {
    if (await attempt(() => queueForm(queue))) reload();
  };
  const remove = async () => {
    if (!(await confirm(`Delete ${queue.name}?`,
      "The queue is deleted for everyone. Labels stay on their calls. This cannot be undone."))) return;
    const address = `${path`/annotation_queues/${queue.id}`}?${new URLSearchParams({ project_id: projectId() })}`;
    if (await attempt(() => send("DELETE", address), "Deleted")) go(link("/queues"));
  };
  return [
    button("Add calls", add, { iconName: "add", needs: "write" }),
    h("a.button.primary", { href: link(path`/queues/${queue.id}/work`) }, "Annotate"),
    menu(null, () => [["Edit", edit, { iconName: "edit", needs: "write" }], ["Delete queue", remove, { iconName: "trash", danger: true, needs: "delete" }]],
      { label: "More" }),
  ];
}

function tiles({ queue, total, done, fields }) {
  return h("div.queuehead",
    h("div.tiles", tile("Done", total ? percent(done / total, 0) : "–", `${int(done)} of ${plural(total, "item")}`),
    tile("Waiting", int(total - done), total && done === total ? "all done" : ""),
      tile("Fields", int(fields.length), fields.map(({ label }) => label).join(", ")),
    tile("Owner", queue.created_by || "–", `created ${ago(queue.created_at)}`)), progressBar(done, total));
}

function itemList(id, items, data, add) {
  if (!data.total) {
    return empty({ title: "No items yet",
      text: "Add calls by a filter here, or select calls on the Calls page and add them to this queue.",
      action: button("Add calls", add, { kind: "primary", iconName: "add", needs: "write" }) });
  }
  const columns = [
    { key: "position", label: "#", number: true, width: "56px", render: (item) => int(item.position_in_queue) },
    { key: "op", label: "Call", render: (item) => h("a", { href: link(path`/queues/${id}/work`, { item: item.id }),
      title: nameOf(item.call_op_name) }, nameOf(item.call_op_name)) },
    { key: "state", label: "State",
      render: (item) => [dot(SHAPES[item.annotation_state]), " ", STATES.find(([name]) => name === item.annotation_state)?.[1]] },
    { key: "annotator", label: "Annotator",
      render: (item) => (item.annotation_state === "unstarted" ? "" : item.annotator_user_id) },
    { key: "added", label: "Added by", render: (item) => item.added_by },
    { key: "started", label: "Call started", number: true, render: (item) => timeNode(item.call_started_at) },
    { key: "trace", label: "Trace",
      render: (item) => h("a.ref", { href: link(path`/traces/${item.call_trace_id}`, { call: item.call_id }) }, "Open") },
  ];
  const number = () => Number(query("page") ?? 0);
  const turn = (step) => () => setQuery({ page: String(number() + step).replace(/^0$/, "") }, false);
  const more = () => (items.data.value?.length ?? 0) > PAGE;
  return [
    h("div.bar-of-tools",
      segments("State", STATES, () => query("state") ?? "", (value) => setQuery({ state: value, page: null }))),
    h("div.tablebox", { tabindex: 0, role: "region", "aria-label": "Items" }, loaded(items, () => table({
      columns: () => columns, rows: () => (items.data.value ?? []).slice(0, PAGE), key: (item) => item.id, label: "Items",
      href: (item) => link(path`/queues/${id}/work`, { item: item.id }), busy: () => items.busy.value,
    })), () => items.data.value?.length === 0 && empty({ title: "No items in this state" })),
    pager(() => `${int(number() * PAGE + 1)}–${int(number() * PAGE + Math.min(PAGE, items.data.value?.length ?? 0))}`,
      () => (number() > 0 ? turn(-1) : null), () => (more() ? turn(1) : null)),
  ];
}

function guideline({ queue, fields }) {
  return h("div.queuecards",
    card("Guideline", null, queue.description ? h("p.guideline", { dir: "auto" }, queue.description)
    : h("p.dim", "No guideline.")),
    card("Fields", null,
      h("ul.fieldlist", fields.map((entry) => h("li", h("b", entry.label), " ", h("span.badge", kindText(entry.kind)), " ",
      h("span.dim", entry.options.map(optionText).join(" · ")),
      entry.description && h("p.dim", { dir: "auto" }, entry.description),
        h("small.faint.mono", `wandb.annotation.${entry.name}`))))));
}
