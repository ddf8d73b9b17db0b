// One dashboard: its charts on a grid, what is changed of them, and versions.
import { computed, each, effect, h, signal } from "../lib/dom.js";
import { postProject, resource } from "../lib/data.js";
import { attempt, confirm, form, menu, storeOver, toast } from "../lib/dialog.js";
import { joined, loadDashboard, measureText, newChart, newId, storeDashboard } from "../lib/dashboards.js";
import { readConditions, filterChips, rootsOnly } from "../lib/filters.js";
import { download } from "../lib/importers.js";
import { empty } from "../lib/panels.js";
import { button, header, icon, loaded, title } from "../lib/parts.js";
import { go, link, params, path, projectId, query, setQuery } from "../lib/router.js";
import { periodSeconds, timeRange, timeRangePicker } from "../lib/timerange.js";
import { chartView } from "./dashboard_chart.js";

/** Changes that are not saved yet, by project and dashboard: they stay while other pages are looked at. */
const drafts = new Map();
addEventListener("beforeunload", (event) => drafts.size && event.preventDefault());
/** By the same key the digest of the version that was the newest when changes began. */
const bases = new Map();

/** The page. */
export default function Dashboard() {
  const name = params.value.name;
  const place = `${projectId()}/${name}`;
  const version = () => (/^\d+$/.test(query("v") ?? "") ? Number(query("v")) : null);
  const state = resource(() => ({ name, version: version() }), (asked, abort) => loadDashboard(asked.name, asked.version, abort));
  const draft = signal(drafts.get(place) ?? null);
  effect(() => {
    if (draft.value) drafts.set(place, draft.value);
    else drafts.delete(place);
  });
  const head = () => (state.data.value ? null : header({ title: "Dashboard", crumbs: [["Dashboards", link("/dashboards")]] }));
  return h("div.page", head, loaded(state, (found) => {
    if (!found) {
      return [
        empty({ title: `No dashboard named ${name}`, text: "It may have been deleted.",
          action: h("a.button", { href: link("/dashboards") }, "All dashboards") })];
    }
    return open(found, draft, state, place);
  }));
}

function open(found, draft, state, place) {
  title(found.label);
  const value = computed(() => draft.value ?? found.value);
  const charts = computed(() => value.value.charts);
  const change = (changes) => {
    if (!draft.peek()) bases.set(place, found.newest);
    draft.value = { ...value.peek(), ...changes };
  };
  const setCharts = (list) => change({ charts: list });
  const initial = found.value.period ?? "7d";
  const range = timeRange(initial);
  const addressed = signal(/** @type {any} */ (null));
  const selection = computed(() => joined(value.value, addressed.value));
  const conditions = computed(() => JSON.stringify([readConditions(), query("roots") ? rootsOnly() : false]));
  effect(() => {
    const [chosen, roots] = JSON.parse(conditions.value);
    if (!chosen.length && !roots) addressed.value = null;
    else import("../lib/filterquery.js").then((module) => {
      const { cost, ...rest } = module.selectionOf({ conditions: chosen, text: "", roots, from: null, to: null });
      addressed.value = module.publicSelection(rest);
      if (cost) toast("Charts cannot be filtered by cost");
    });
  });
  const context = { charts, setCharts, selection, range, hover: signal(/** @type {number|null} */ (null)), facets: facetsOnce(),
    edit: async (chart) => {
      const { editChart } = await import("./dashboard_editor.js");
      const changed = await editChart(chart, context);
      if (!changed) return;
      const list = charts.peek();
      const known = list.some(({ id }) => id === changed.id);
      setCharts(known ? list.map((one) => (one.id === changed.id ? changed : one)) : [...list, changed]);
    } };
  const save = async () => {
    const store = (after) => storeDashboard(found.name, draft.peek(), after);
    if (!(await attempt(() => storeOver("dashboard", "Their changes stay in its versions.", store, bases.get(place))))) return;
    toast("Dashboard saved");
    draft.value = null;
    setQuery({ v: null });
    state.reload();
  };
  const discard = () => { draft.value = null; };
  const add = () => context.edit(newChart());
  effect(() => {
    if (query("edit") !== "new") return;
    setQuery({ edit: null });
    add();
  });
  return [
    header({ title: h("span", { dir: "auto" }, () => value.value.name || found.label), crumbs: [["Dashboards", link("/dashboards")]],
      extra: () => (found.isLatest ? null : h("span.badge.warn", `v${found.version}, not the latest`)),
      actions: [() => (draft.value ? [button("Discard", discard, { kind: "quiet" }),
        button("Save", save, { kind: "primary", iconName: "save", needs: "write" })] : null),
      button("Add chart", add, { iconName: "add" }), boardMenu(found, value, change, range, addressed, discard)] }),
    h("div.bar-of-tools", timeRangePicker(initial), filterChips(context.facets)),
    h("div.scroll", { tabindex: 0, role: "region", "aria-label": "Charts" },
      () => (value.value.description ? h("p.boardtext", { dir: "auto" }, value.value.description) : null),
      () => (charts.value.length ? null : empty({ title: "No charts yet", action: button("Add chart", add, { kind: "primary",
        iconName: "add" }) })),
      grid(context)),
  ];
}

function facetsOnce() {
  let asked = null;
  return () => (asked ??= postProject("/_ui/api/calls/facets"));
}

function boardMenu(found, value, change, range, addressed, discard) {
  const details = async () => {
    const told = await form("Dashboard", [{ name: "name", label: "Name", value: value.peek().name ?? "", required: true, maxlength: 200 },
      { name: "description", label: "Description", type: "textarea", rows: 3, value: value.peek().description ?? "" }], { action: "Done" });
    if (told) change({ name: told.name.trim(), description: told.description.trim() || null });
  };
  const keep = () => {
    const { preset } = range.peek();
    const isPeriod = periodSeconds(preset) !== undefined;
    change({ ...(isPeriod ? { period: preset } : {}), ...(addressed.peek() ? joined(value.peek(), addressed.peek()) : {}) });
    setQuery({ f: null, roots: null });
    toast("Added to the dashboard; save it to keep them");
  };
  const remove = async () => {
    if (!(await confirm("Delete this dashboard?", `“${found.label}” and all its versions are deleted for everyone in the project. This cannot be undone.`))) return;
    if ((await attempt(() => postProject("/obj/delete", { object_id: found.name }), "Dashboard deleted")) === undefined) return;
    discard();
    go(link("/dashboards"));
  };
  return menu(null, () => [
    ["Name and description", details, { iconName: "edit" }],
    ["Keep time range and filter", keep, { iconName: "filter" }],
    hasFilter(value.peek()) && ["Remove kept filter", () => change({ filter: null, query: null }), { iconName: "close" }],
    ["Export as JSON", () => download(`${found.name}.json`, [JSON.stringify(value.peek(), null, 2)], "application/json"),
      { iconName: "download" }],
    ["Versions", () => go(link(path`/objects/${found.name}/versions/${found.digest}`)), { iconName: "objects" }],
    ["Delete", remove, { iconName: "trash", danger: true, needs: "delete" }],
  ], { label: "More", kind: "quiet" });
}

const hasFilter = ({ filter, query: chosen }) => Boolean(chosen || Object.values(filter ?? {}).some((one) => one));

/** The charts in their order; they are moved and resized with the pointer or with arrow keys. */
function grid(context) {
  return each(h("div.boardgrid"), () => context.charts.value, (chart) => chart.id, (held) => chartCard(held, context));
}

function chartCard(held, context) {
  const figures = signal(false);
  const { id } = held.peek();
  const name = () => held.value.title || held.value.measures.map(measureText).join(", ");
  const change = (changes) => context.setCharts(context.charts.peek().map((one) => (one.id === id ? { ...one, ...changes } : one)));
  const moveBy = (step) => {
    const list = [...context.charts.peek()];
    const at = list.findIndex((one) => one.id === id);
    const to = Math.max(0, Math.min(list.length - 1, at + step));
    list.splice(to, 0, ...list.splice(at, 1));
    if (to !== at) context.setCharts(list);
  };
  const resizeBy = (wide, tall) => change({ width: clamp(held.peek().width + wide, 4), height: clamp(held.peek().height + tall, 3) });
  const remove = () => {
    const before = context.charts.peek();
    context.setCharts(before.filter((one) => one.id !== id));
    toast("Chart deleted", { undo: () => context.setCharts(before) });
  };
  const duplicate = () => {
    const list = [...context.charts.peek()];
    list.splice(list.findIndex((one) => one.id === id) + 1, 0, { ...structuredClone(held.peek()), id: newId() });
    context.setCharts(list);
  };
  const items = () => [
    ["Edit", () => context.edit(held.peek()), { iconName: "edit" }],
    [figures.peek() ? "Show chart" : "Show table", () => { figures.value = !figures.peek(); }, { iconName: "columns" }],
    ["Duplicate", duplicate, { iconName: "copy" }],
    ["Move forward", () => moveBy(-1), { iconName: "left" }], ["Move back", () => moveBy(1), { iconName: "right" }],
    ["Wider", () => resizeBy(1, 0), { iconName: "expand", disabled: held.peek().width >= 4 }],
    ["Narrower", () => resizeBy(-1, 0), { iconName: "collapse", disabled: held.peek().width <= 1 }],
    ["Taller", () => resizeBy(0, 1), { iconName: "expand", disabled: held.peek().height >= 3 }],
    ["Shorter", () => resizeBy(0, -1), { iconName: "collapse", disabled: held.peek().height <= 1 }],
    ["Delete", remove, { iconName: "trash", danger: true }],
  ];
  const arrows = (action) => (event) => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    action(...step);
    queueMicrotask(() => event.target.focus());
  };
  const handle = h("button.button.quiet.draghandle", { type: "button", title: "Drag, or use the arrow keys",
    "aria-label": () => `Move ${name()}`, onkeydown: arrows((x, y) => moveBy(x || y)),
    onpointerdown: (event) => drag(event, card, context, id) }, icon("drag"));
  const corner = h("button.resizehandle", { type: "button", title: "Drag, or use the arrow keys", "aria-label": () => `Resize ${name()}`,
    onkeydown: arrows(resizeBy), onpointerdown: (event) => resize(event, card, held, change) });
  const card = h("section.card.boardchart", { "data-chart": id, "aria-label": name, class: () => held.value.kind,
    style: () => ({ "--columns": String(held.value.width), "--rows": String(held.value.height) }) },
    h("header", handle, h("h2", { dir: "auto", title: name }, name), h("span.grow"),
      () => (held.value.period ? h("span.chip", held.value.period) : null),
      menu(null, items, { label: "More", kind: "quiet", "aria-label": `More for ${name()}` })),
    chartView(() => held.value, () => context.selection.value, () => context.range.value,
      { figures: () => figures.value, hover: context.hover }), corner);
  return card;
}

const clamp = (value, most) => Math.max(1, Math.min(most, value));

/** Follow the pointer until it is let go, wherever the card is moved to meanwhile. */
function follow(event, onmove) {
  if (event.button) return;
  event.preventDefault();
  const end = () => {
    removeEventListener("pointermove", onmove);
    removeEventListener("pointerup", end);
    removeEventListener("pointercancel", end);
    document.body.classList.remove("dragging");
  };
  document.body.classList.add("dragging");
  addEventListener("pointermove", onmove);
  addEventListener("pointerup", end);
  addEventListener("pointercancel", end);
}

/** Let a card take the place of the one under the pointer. */
function drag(event, card, context, id) {
  let over = null;
  follow(event, (moved) => {
    const found = document.elementFromPoint(moved.clientX, moved.clientY)?.closest("[data-chart]");
    if (!(found instanceof HTMLElement) || found === card || found === over) {
      if (found === card) over = null;
      return;
    }
    over = found;
    const list = [...context.charts.peek()];
    const at = list.findIndex((one) => one.id === id);
    const to = list.findIndex((one) => one.id === found.dataset.chart);
    list.splice(to, 0, ...list.splice(at, 1));
    context.setCharts(list);
  });
}

/** Change width and height in whole steps of the grid. */
function resize(event, card, held, change) {
  const [x, y] = [event.clientX, event.clientY];
  const { width, height } = held.peek();
  const column = card.parentElement.clientWidth / 4;
  follow(event, (moved) => {
    const next = { width: clamp(width + Math.round((moved.clientX - x) / column), 4),
      height: clamp(height + Math.round((moved.clientY - y) / 200), 3) };
    if (next.width !== held.peek().width || next.height !== held.peek().height) change(next);
  });
}
