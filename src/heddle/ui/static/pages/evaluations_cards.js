// Each evaluation with its runs: how its first measure went, from the oldest run to the newest.
import { computed, each, h } from "../lib/dom.js";
import { spark } from "../lib/chart.js";
import { plural } from "../lib/format.js";
import { query, setQuery } from "../lib/router.js";
import { measureLabel, written } from "../lib/runs.js";
import { firstMeasure, measuresInOrder } from "../lib/statistics.js";

const MOST = 40;

/** A row of evaluations to choose from; shown where there are two or more. */
export function evaluationCards(runs, totals) {
  const groups = computed(() => {
    const found = new Map();
    for (const run of runs()) found.set(run.evaluation.name, [...(found.get(run.evaluation.name) ?? []), run]);
    return [...found].slice(0, MOST).map(([name, listed]) => ({ name, runs: listed }));
  });
  return () => {
    if (groups.value.length < 2) return null;
    const row = h("div.evaluationcards", { role: "group", "aria-label": "Evaluations", tabindex: 0 });
    return each(
      row,
      () => groups.value,
      (group) => group.name,
      (held, first) => card(first.name, () => held.value.runs, totals),
    );
  };
}

function card(name, runs, totals) {
  const means = () => runs().map((run) => totals()?.get(run.id)?.means ?? {});
  const measure = computed(() => firstMeasure(measuresInOrder(means().flatMap(Object.keys))) ?? "");
  const scores = () => means().map((found) => found[measure.value] ?? null).reverse();
  const newest = () => scores().findLast((score) => score !== null);
  const isChosen = () => query("evaluation") === name;
  return h(
    "button.evaluationcard",
    {
      type: "button",
      title: name,
      "aria-pressed": () => String(isChosen()),
      onclick: () => setQuery({ evaluation: isChosen() ? null : name }),
    },
    h("b.one-line", { dir: "auto" }, name),
    h(
      "small",
      () =>
        `${plural(runs().length, "run")}${newest() == null ? "" : `, last ${measureLabel(measure.value)} ${written(measure.value, newest())}`}`,
    ),
    () =>
      scores().filter((score) => score !== null).length > 1
        ? spark(scores(), { width: 72, label: `${measureLabel(measure.value)} of ${name}, oldest to newest run` })
        : h("span"),
  );
}
