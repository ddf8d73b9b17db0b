// One evaluation run: how far it is, what it came to, and every prediction.
import { computed, effect, h } from "../lib/dom.js";
import { resource } from "../lib/data.js";
import { int } from "../lib/format.js";
import { empty, stat, tabs } from "../lib/panels.js";
import { dot, failure, header, skeleton, title } from "../lib/parts.js";
import { followRuns } from "../lib/progress.js";
import { link, query } from "../lib/router.js";
import { comparisonOf } from "../lib/comparison.js";
import { loadEvaluations, loadRuns, loadValues, measureLabel, versionText, written } from "../lib/runs.js";
import { firstMeasure, measuresInOrder } from "../lib/statistics.js";
import { examples } from "./compare_examples.js";
import { context } from "./compare_context.js";
import { actions } from "./evaluation_actions.js";
import { summary } from "./evaluation_summary.js";

const WORDS = { success: "done", error: "failed", running: "running" };

/** The page of a run. */
export default function EvaluationRun({ run: id }) {
  title("Evaluation run");
  const state = resource(() => ({ id }), load);
  const values = resource(
    () => ({ id }),
    (_, abort) => loadValues([id], abort),
  );
  const run = () => state.data.value?.run ?? null;
  const progress = followRuns(
    () => (run()?.status === "running" ? [id] : []),
    () => {
      state.reload();
      values.reload();
    },
  );
  const done = computed(() => progress.value[id]?.completed_rows ?? null);
  let before = null;
  effect(() => {
    if (before !== null && done.value !== null && done.value !== before) values.reload();
    before = done.value ?? before;
  });
  effect(() => {
    if (run()) title(`${run().model.name}, ${run().evaluation.name}`);
  });
  const totals = () => values.data.value?.runs[0] ?? null;
  return h(
    "div.page",
    () => head(run(), totals, state, values),
    () =>
      state.error.value
        ? failure(state.error.value, state.reload)
        : state.data.value === null
          ? skeleton()
          : run()
            ? body({ run: run(), values, totals, progress: () => progress.value[id] })
            : missing(),
  );
}

async function load({ id }, abort) {
  const about = await loadEvaluations(abort);
  const [run] = await loadRuns({ filter: { call_ids: [id] }, limit: 1 }, about, abort);
  return { about, run: run ?? null };
}

function head(run, totals, state, values) {
  const crumbs = [["Evaluations", link("/evaluations")]];
  if (!run) return header({ crumbs, title: "Evaluation run" });
  crumbs.push([run.evaluation.name, link("/evaluations", { evaluation: run.evaluation.name })]);
  return header({
    crumbs,
    title: h("span", { dir: "auto", title: run.model.ref }, run.model.name, " ", h("span.faint", versionText(run.model.version))),
    extra: h("span.runstatus", dot(run.status), WORDS[run.status]),
    actions: [
      () => stat("Rows", int(totals()?.rows)),
      () => headline(totals()),
      actions(run, state, values),
    ],
  });
}

/** The measure that the address names, else the first score. */
function headline(totals) {
  if (!totals) return null;
  const names = measuresInOrder(Object.keys(totals.means));
  const name = names.includes(query("measure")) ? query("measure") : firstMeasure(names);
  return name && stat(measureLabel(name), written(name, totals.means[name]));
}

function body({ run, values, totals, progress }) {
  const rows = computed(() => values.data.value?.rows.length ?? 0);
  const found = () => context({ runs: new Map([[run.id, run]]), comparison: comparisonOf(values.data.peek()) }, [run.id]);
  const predictions = () => {
    if (values.error.value) return failure(values.error.value, values.reload);
    if (values.data.value === null) return skeleton();
    return rows.value
      ? examples(found())
      : empty({
          title: "No rows answered yet",
          text: run.status === "running" ? "Rows appear here as they finish." : "The run ended before any row was answered.",
        });
  };
  const [list, panel] = tabs("Run", [
    ["summary", "Summary", () => summary({ run, totals, values, progress })],
    ["predictions", h("span", "Predictions ", () => int(rows.value)), () => predictions],
  ]);
  panel.classList.add("comparepanel");
  return [h("div.comparetabs", list), panel];
}

const missing = () =>
  empty({
    title: "Run not found",
    text: "It may have been deleted, or belong to another project.",
    action: h("a.button", { href: link("/evaluations") }, "All evaluation runs"),
  });
