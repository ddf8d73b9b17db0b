// What every part of a comparison needs: the runs in their order with their colours, and what they came to.
import { SERIES } from "../lib/chart.js";
import { comparisonOf } from "../lib/comparison.js";
import { query } from "../lib/router.js";
import { loadEvaluations, loadRuns, loadValues } from "../lib/runs.js";
import { firstMeasure } from "../lib/statistics.js";

/** The runs of some ids, and all their values. */
export async function load(ids, abort) {
  const [about, values] = await Promise.all([loadEvaluations(abort), loadValues(ids, abort)]);
  const runs = await loadRuns({ filter: { call_ids: ids }, limit: ids.length }, about, abort);
  return { runs: new Map(runs.map((run) => [run.id, run])), comparison: comparisonOf(values) };
}

/** The runs in their order, the first as baseline. */
export function context({ runs, comparison: found }, ids) {
  const listed = ids
    .filter((id) => runs.has(id))
    .map((id, index) => ({
      ...runs.get(id),
      color: SERIES[index % SERIES.length],
      letter: ids.length > 1 ? String.fromCharCode(65 + index) : "",
    }));
  const known = (name) => (found.names.includes(name) ? name : null);
  return {
    comparison: found,
    runs: listed,
    baseline: listed[0]?.id ?? "",
    others: listed.slice(1),
    measure: () => known(query("measure")) ?? firstMeasure(found.names) ?? "",
  };
}
