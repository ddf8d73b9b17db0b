// Evaluation runs as pages show them: what was evaluated, of which model, on which data, and what it came to.
import { h } from "./dom.js";
import { get, lines, postProject, stored } from "./data.js";
import { rounded } from "./exactjson.js";
import { duration, money, nameOf, number, parseRef, percent, secondsBetween } from "./format.js";
import { problemText } from "./problem.js";
import { link, path, projectId } from "./router.js";
import { isScore, lessIsBetter } from "./statistics.js";

const COLUMNS = [
  "id",
  "trace_id",
  "op_name",
  "display_name",
  "started_at",
  "ended_at",
  "inputs",
  "exception",
  "summary",
  "attributes",
  "wb_user_id",
];
const AT_ONCE = 50;

/** The filter that finds the calls of evaluation runs. */
export const runFilter = (extra = {}) => ({
  op_names: ["Evaluation.evaluate", `weave:///${projectId()}/op/Evaluation.evaluate:*`],
  ...extra,
});

/** Evaluations with their values, by ref, and which version of its name each object is. */
export async function loadEvaluations(abort) {
  const [evaluations, others] = await Promise.all([
    postProject("/objs/query", { filter: { base_object_classes: ["Evaluation"] } }, abort),
    postProject("/objs/query", { filter: { base_object_classes: ["Dataset", "Model", "Scorer"] }, metadata_only: true }, abort),
  ]);
  const versions = new Map([...evaluations.objs, ...others.objs].map((object) => [refOf(object), object.version_index]));
  const byRef = new Map(evaluations.objs.map((object) => [refOf(object), { ...object, ref: refOf(object) }]));
  return { byRef, versions, list: evaluations.objs.map((object) => byRef.get(refOf(object))), objects: others.objs };
}

/** The ref of an object of this project as /objs/query names it. */
export const refOf = (object) => `weave:///${projectId()}/object/${object.object_id}:${object.digest}`;

/** The runs that a filter and a page choose, newest first, as `run` shows them. */
export async function loadRuns({ filter = {}, limit = 200, offset = 0, query = undefined, withOutput = false }, about, abort) {
  const calls = await lines(
    "/calls/stream_query",
    {
      filter: runFilter(filter),
      columns: withOutput ? [...COLUMNS, "output"] : COLUMNS,
      sort_by: [{ field: "started_at", direction: "desc" }],
      limit,
      offset,
      query,
    },
    undefined,
    abort,
  );
  return calls.map((call) => runOf({ ...call, output: rounded(call.output) }, about));
}

/** A run from its call. */
export function runOf(call, about) {
  const ref = textOf(call.inputs?.self) || textOf(call.inputs?.this);
  const evaluation = about.byRef.get(ref);
  const data = evaluation?.val?.dataset ?? "";
  const model = call.inputs?.model;
  return {
    id: call.id,
    trace: call.trace_id,
    label: call.display_name,
    started: call.started_at,
    ended: call.ended_at,
    status: statusOf(call),
    problem: problemText(call.exception),
    unscored: Object.entries(call.summary?.unscored ?? {}).filter(([, one]) => Number.isInteger(one?.answers)),
    user: call.wb_user_id,
    seconds: secondsBetween(call.started_at, call.ended_at),
    evaluation: { ref, name: nameOf(ref) || call.display_name || "evaluation", version: about.versions.get(ref) },
    model: { ref: textOf(model), name: modelName(model), version: about.versions.get(textOf(model)) },
    dataset: { ref: textOf(data), name: nameOf(textOf(data)), version: about.versions.get(textOf(data)) },
    output: call.output ?? null,
    source: call.attributes?.weave?.source_evaluation_run_id ?? null,
    isOfServer: Boolean(call.attributes?._weave_eval_meta?.evaluate_model_worker),
  };
}

const textOf = (value) => (typeof value === "string" ? value : "");

/** What a person calls a model: its name in a ref, a served name, or the name inside a value. */
export function modelName(model) {
  if (typeof model === "string") return servedName(parseRef(model)?.name ?? model);
  return model?.name ?? model?._class_name ?? "model";
}

/** Adapters are known by addresses, and the command line calls what it publishes after them; people say the end of that. */
function servedName(name) {
  if (name.startsWith("wandb-artifact:///")) return name.slice(name.lastIndexOf("/") + 1);
  if (!name.startsWith("served-")) return name;
  return name.slice("served-".length).replace(`${projectId().replace("/", "_")}_`, "");
}

/** The dataset of a run, on its own page. */
export function datasetLink({ dataset }) {
  if (!dataset.ref) return h("span.faint", "inline");
  const found = parseRef(dataset.ref);
  const text = `${dataset.name} ${versionText(dataset.version)}`;
  if (found?.kind !== "object") return h("span", { title: dataset.ref }, text);
  const href = link(path`/datasets/${found.name}`, { v: found.digest }, `${found.entity}/${found.project}`);
  return h("a.ref", { href, title: dataset.ref, dir: "auto" }, text);
}

function statusOf(call) {
  const status = call.summary?.weave?.status;
  if (call.exception) return "error";
  return !call.ended_at ? "running" : status === "error" ? "error" : "success";
}

/** Rows, trials, errors and the figure of every measure, by run. */
export async function loadTotals(ids, abort) {
  const found = new Map();
  for (let start = 0; start < ids.length; start += AT_ONCE) {
    const answer = await get(valuesPath(ids.slice(start, start + AT_ONCE), "&columns=false"), abort);
    for (const run of answer.runs) found.set(run.id, withMeans(run));
  }
  return found;
}

/** Every measure of some runs by row. */
export async function loadValues(ids, abort) {
  const answer = await get(valuesPath(ids), abort);
  return { ...answer, runs: answer.runs.map(withMeans) };
}

const withMeans = (run) => ({
  ...run,
  means: Object.fromEntries(Object.entries(run.figures).map(([name, { value }]) => [name, value])),
});

/**
 * The range that a measure has in some runs (of `loadTotals` or `loadValues`): truths and shares from 0 to 1, others
 * from 0 or below to the highest.
 * @returns {[number, number]}
 */
export function scaleOf(name, runs) {
  const known = runs.map((run) => run?.figures?.[name]).filter(Boolean);
  const low = Math.min(0, ...known.map((figure) => figure.low));
  const high = Math.max(...known.map((figure) => figure.high), -Infinity);
  if (low >= 0 && high <= 1 && isScore(name) && !lessIsBetter(name)) return [0, 1];
  return [low, high > low ? high : low + 1];
}

/** Where a value lies in a range, from 0 to 1. */
export const shareOf = (value, [low, high]) => (value == null ? 0 : (value - low) / (high - low));

const valuesPath = (ids, more = "") =>
  `/_ui/api/evaluation_values/${projectId()}?runs=${ids.map(encodeURIComponent).join(",")}${more}`;

/** The run that others are compared with, kept in this browser per project. */
export const baselineOf = () => stored(`baseline.${projectId()}`, "");

/** The page of a run. */
export const runLink = (id, query = {}) => link(path`/evaluations/${id}`, query);

/** A measure's value as it is written: shares of truths in percent, latency as time, cost in dollars. */
export function written(name, value) {
  if (value == null) return "";
  if (name === "latency") return duration(value);
  if (name === "cost") return money(value);
  if (name === "tokens" || name.endsWith("_distance")) return number(Number(value.toPrecision(3)));
  if (name === "error_share") return percent(value);
  return Math.abs(value) <= 1 ? value.toFixed(3) : number(value);
}

/** A range for people: "0 to 5". */
export const writtenScale = (name, [low, high]) => `${plainly(name, low)} to ${plainly(name, high)}`;
const plainly = (name, value) => (Number.isInteger(value) ? String(value) : written(name, value));

/** A difference with its sign. */
export function writtenChange(name, value) {
  if (value == null) return "";
  const size = written(name, Math.abs(value));
  return Number(value.toPrecision(9)) === 0 ? `±${size}` : `${value > 0 ? "+" : "−"}${size}`;
}

/** What a measure is called. */
export const measureLabel = (name) => (name === "error_share" ? "errors" : name);

/** A version after a name. */
export const versionText = (version) => (version === undefined ? "" : `v${version}`);
