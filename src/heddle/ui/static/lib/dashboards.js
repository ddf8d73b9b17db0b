// Dashboards: what they are made of, how they are stored, what a chart asks the server for, and which calls a point means.
import { postProject, storeObject } from "./data.js";
import { duration, int, money, nameOf, number, percent } from "./format.js";
import { link } from "./router.js";
import { plain, readFilters } from "./savedfilters.js";
import { periodSeconds } from "./timerange.js";

/** The kinds of charts with their names. */
export const KINDS = [["line", "Lines over time"], ["stacked", "Stacked bars over time"], ["bar", "Bars"], ["number", "Numbers"],
  ["table", "Table"], ["histogram", "Histogram"]];

/** What can be measured beside the fields of calls. */
export const FIGURES = [["calls", "Calls"], ["errors", "Errors"], ["error_share", "Error rate"], ["cost", "Cost"],
  ["latency_ms", "Latency"], ["total_tokens", "Tokens"], ["input_tokens", "Input tokens"], ["output_tokens", "Output tokens"],
  ["cache_read_input_tokens", "Cached input tokens"], ["cache_creation_input_tokens", "Input tokens written to a cache"]];

/** What is made of the values of a field. */
export const AGGREGATIONS = [["avg", "Average"], ["sum", "Sum"], ["p50", "Median"], ["p90", "p90"], ["p95", "p95"], ["p99", "p99"],
  ["min", "Minimum"], ["max", "Maximum"], ["count", "Number of values"], ["count_true", "How often true"],
  ["count_false", "How often false"]];

/** Fields by which calls are often grouped. */
export const GROUPS = [["model", "Model"], ["op_name", "Operation"], ["wb_user_id", "User"], ["thread_id", "Thread"],
  ["summary.weave.status", "Status"]];

const FIXED = ["calls", "errors", "error_share", "cost"];

/** Whether a figure can be aggregated in several ways. */
export const isFree = (field) => !FIXED.includes(field);

/** The aggregation that a figure has where none is given. */
export const usualAggregation = (field) => (field.endsWith("_tokens") ? "sum" : isFree(field) ? "avg" : null);

/**
 * A measure in words.
 * @param {{field: string, aggregation?: string|null, label?: string|null}} measure
 */
export function measureText({ field, aggregation, label }) {
  if (label) return label;
  const name = FIGURES.find(([key]) => key === field)?.[1] ?? scoreName(field) ?? field;
  const how = aggregation ?? usualAggregation(field);
  if (!isFree(field) || (how === "sum" && field.endsWith("_tokens"))) return name;
  const word = AGGREGATIONS.find(([key]) => key === how)?.[1] ?? how;
  return `${name}, ${/^p\d/.test(word) ? word : word.toLowerCase()}`;
}

/** The field of a score that people know as `scorer.path`. */
export const scoreField = (scorer, rest = "") => `feedback.[wandb.runnable.${scorer}].payload.output${rest && `.${rest}`}`;

function scoreName(field) {
  const found = /^feedback\.\[wandb\.runnable\.(.+)\]\.payload\.output(?:\.(.+))?$/.exec(field);
  return found && [found[1], found[2]].filter(Boolean).join(" ");
}

/** How values of a measure are written. */
export function writerOf({ field, aggregation }) {
  if (/^count/.test(aggregation ?? "")) return int;
  if (field === "cost") return (value) => (value && Math.abs(value) < 1 ? `$${Number(value.toPrecision(3))}` : money(value));
  if (field === "error_share") return (value) => percent(value);
  if (field === "latency_ms" || field === "summary.weave.latency_ms")
    return (value) => (value === 0 ? "0" : duration(value == null ? null : value / 1000));
  return number;
}

/** What calls are grouped by, in words. */
export const groupName = (path) => GROUPS.find(([name]) => name === path)?.[1] ?? path;

/** A group in words. */
export function groupText(path, name) {
  if (name === null) return "all others";
  if (name === "") return path === "wb_user_id" ? "unknown user" : "none";
  return path === "op_name" ? nameOf(name) : name;
}

/** The dashboards of the project, the newest version of each. */
export async function loadDashboards(abort) {
  const found = await postProject("/objs/query",
    { filter: { base_object_classes: ["Dashboard"], latest_only: true }, limit: 500 }, abort);
  return found.objs.map(described).sort((one, other) => one.label.localeCompare(other.label));
}

/** One dashboard with its versions; `version` is the number of one, null for the newest. False when there is none. */
export async function loadDashboard(name, version, abort) {
  const filter = { base_object_classes: ["Dashboard"], object_ids: [name] };
  const { objs } = await postProject("/objs/query", { filter }, abort);
  const chosen = objs.find((object) => (version === null ? object.is_latest : object.version_index === version));
  return chosen ? { ...described(chosen), versions: objs.map((object) => object.version_index), isLatest: chosen.is_latest,
    newest: objs.find((object) => object.is_latest)?.digest ?? "" } : false;
}

function described(object) {
  const value = plain(object.val) ?? {};
  return { name: object.object_id, version: object.version_index, digest: object.digest, created: object.created_at,
    label: value.name || object.object_id, value: { ...value, charts: Array.isArray(value.charts) ? value.charts : [] } };
}

/**
 * Store a dashboard under the name of its object, as a new version where there is one; fails with the status 409 where the
 * digest `after` is no longer that of the newest.
 */
export async function storeDashboard(name, value, after = null) {
  const { name: label, description = null, period = "7d", filter = null, query = null, charts } = value;
  await storeObject(name, { name: label, description, period, filter, query, charts }, { builtin_object_class: "Dashboard", after });
  return name;
}

/** The name of the object of a dashboard that people call `label`; not one of `taken`. */
export function objectNameOf(label, taken = []) {
  const name = label.replace(/[^\p{L}\p{N}_-]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 100) || "dashboard";
  let found = name;
  for (let number = 2; taken.includes(found); number++) found = `${name}-${number}`;
  return found;
}

/** A chart as new ones begin. */
export const newChart = (more = {}) => ({ id: newId(), title: "", kind: "line", measures: [{ field: "calls" }], group_by: null,
  limit: 8, filter: null, query: null, period: null, granularity: null, width: 2, height: 1, ...more });

/** An id that no other chart of a dashboard has. */
export const newId = () => `c${crypto.getRandomValues(new Uint32Array(2)).join("")}`;

/** Dashboards to begin with: [name, what it shows, a function of the scores that there are (paths) that gives it]. */
export const TEMPLATES = [
  ["Costs", "What is spent, on which models, by whom", () => dashboard("Costs", "30d", [
    ["Cost", "number", [["cost"], ["total_tokens"], ["calls"]], null, 4],
    ["Cost by model", "stacked", [["cost"]], "model", 4],
    ["Cost by operation", "bar", [["cost"]], "op_name", 2],
    ["Cost by user", "table", [["cost"], ["total_tokens"], ["calls"]], "wb_user_id", 2],
    ["Tokens", "stacked", [["input_tokens"], ["output_tokens"]], null, 4]])],
  ["Latency", "How long calls take, and which are slow", () => dashboard("Latency", "7d", [
    ["Latency", "number", [["latency_ms", "p50"], ["latency_ms", "p95"], ["latency_ms", "max"]], null, 4],
    ["Latency over time", "line", [["latency_ms", "p50"], ["latency_ms", "p95"]], null, 4],
    ["p95 by operation", "bar", [["latency_ms", "p95"]], "op_name", 2],
    ["p95 by model", "line", [["latency_ms", "p95"]], "model", 2],
    ["How long calls take", "histogram", [["latency_ms"]], null, 4]])],
  ["Quality", "Errors and scores", (scores) => dashboard("Quality", "7d", [
    ["Errors", "number", [["calls"], ["errors"], ["error_share"]], null, 4],
    ["Error rate", "line", [["error_share"]], null, 2],
    ["Errors by operation", "stacked", [["errors"]], "op_name", 2],
    ...scores.slice(0, 6).map((field) => [scoreName(field) ?? field, "line", [[field, "avg"]], null, 2])])],
  ["Usage", "Calls, users and conversations", () => dashboard("Usage", "7d", [
    ["Calls by operation", "stacked", [["calls"]], "op_name", 4],
    ["Calls by user", "bar", [["calls"]], "wb_user_id", 2],
    ["Calls by model", "bar", [["calls"]], "model", 2],
    ["Longest conversations", "table", [["calls"], ["cost"], ["latency_ms", "avg"]], "thread_id", 4]])],
];

const dashboard = (name, period, charts) => ({ name, period, filter: null, query: null,
  charts: charts.map(([title, kind, measures, group, width]) => newChart({ title, kind, group_by: group, width,
    measures: measures.map(([field, aggregation = null]) => ({ field, aggregation })) })) });

/** Two selections {filter, query} as one: the calls that both select. */
export function joined(one, other) {
  const filter = { ...one?.filter };
  for (const [name, value] of Object.entries(other?.filter ?? {})) if (value !== null) filter[name] = both(filter[name], value);
  const parts = [one?.query, other?.query].map((query) => query?.$expr).filter(Boolean);
  return { filter, query: parts.length ? { $expr: parts.length === 1 ? parts[0] : { $and: parts } } : null };
}

const both = (one, other) => (Array.isArray(one) && Array.isArray(other) ? one.filter((value) => other.includes(value))
  : one || other);

/** What a chart asks for, over a range {from, to} in seconds, of the calls that `selection` selects. */
export function requestOf(chart, selection, { from, to }) {
  const { filter, query } = joined(selection, chart);
  const own = periodSeconds(chart.period);
  const ends = own === undefined ? { from, to } : { from: own === null ? null : Math.floor(Date.now() / 1000) - own, to: null };
  const isTimed = chart.kind === "line" || chart.kind === "stacked" || (chart.kind === "bar" && !chart.group_by);
  return {
    measures: chart.measures.map(({ field, aggregation = null }) => ({ field, aggregation })), group_by: chart.group_by || null,
    limit: chart.limit, filter, query, granularity: isTimed ? chart.granularity ?? null : 0,
    bins: chart.kind === "histogram" ? 30 : 0, timezone: Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC",
    start: ends.from == null ? null : new Date(ends.from * 1000).toISOString(),
    end: ends.to == null ? null : new Date(ends.to * 1000).toISOString(),
  };
}

/** The figures of a chart. */
export const readFigures = (body, abort) => postProject("/calls/aggregate", body, abort);

/**
 * The address of the calls behind a point of a chart: `measure` and `group` of its series (undefined: all), `from` and `to`
 * of its bucket in seconds, further conditions in `more`.
 */
export function callsLink(chart, selection, { measure, group, groups = [], from, to, more = [] }) {
  const { filter, query } = joined(selection, chart);
  const read = readFilters(filter, query);
  const conditions = [...read.conditions, ...(chart.group_by && group !== undefined ? ofGroup(chart.group_by, group, groups) : []),
    ...ofMeasure(measure), ...more];
  return link("/traces", { f: conditions.length ? JSON.stringify(conditions) : null, search: read.text || null,
    roots: read.roots ? "1" : "0", t: from == null && to == null ? "all" : null, t0: from, t1: to });
}

function ofMeasure(measure) {
  if (!measure || ["calls", "latency_ms", "error_share"].includes(measure.field)) return [];
  if (measure.field === "errors") return [["status", "is", "error"]];
  if (measure.field === "cost" || measure.field.endsWith("_tokens")) return [["summary.usage", "exists"]];
  return [[measure.field, "exists"]];
}

const SHORT = { op_name: "op", "summary.weave.status": "status" };

function ofGroup(path, group, groups) {
  if (group === null) return groups.filter((name) => name !== null).map((name) => opposite(ofGroup(path, name, [])[0]));
  if (path === "model") return [[`summary.usage.${group.replaceAll(".", "\\.")}`, "exists"]];
  if (group === "" && !/^(inputs|output|attributes|summary|feedback)\b/.test(path))
    return [["query", "is", { $eq: [{ $getField: path }, { $literal: null }] }]];
  return [group === "" ? [path, "missing"] : [SHORT[path] ?? path, "is", group]];
}

function opposite([field, operator, value]) {
  if (field === "query") return [field, operator, { $not: [value] }];
  return { exists: [field, "missing"], missing: [field, "exists"] }[operator] ?? [field, "not", value];
}

/** The fields of numbers, true and false that the newest scores have. */
export async function knownScores() {
  const { result } = await postProject("/feedback/query", { fields: ["feedback_type", "payload"], limit: 300,
    sort_by: [{ field: "created_at", direction: "desc" }] });
  const found = new Set();
  for (const { feedback_type: type, payload } of result) {
    if (type.startsWith("wandb.runnable.")) scorePaths(payload?.output, "", (path) => found.add(scoreField(type.slice(15), path)));
  }
  return [...found].sort();
}

function scorePaths(value, path, take, depth = 0) {
  if (typeof value === "number" || typeof value === "boolean") take(path);
  else if (value && typeof value === "object" && !Array.isArray(value) && depth < 4) {
    for (const [name, item] of Object.entries(value)) if (!name.includes(".")) scorePaths(item, path ? `${path}.${name}` : name, take,
      depth + 1);
  }
}
