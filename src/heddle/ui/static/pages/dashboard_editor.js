// The dialog in which a chart is made or changed, with what it shows beside it.
import { dialog } from "../lib/dialog.js";
import { AGGREGATIONS, FIGURES, GROUPS, isFree, KINDS, knownScores, measureText, usualAggregation } from "../lib/dashboards.js";
import { computed, h, signal } from "../lib/dom.js";
import { FIELDS, conditionChips } from "../lib/filters.js";
import { publicSelection, selectionOf } from "../lib/filterquery.js";
import { field } from "../lib/panels.js";
import { button } from "../lib/parts.js";
import { readFilters } from "../lib/savedfilters.js";
import { chartView } from "./dashboard_chart.js";

const WIDTHS = [["1", "A quarter"], ["2", "Half"], ["3", "Three quarters"], ["4", "Full width"]];
const HEIGHTS = [["1", "Low"], ["2", "Middle"], ["3", "High"]];
const PERIODS = [["", "Same as dashboard"], ["1h", "1 hour"], ["24h", "24 hours"], ["7d", "7 days"], ["30d", "30 days"], ["all", "All"]];
const STEPS = [["", "Automatic"], ["300", "5 minutes"], ["3600", "1 hour"], ["86400", "1 day"], ["604800", "7 days"]];
const MOST_MEASURES = 6;
const PAUSE = 250;

/** Edit a chart; resolves to the changed one, or null when left. `context` has the selection, the range and facets. */
export function editChart(chart, context) {
  return dialog(chart.title || "Chart", (close) => editor(structuredClone(chart), context, close), { wide: true });
}

function editor(first, context, close) {
  const chart = signal(first);
  const set = (changes) => { chart.value = { ...chart.peek(), ...changes }; };
  const paths = signal(/** @type {string[]} */ ([]));
  const scores = signal(/** @type {string[]} */ ([]));
  context.facets().then((found) => { paths.value = found.paths.filter((path) => !path.startsWith("scores.")); }, () => {});
  knownScores().then((found) => { scores.value = found; }, () => {});
  const kind = () => chart.value.kind;
  const isTimed = () => ["line", "stacked"].includes(kind()) || (kind() === "bar" && !chart.value.group_by);
  const select = (label, options, value, onchange, hidden = () => false) => h("div", { hidden }, field(label, h("select",
    { onchange: (event) => onchange(event.target.value) },
    options.map(([name, text]) => h("option", { value: name, selected: name === value }, text)))));
  const done = (event) => {
    event.preventDefault();
    const { measures, ...rest } = chart.peek();
    close({ ...rest, measures: rest.kind === "histogram" ? measures.slice(0, 1) : measures });
  };
  return h("form.charteditor", { onsubmit: done },
    h("div.chartfields",
      field("Title", h("input", { type: "text", value: first.title, maxlength: 200, autocomplete: "off",
        placeholder: () => chart.value.measures.map(measureText).join(", "), oninput: (event) => set({ title: event.target.value }) })),
      select("Chart", KINDS, first.kind, (value) => set({ kind: value })),
      measuresEditor(chart, set, paths, scores),
      groupEditor(chart, set, paths),
      select("Groups", [3, 5, 8, 12, 20, 50].map((count) => [String(count), `Top ${count} and all others`]),
        String(first.limit), (value) => set({ limit: Number(value) }), () => !chart.value.group_by),
      filterEditor(chart, set, context.facets),
      select("Time", PERIODS, first.period ?? "", (value) => set({ period: value || null })),
      select("Interval", STEPS, first.granularity ? String(first.granularity) : "",
        (value) => set({ granularity: value ? Number(value) : null }), () => !isTimed()),
      h("div.twofields", select("Width", WIDTHS, String(first.width), (value) => set({ width: Number(value) })),
        select("Height", HEIGHTS, String(first.height), (value) => set({ height: Number(value) }))),
      h("datalist", { id: "chart-fields" }, () => [...paths.value, "attributes."].map((path) => h("option", { value: path })))),
    h("section.card.chartpreview", { "aria-label": "Preview" },
      h("header", h("h2", () => chart.value.title || chart.value.measures.map(measureText).join(", "))),
      chartView(() => usable(chart.value), () => context.selection.value, () => context.range.value)),
    h("div.actions", button("Cancel", () => close()), h("button.button.primary", { type: "submit" }, "Done")));
}

/** The chart without measures of which the field is not typed yet. */
const usable = (chart) => ({ ...chart, measures: chart.measures.some((one) => one.field) ? chart.measures.filter((one) => one.field)
  : [{ field: "calls" }] });

/** Take what is typed once there is a pause. */
function afterTyping(take) {
  let timer = 0;
  return (event) => {
    clearTimeout(timer);
    timer = setTimeout(() => take(event.target.value.trim()), PAUSE);
  };
}

function measuresEditor(chart, set, paths, scores) {
  const count = computed(() => chart.value.measures.length);
  const change = (at, changes) => set({ measures: chart.peek().measures.map((one, index) => (index === at ? { ...one, ...changes } : one)) });
  const remove = (at) => set({ measures: chart.peek().measures.filter((_, index) => index !== at) });
  return h("fieldset", h("legend", "Measures"),
    () => Array.from({ length: count.value }, (_, at) => measureEditor(chart, at, change, remove, scores)),
    () => (count.value < MOST_MEASURES && chart.value.kind !== "histogram"
      ? button("Add measure", () => set({ measures: [...chart.peek().measures, { field: "latency_ms", aggregation: "p95" }] }),
        { kind: "quiet", iconName: "add" }) : null));
}

function measureEditor(chart, at, change, remove, scores) {
  const own = () => chart.value.measures[at] ?? { field: "calls" };
  const isNamed = (name) => FIGURES.some(([key]) => key === name) || scores.value.includes(name);
  const choice = computed(() => (isNamed(own().field) ? own().field : "other"));
  const pick = (name) => change(at, name === "other" ? { field: "inputs.", aggregation: null } : { field: name, aggregation: null });
  const aggregation = () => own().aggregation ?? usualAggregation(own().field);
  return h("div.measure",
    h("select", { "aria-label": "Figure", onchange: (event) => pick(event.target.value) },
      () => [...FIGURES, ...scores.value.map((path) => [path, scoreLabel(path)]),
        ["other", "Another field…"]].map(([name, text]) => h("option", { value: name, selected: name === choice.value }, text))),
    () => (choice.value === "other" ? h("input", { type: "text", list: "chart-fields", "aria-label": "Field", required: true,
      value: chart.peek().measures[at]?.field ?? "", placeholder: "output.score", autocomplete: "off",
      oninput: afterTyping((value) => change(at, { field: value })) }) : null),
    () => (isFree(own().field) && chart.value.kind !== "histogram" ? h("select", { "aria-label": "Aggregation",
      onchange: (event) => change(at, { aggregation: event.target.value }) },
      AGGREGATIONS.map(([name, text]) => h("option", { value: name, selected: name === aggregation() }, text))) : null),
    () => (chart.value.measures.length > 1 ? button(null, () => remove(at), { kind: "quiet", iconName: "trash",
      label: `Remove ${measureText(own())}` }) : null));
}

const scoreLabel = (path) => measureText({ field: path, aggregation: "avg" }).replace(/, average$/, "");

function groupEditor(chart, set, paths) {
  const isNamed = () => !chart.value.group_by || GROUPS.some(([name]) => name === chart.value.group_by);
  const isOther = signal(!isNamed());
  const pick = (name) => {
    isOther.value = name === "other";
    set({ group_by: name === "other" ? null : name || null });
  };
  return h("div", field("Group by", h("select", { onchange: (event) => pick(event.target.value) },
    [["", "Nothing"], ...GROUPS, ["other", "Another field…"]].map(([name, text]) => h("option",
      { value: name, selected: name === (isOther.peek() ? "other" : chart.peek().group_by ?? "") }, text)))),
  () => (isOther.value ? h("input", { type: "text", list: "chart-fields", "aria-label": "Field to group by", required: true,
    value: chart.peek().group_by ?? "", placeholder: "attributes.tenant", autocomplete: "off",
    oninput: afterTyping((value) => set({ group_by: value || null })) }) : null));
}

function filterEditor(chart, set, facets) {
  const read = computed(() => readFilters(chart.value.filter, chart.value.query));
  const write = (conditions, roots = read.peek().roots) => {
    const { cost, ...rest } = selectionOf({ conditions, text: read.peek().text, roots, from: null, to: null });
    set(publicSelection({ ...rest, filter: roots || Object.keys(rest.filter).length > 1 ? rest.filter : null }));
  };
  const { cost, ...fields } = FIELDS;
  return h("fieldset", h("legend", "Calls"),
    h("label.checkline", h("input", { type: "checkbox", checked: () => read.value.roots,
      onchange: (event) => write(read.peek().conditions, event.target.checked) }), "Root calls only"),
    h("div.chips", conditionChips({ read: () => read.value.conditions, write, facets, fields })));
}
