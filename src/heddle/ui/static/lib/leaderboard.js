// Leaderboards as the SDK defines them: columns of an evaluation, a scorer and a path into the run's summary.
import { postProject } from "./data.js";
import { listOf, nameOf } from "./format.js";
import { loadEvaluations, loadRuns, loadTotals } from "./runs.js";

/** All leaderboards, the newest version of each. */
export async function loadLeaderboards(abort) {
  const { objs } = await postProject(
    "/objs/query",
    { filter: { base_object_classes: ["Leaderboard"], latest_only: true } },
    abort,
  );
  return objs.map((object) => ({
    name: object.object_id,
    version: object.version_index,
    created: object.created_at,
    digest: object.digest,
    ...described(object.val),
  }));
}

const described = (value) => ({
  label: value?.name || "",
  text: value?.description ?? "",
  columns: listOf(value?.columns).map((column) => ({
    evaluation: column?.evaluation_object_ref,
    scorer: column?.scorer_name,
    path: String(column?.summary_metric_path ?? ""),
    isLess: column?.should_minimize === true,
  })),
});

/** Models with their newest value in every column of a leaderboard. */
export async function loadStanding(columns, abort) {
  const about = await loadEvaluations(abort);
  const refs = [...new Set(columns.map((column) => column.evaluation))].filter(Boolean);
  const runs = refs.length ? await loadRuns({ filter: { input_refs: refs }, limit: 1000, withOutput: true }, about, abort) : [];
  const known = runs.filter((run) => refs.includes(run.evaluation.ref));
  const bare = known
    .filter((run) => run.output && columns.every((column) => inside(run.output, column) === undefined))
    .map((run) => run.id);
  const totals = bare.length ? await loadTotals(bare, abort) : new Map();
  const models = new Map();
  for (const run of known) {
    if (!run.output) continue;
    const key = run.model.ref || run.model.name;
    if (!models.has(key)) models.set(key, { key, model: run.model, runs: [], cells: columns.map(() => []) });
    const row = models.get(key);
    row.runs.push(run);
    columns.forEach((column, index) => {
      if (column.evaluation !== run.evaluation.ref) return;
      const value = inside(run.output, column) ?? totals.get(run.id)?.means?.[meanName(column)];
      if (typeof value === "number" || typeof value === "boolean") row.cells[index].push({ run, value: Number(value) });
    });
  }
  return [...models.values()];
}

/** The value of a column in the summary of a run, as the SDK reads it. */
function inside(output, column) {
  let value = output?.[column.scorer];
  for (const part of column.path ? column.path.split(".") : []) {
    if (value === null || typeof value !== "object") break;
    value = value[part];
  }
  return typeof value === "object" ? undefined : value;
}

/** What a column's path is called among the measures of rows: without the word that says how it was summed. */
const meanName = ({ scorer, path }) =>
  [scorer, ...path.split(".").filter((part) => part && part !== "mean" && part !== "true_fraction")].join(".");

/** What a column is called: its scorer and path, without the words that only say how it was summed. */
export function columnLabel(column) {
  const parts = column.path.split(".").filter((part) => part && part !== "mean" && part !== "true_fraction");
  return { small: nameOf(column.evaluation), text: [column.scorer, ...parts].join(".") };
}

/** The metrics of an evaluation to choose from, as its newest run has them: [{scorer, path, text}]. */
export async function metricsOf(evaluation, abort) {
  const about = await loadEvaluations(abort);
  const runs = await loadRuns({ filter: { input_refs: [evaluation] }, limit: 20, withOutput: true }, about, abort);
  const run = runs.find((entry) => entry.output);
  if (!run) return [];
  const found = Object.entries(run.output)
    .flatMap(([scorer, value]) =>
      numbersIn(value).map((path) => ({ scorer, path, text: [scorer, path].filter(Boolean).join(".") })),
    )
    .filter(({ path }) => !path.endsWith("_count") && path !== "");
  if (found.length) return found;
  const totals = await loadTotals([run.id], abort);
  return Object.keys(totals.get(run.id)?.means ?? {})
    .filter((name) => name.includes("."))
    .map((name) => ({ scorer: name.split(".")[0], path: `${name.split(".").slice(1).join(".")}.mean`, text: `${name}.mean` }));
}

function numbersIn(value, path = "") {
  if (typeof value === "number") return [path];
  if (value === null || typeof value !== "object" || Array.isArray(value)) return [];
  return Object.entries(value).flatMap(([key, item]) => numbersIn(item, path ? `${path}.${key}` : key));
}
