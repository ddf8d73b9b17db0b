// What can be done with a run: compare it, run it again, end it, delete it, hold it as a gate in CI.
import { isScore, lessIsBetter } from "../lib/statistics.js";
import { attempt, confirm, dialog, menu } from "../lib/dialog.js";
import { get, lines, post, postProject, send } from "../lib/data.js";
import { h } from "../lib/dom.js";
import { codeBlock, field } from "../lib/panels.js";
import { button } from "../lib/parts.js";
import { go, link, loadStyle, path, projectId } from "../lib/router.js";
import { baselineOf, refOf, runLink } from "../lib/runs.js";
import { kindOfScorer, runsHere } from "../lib/scorerkinds.js";

const MOST_CONDITIONS = 6;

/** The buttons of a run's page. */
export function actions(run, state, values) {
  const again = () => {
    state.reload();
    values.reload();
  };
  const isRunning = run.status === "running";
  return [
    button("Compare", () => compare(run), { iconName: "chart" }),
    isRunning && run.isOfServer
      ? button("Cancel", () => cancel(run, again), { iconName: "stop", kind: "danger", needs: "write" })
      : button("Rerun", () => rerun(run), { iconName: "replay", kind: "primary", needs: "write" }),
    menu(
      null,
      [
        ["Score the answers again…", () => rescore(run), { iconName: "scorer", needs: "write" }],
        isRunning || run.isOfServer ? null : ["Train on these answers…", () => train(run, values), { iconName: "models", needs: "write" }],
        ["Gate in CI…", () => gate(run, measuresOf(values)), { iconName: "code" }],
        ["Open the trace", () => go(link(path`/traces/${run.trace}`)), { iconName: "calls" }],
        isRunning ? ["Finish run", () => finish(run, again), { iconName: "check", needs: "write" }] : null,
        ["Delete run", () => remove(run), { iconName: "trash", danger: true, needs: "delete" }],
      ],
      { label: "More", kind: "" },
    ),
  ];
}

async function compare(run) {
  const kept = baselineOf().peek();
  const others = await lines("/calls/stream_query", {
    filter: {
      op_names: ["Evaluation.evaluate", `weave:///${projectId()}/op/Evaluation.evaluate:*`],
      input_refs: run.evaluation.ref ? [run.evaluation.ref] : undefined,
    },
    columns: ["id"],
    sort_by: [{ field: "started_at", direction: "desc" }],
    limit: 2,
  });
  const other = kept && kept !== run.id ? kept : others.map(({ id }) => id).find((id) => id !== run.id);
  go(link("/evaluations/compare", { runs: [other, run.id].filter(Boolean).join(",") }));
}

const measuresOf = (values) => Object.keys(values.data.peek()?.runs[0]?.means ?? {});

async function train(run, values) {
  const [{ newJob }, found] = await Promise.all([
    import("./training_new.js"),
    get(`/_ui/api/training?${new URLSearchParams({ project: projectId() })}`),
    loadStyle("pages/training"),
  ]);
  const paths = measuresOf(values).filter(isScore).map((name) => `output.scores.${name}`);
  const job = await newJob(found.models, [], { run: run.id, paths });
  if (job) go(link(path`/training/${job}`));
}

async function cancel(run, again) {
  await attempt(() => postProject("/evaluations/cancel", { call_id: run.id }), "Cancelling; stored rows are kept");
  again();
}

async function rerun(run) {
  const { newRun } = await import("./evaluations_new.js");
  const { loadEvaluations } = await import("../lib/runs.js");
  newRun(await loadEvaluations(), null, {
    evaluation: run.evaluation.ref,
    name: run.evaluation.name,
    model: run.model.ref || run.model.name,
  });
}

async function finish(run, again) {
  if (
    !(await confirm(
      "Finish this run?",
      "Its rows are summarized and it counts as finished. Use this when the program that ran it has stopped.",
      { action: "Finish", danger: false },
    ))
  )
    return;
  await attempt(() => post(`/v2/${projectId()}/evaluation_runs/${encodeURIComponent(run.id)}/finish`, {}), "Run finished");
  again();
}

async function remove(run) {
  if (!(await confirm("Delete this run?", "Its calls are deleted too; feedback is kept. This cannot be undone."))) return;
  const done = await attempt(
    () => send("DELETE", `/v2/${projectId()}/evaluation_runs?evaluation_run_ids=${encodeURIComponent(run.id)}`),
    "Run deleted",
  );
  if (done) go(link("/evaluations"));
}

async function rescore(run) {
  const { objs } = await postProject("/objs/query", { filter: { base_object_classes: ["Scorer"], latest_only: true } });
  const usable = objs.filter(runsHere);
  const made = await dialog("Score the answers again", (close) => {
    const problem = h("p.problem", { role: "alert" });
    const boxes = usable.map((object) => h("input", { type: "checkbox", value: refOf(object) }));
    const submit = async (event) => {
      event.preventDefault();
      try {
        close(
          await postProject("/evaluations/rescore", {
            source_evaluation_run_id: run.id,
            scorer_refs: boxes.filter((box) => box.checked).map((box) => box.value),
          }),
        );
      } catch (error) {
        problem.textContent = error.message;
      }
    };
    return h(
      "form",
      { onsubmit: submit },
      h(
        "p.dim",
        usable.length
          ? "The stored answers are scored in a new run. The model is not asked again."
          : "No scorer runs on the server yet. Create one on the Scorers page.",
      ),
      h(
        "fieldset",
        usable.map((object, index) =>
          h(
            "label.checkline",
            boxes[index],
            " ",
            object.object_id,
            " ",
            h("span.faint", `${kindOfScorer(object)} v${object.version_index}`),
          ),
        ),
      ),
      problem,
      h(
        "div.actions",
        button("Cancel", () => close()),
        h("button.button.primary", { type: "submit", disabled: !usable.length }, "Score"),
      ),
    );
  });
  if (made) go(runLink(made.evaluation_run_id));
}

/** The conditions of the regression gate: each score surely worse, more answers that fail. */
export const gateConditions = (names) =>
  [
    ...names.filter(isScore).slice(0, MOST_CONDITIONS)
      .map((name) => (lessIsBetter(name) ? `low(${name}) > 0` : `high(${name}) < 0`)),
    "error_share > 0",
  ]
    .map((condition) => `--fail-if '${condition.replaceAll("'", "'\\''")}'`)
    .join(" ");

/** The command that fails a CI job when a new run is worse than this one by its measures. */
export function gateCommand(run, names) {
  return [
    `heddle eval run ${run.evaluation.name} \\`,
    `  --model ${run.model.ref || run.model.name} \\`,
    `  --baseline ${run.id} \\`,
    `  ${gateConditions(names)} --junit gate.xml \\`,
    `  --server ${location.origin} --project ${projectId()}`,
  ].join("\n");
}

const gate = (run, names) =>
  dialog(
    "Gate in CI",
    () => [
      h(
        "p",
        "This evaluates the model again on this server, compares it with this run row by row, and exits with 1 if it got significantly worse, so that CI can block the change.",
      ),
      codeBlock(gateCommand(run, names)),
      field("Exit codes", h("span.dim", "0: nothing got worse. 1: a regression. 2: nothing could be compared.")),
    ],
    { wide: true },
  );
