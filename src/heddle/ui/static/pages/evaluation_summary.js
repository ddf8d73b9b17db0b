// What a run came to: figures, how its scores are spread, what it is made of.
import { h } from "../lib/dom.js";
import { bars } from "../lib/chart.js";
import { duration, int, when } from "../lib/format.js";
import { card, codeBlock, facts, refLink, tile } from "../lib/panels.js";
import { failure, skeleton } from "../lib/parts.js";
import { progressBar } from "../lib/progress.js";
import { link, path, setQuery } from "../lib/router.js";
import { datasetLink, measureLabel, runLink, versionText, written } from "../lib/runs.js";
import { isScore, lessIsBetter, mean, measuresInOrder } from "../lib/statistics.js";
import { gateCommand } from "./evaluation_actions.js";

const BINS = 10;

/** The summary of a run, live while it runs. */
export function summary({ run, totals, values, progress }) {
  const names = () => measuresInOrder(Object.keys(totals()?.means ?? {}));
  return h(
    "div.scroll",
    { tabindex: 0, role: "region", "aria-label": "Summary" },
    () =>
      run.status === "running"
        ? h("section.card.runningcard", { "aria-label": "Progress" }, h("b", "Running"), progressBar(progress()))
        : null,
    run.problem && card("Why it failed", null, h("p.problem-card", { dir: "auto" }, run.problem)),
    () =>
      values.error.value
        ? failure(values.error.value, values.reload)
        : values.data.value === null
          ? skeleton(3)
          : tiles(totals()),
    () =>
      h(
        "div.distributions",
        names()
          .filter(isScore)
          .map((name) => distribution(name, totals()?.values?.[name] ?? [])),
      ),
    card("About this run", null, about(run)),
    card("Gate in CI", h("span", "Fails a job when a new run is surely worse than this one"), codeBlock(gateCommand(run))),
  );
}

function tiles(totals) {
  if (!totals) return null;
  const { means, rows, trials } = totals;
  const failed = means.error_share ?? 0;
  return h(
    "div.tiles",
    tile("Score", written("score", means.score) || "–", "mean of the scorers"),
    tile("Rows", int(rows), trials === rows ? "one answer each" : `${int(trials)} answers`),
    tile("Errors", written("error_share", failed), failed ? "answers that failed" : "every answer came"),
    tile("Latency", written("latency", means.latency) || "–", "mean per answer"),
    tile("Tokens", written("tokens", means.tokens) || "–", "mean per answer"),
    tile("Cost", written("cost", means.cost) || "–", means.cost === undefined ? "no price is known" : "mean per answer"),
  );
}

/** How the values of a measure are spread over the rows: two bars for what is 0 or 1, ten for numbers. */
function distribution(name, column) {
  const known = column.filter((value) => value !== null);
  const isTruth = !lessIsBetter(name) && known.every((value) => value === 0 || value === 1);
  const bins = isTruth ? truthBins(known) : numberBins(name, known);
  const pick = () => setQuery({ tab: "predictions", measure: name, order: "low" }, false);
  return card(
    measureLabel(name),
    h("b", written(name, mean(known))),
    bars({
      bins: () => bins,
      label: `How ${measureLabel(name)} is spread over the rows`,
      height: 130,
      formatX: (value) => String(Number(value.toPrecision(2))),
      onpick: pick,
    }),
  );
}

const truthBins = (known) => [
  { from: 0, text: "0", count: known.filter((value) => value === 0).length, color: "var(--error)" },
  { from: 1, text: "1", count: known.filter((value) => value === 1).length, color: "var(--ok)" },
];

function numberBins(name, known) {
  const inUnit = !lessIsBetter(name) && known.every((value) => value >= 0 && value <= 1);
  const [low, high] = inUnit ? [0, 1] : [Math.min(...known), Math.max(...known)];
  const step = (high - low) / BINS || 1;
  const bins = Array.from({ length: BINS }, (_, index) => ({ from: low + index * step, to: low + (index + 1) * step, count: 0 }));
  for (const value of known) bins[Math.min(BINS - 1, Math.floor((value - low) / step))].count++;
  return bins;
}

function about(run) {
  return facts([
    [
      "Evaluation",
      run.evaluation.ref
        ? refLink(run.evaluation.ref, `${run.evaluation.name} ${versionText(run.evaluation.version)}`)
        : run.evaluation.name,
    ],
    [
      "Model",
      run.model.ref.startsWith("weave:")
        ? refLink(run.model.ref, `${run.model.name} ${versionText(run.model.version)}`)
        : h("a.ref", { href: link("/playground", { model: run.model.ref || run.model.name }),
          title: "Try it in the playground" }, run.model.name),
    ],
    ["Dataset", datasetLink(run)],
    ["Started", when(run.started)],
    ["Took", run.seconds === null ? "" : duration(run.seconds)],
    ["By", run.user],
    ["Answers of", run.source && h("a.ref", { href: runLink(run.source) }, "another run")],
    ["Trace", h("a.ref", { href: link(path`/traces/${run.trace}`) }, "all its calls")],
    ["Run", h("span.mono", run.id)],
  ]);
}
