// The columns of the list of runs, and the orders that they give.
import { h } from "../lib/dom.js";
import { ago, duration, exact, int, money, number, plural } from "../lib/format.js";
import { dot, icon } from "../lib/parts.js";
import { progressBar } from "../lib/progress.js";
import { query } from "../lib/router.js";
import { datasetLink, runLink, scaleOf, versionText } from "../lib/runs.js";
import { change, measureHeading, scoreBar } from "../lib/scores.js";
import { isScore } from "../lib/statistics.js";

const MOST_MEASURES = 4;
const WORDS = { success: "done", error: "failed", running: "running" };

/** The columns for the runs that are shown: what all have, and the measures that most of them have. */
export function runColumns({ totals, progress, baseline, star, rows }) {
  const means = (run) => totals()?.get(run.id)?.means ?? {};
  const base = () => totals()?.get(baseline.value)?.means;
  const isLike = (run) =>
    run.id !== baseline.value && rows().find(({ id }) => id === baseline.value)?.evaluation.name === run.evaluation.name;
  const scale = (name) => scaleOf(name, rows().map((run) => totals()?.get(run.id)));
  /** @returns {[number, number]} */
  const slowest = () => [0, Math.max(1, ...rows().map((run) => means(run).latency ?? 0))];
  return [
    { key: "star", label: h("span.hidden-text", "Baseline"), class: "staring", render: (run) => starButton(run, baseline, star) },
    { key: "model", label: "Model", sort: true, render: (run) => runName(run) },
    { key: "status", label: "Status", sort: true, render: (run) => status(run, progress) },
    ...(query("evaluation")
      ? []
      : [
          {
            key: "evaluation",
            label: "Evaluation",
            sort: true,
            render: (run) =>
              h(
                "span.evaluationcell",
                { title: run.evaluation.name, dir: "auto" },
                run.evaluation.name,
                " ",
                h("span.faint", versionText(run.evaluation.version)),
              ),
          },
        ]),
    {
      key: "dataset",
      label: "Dataset",
      sort: true,
      render: datasetLink,
    },
    { key: "rows", label: "Rows", number: true, sort: true, render: (run) => rowsOf(totals()?.get(run.id)) },
    {
      key: "errors",
      label: "Errors",
      title: "Answers that failed",
      number: true,
      sort: true,
      render: (run) => errorsOf(totals()?.get(run.id)),
    },
    ...measuresOf(rows(), means).map((name) => ({
      key: name,
      label: measureHeading(name),
      number: true,
      sort: true,
      render: (run) => scored(name, means(run), isLike(run) ? base() : null, scale(name)),
    })),
    {
      key: "latency",
      label: "Latency",
      title: "Mean seconds per answer",
      number: true,
      sort: true,
      render: (run) => (means(run).latency == null ? "" : scoreBar("latency", means(run).latency, { scale: slowest() })),
    },
    ...(rows().some((run) => means(run).tokens != null)
      ? [
          {
            key: "tokens",
            label: "Tokens",
            title: "Mean tokens per answer",
            number: true,
            sort: true,
            render: (run) => number(means(run).tokens),
          },
        ]
      : []),
    ...(rows().some((run) => means(run).cost != null)
      ? [
          {
            key: "cost",
            label: "Cost",
            title: "Mean cost per answer",
            number: true,
            sort: true,
            render: (run) => money(means(run).cost),
          },
        ]
      : []),
    {
      key: "started",
      label: "Started",
      number: true,
      sort: true,
      render: (run) =>
        h(
          "span",
          { title: `${exact(run.started)}${run.seconds == null ? "" : `, took ${duration(run.seconds)}`}` },
          ago(run.started),
        ),
    },
  ];
}

function starButton(run, baseline, star) {
  const isBase = () => baseline.value === run.id;
  return h(
    "button.star",
    {
      type: "button",
      "aria-pressed": () => String(isBase()),
      "aria-label": `Baseline: ${run.model.name}`,
      title: () => (isBase() ? "The baseline, which others are compared with" : "Make this the baseline"),
      onclick: () => star(run.id),
    },
    icon("scorer"),
  );
}

function runName(run) {
  return h(
    "span.runname",
    h("a", { href: runLink(run.id), title: `${run.model.name}\n${run.model.ref}`, dir: "auto" }, run.model.name),
    h("span.faint", versionText(run.model.version)),
  );
}

function status(run, progress) {
  if (run.status === "running") return () => progressBar(progress.value[run.id]);
  return h("span", { title: run.problem || null }, dot(run.status), " ", h("span.dim", WORDS[run.status]));
}

function rowsOf(totals) {
  if (!totals) return "";
  return h("span", { title: `${plural(totals.rows, "row")}, ${plural(totals.trials, "answer")}` }, int(totals.rows));
}

function errorsOf(totals) {
  if (!totals) return "";
  const title = `${int(totals.errors)} of ${plural(totals.trials, "answer")} failed`;
  return h("span", { title, class: totals.errors ? "worse" : "dim" }, int(totals.errors));
}

function scored(name, means, base, scale) {
  if (means[name] == null) return h("span.faint", "–");
  return h(
    "span.deltas",
    base?.[name] != null && h("small", change(name, means[name] - base[name])),
    scoreBar(name, means[name], { scale }),
  );
}

/** The scores that most of the runs have. */
function measuresOf(runs, means) {
  const counts = new Map();
  for (const run of runs) for (const name of Object.keys(means(run))) counts.set(name, (counts.get(name) ?? 0) + 1);
  return [...counts]
    .filter(([name]) => isScore(name))
    .sort((one, other) => other[1] - one[1])
    .slice(0, MOST_MEASURES)
    .map(([name]) => name)
    .sort();
}

const PLAIN = {
  model: (run) => run.model.name.toLowerCase(),
  evaluation: (run) => run.evaluation.name.toLowerCase(),
  dataset: (run) => run.dataset.name.toLowerCase(),
  status: (run) => run.status,
  started: (run) => run.started ?? "",
};

/** Runs in the order of a column; what has no value stands last. */
export function orderOf(runs, key, ascending, totals) {
  const value = PLAIN[key] ?? ((run) => (key === "rows" || key === "errors" ? totals?.get(run.id)?.[key] : totals?.get(run.id)?.means?.[key]) ?? null);
  const compare = (one, other) => {
    const [a, b] = [value(one), value(other)];
    if (a === null || b === null) return Number(a === null) - Number(b === null);
    return (a < b ? -1 : a > b ? 1 : 0) * (ascending ? 1 : -1);
  };
  return [...runs].sort(compare);
}
