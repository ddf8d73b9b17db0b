// The summary of a run: totals, the distribution of its scores, its dataset and model.
import { h } from "../lib/dom.js";
import { bars, ticks } from "../lib/chart.js";
import { duration, int, plural } from "../lib/format.js";
import { callsLink } from "../lib/filters.js";
import { card, codeBlock, facts, refLink, tile } from "../lib/panels.js";
import { failure, skeleton, timeNode } from "../lib/parts.js";
import { progressBar } from "../lib/progress.js";
import { link, path } from "../lib/router.js";
import { datasetLink, measureLabel, runLink, versionText, written } from "../lib/runs.js";
import { isScore, lessIsBetter, measuresInOrder } from "../lib/statistics.js";
import { gateCommand } from "./evaluation_actions.js";

const BINS = 10;
const MOST_WHOLE = 15;

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
    run.unscored.length > 0 && unscoredCard(run.unscored),
    () =>
      values.error.value
        ? failure(values.error.value, values.reload)
        : values.data.value === null
          ? skeleton(3)
          : [tiles(totals(), run), summaryCard(totals())],
    () =>
      h(
        "div.distributions",
        names()
          .filter(isScore)
          .map((name) => distribution(name, totals())),
      ),
    card("About this run", null, about(run)),
    card("Gate in CI", h("span", "Fails a CI job when a new run is significantly worse than this one"), () => codeBlock(gateCommand(run, names()))),
  );
}

/** Which scorers gave answers no score, and why. */
const unscoredCard = (unscored) =>
  card("Answers without a score", null, unscored.map(([scorer, { answers, reason }]) =>
    h("p.problem-card", { dir: "auto" }, `${scorer}: ${answers === 1 ? "1 answer has" : `${plural(answers, "answer")} have`} no score. The first: ${reason}`)));

function tiles(totals, run) {
  if (!totals) return null;
  const { means, rows, trials, errors } = totals;
  return h(
    "div.tiles",
    tile("Rows", callsLink(int(rows), "The calls that answered and scored them", {}, { parent_id: run.id, op: ["contains", "predict"] }), trials === rows ? "one answer each" : plural(trials, "answer")),
    tile("Errors", errors ? h("a.plainlink", { href: runLink(run.id, { tab: "predictions", show: "failed" }) }, int(errors)) : "0", errors ? `of ${plural(trials, "answer")}; not included in scores` : "no answer failed"),
    tile("Latency", written("latency", means.latency) || "–", "mean per answer"),
    tile("Tokens", written("tokens", means.tokens) || "–", "mean per answer"),
    tile("Cost", written("cost", means.cost) || "–", means.cost === undefined ? "no known price" : "mean per answer"),
  );
}

/** What the SDK summed up, beside what the stored answers come to. */
function summaryCard(totals) {
  if (!totals) return null;
  const { figures, summary } = totals;
  const scores = measuresInOrder(Object.keys(figures)).filter(isScore);
  const others = Object.keys(summary).filter((name) => !scores.includes(name));
  if (!scores.length && !others.length) return null;
  const line = (name) =>
    h("tr", h("th", { scope: "row", dir: "auto" }, measureLabel(name)), h("td.number", ownText(name, figures[name])),
      h("td.number", statistics(name, summary[name])), h("td", agreement(figures[name], totals)));
  return card(
    "Summary",
    h("span", "From the stored answers, and as printed by the evaluating program"),
    h("div.tablebox", { tabindex: 0, role: "region", "aria-label": "Summary of the scores" },
      h("table.table.summarytable", { "aria-label": "Summary of the scores" },
        h("thead", h("tr", ["Measure", "Stored answers", "SDK", ""].map((text, index) =>
          h("th", { scope: "col", class: index === 1 || index === 2 ? "number" : "" }, text || h("span.hidden-text", "Agreement"))))),
        h("tbody", [...scores, ...others].map(line)))),
  );
}

function ownText(name, figure) {
  if (!figure) return h("span.faint", "–");
  const counted = figure.true === undefined ? `of ${int(figure.of)}` : `${int(figure.true)} of ${int(figure.of)} true`;
  return h("span", { title: String(figure.own) }, h("b", written(name, figure.own)), " ", h("span.dim", counted));
}

/** The statistics of the summary, in its own words. */
function statistics(name, summed) {
  if (!summed) return h("span.faint", "–");
  const text = (statistic, value) => (statistic === "true_count" ? int(value) : written(statistic ? name : "", value));
  return Object.entries(summed).map(([statistic, value], index) =>
    h("span", { title: String(value) }, index ? " · " : "", statistic && h("span.dim", statistic, " "), text(statistic, value)));
}

function agreement(figure, { errors }) {
  if (figure?.agrees === undefined) return null;
  if (!figure.agrees) return h("span.badge.error", { title: "The stored answers give a different value." }, "differs");
  return figure.of > figure.count
    ? h("span.dim", `equal; the SDK counts ${errors === 1 ? "the failed answer" : `the ${int(errors)} failed answers`} as not true`)
    : h("span.dim", "equal");
}

/** How the values of a measure are spread over the rows: two bars for what is 0 or 1, ten for numbers. */
function distribution(name, totals) {
  const known = (totals?.values?.[name] ?? []).filter((value) => value !== null);
  const isTruth = !lessIsBetter(name) && known.every((value) => value === 0 || value === 1);
  const bins = isTruth ? truthBins(known) : numberBins(name, known);
  const chart = bars({
    bins: () => bins,
    label: `Distribution of ${measureLabel(name)} over the rows`,
    height: 130,
    formatX: (value) => String(Number(value.toPrecision(4))),
  });
  const search = new URLSearchParams({ tab: "predictions", measure: name, order: "low" });
  return card(
    measureLabel(name),
    h("b", written(name, totals?.means[name])),
    h("a", { href: `?${search}`, title: "Open its rows, the lowest first", style: { display: "block" } }, chart),
  );
}

const truthBins = (known) => [
  { from: 0, text: "0", count: known.filter((value) => value === 0).length, color: "var(--error)" },
  { from: 1, text: "1", count: known.filter((value) => value === 1).length, color: "var(--ok)" },
];

function numberBins(name, known) {
  const inUnit = !lessIsBetter(name) && known.every((value) => value >= 0 && value <= 1);
  const [low, high] = inUnit ? [0, 1] : [Math.min(...known), Math.max(...known)];
  if (!inUnit && high - low <= MOST_WHOLE && known.every(Number.isInteger)) return wholeBins(known, low, high);
  const [first, second = first + 1] = ticks(low, high, BINS);
  const step = second - first;
  const from = Math.floor(low / step + 1e-9) * step;
  const count = Math.max(1, Math.ceil((high - from) / step - 1e-9));
  const bins = Array.from({ length: count }, (_, index) => ({ from: from + index * step, count: 0 }));
  for (const value of known) bins[Math.max(0, Math.min(count - 1, Math.floor((value - from) / step + 1e-9)))].count++;
  return bins;
}

const wholeBins = (known, low, high) =>
  Array.from({ length: high - low + 1 }, (_, index) => ({
    from: low + index,
    text: String(low + index),
    count: known.filter((value) => value === low + index).length,
  }));

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
    ["Started", timeNode(run.started)],
    ["Took", run.seconds === null ? "" : duration(run.seconds)],
    ["By", run.user],
    ["Answers of", run.source && h("a.ref", { href: runLink(run.source) }, "another run")],
    ["Trace", h("a.ref", { href: link(path`/traces/${run.trace}`) }, "all its calls")],
    ["Run", h("span.mono", run.id)],
  ]);
}
