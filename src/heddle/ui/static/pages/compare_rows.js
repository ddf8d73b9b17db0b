// One row of the example table: input, expected, and what each run made of it.
import { h } from "../lib/dom.js";
import { cut, duration, int, plural } from "../lib/format.js";
import { query, setBeside } from "../lib/router.js";
import { gain, splitRow } from "../lib/comparison.js";
import { valueLine } from "../lib/line.js";
import { diffText } from "../lib/textdiff.js";
import { valueText } from "../lib/values.js";
import { writtenChange } from "../lib/runs.js";
import { scoreChips } from "../lib/scores.js";
import { lessIsBetter } from "../lib/statistics.js";

const MOST = 600;

/** The element of a row; its content comes when it is there. */
export function exampleRow({ item, index, content, found, differs }) {
  const digest = item.peek().digest;
  const row = content(digest);
  const parts = () => splitRow(row.value?.raw_data_row);
  const waiting = (value) =>
    row.value === null ? h("span.waiting") : row.value.problem ? h("span.worse", row.value.problem) : value();
  const open = (event) => !event.target.closest("a,button") && setBeside("row", { row: digest, at: digest });
  return h(
    "div.examplerow",
    {
      role: "row",
      "aria-rowindex": () => index.value + 1,
      onclick: open,
      class: () => (query("at") === digest || query("row") === digest ? "active" : ""),
    },
    h(
      "div.examplecell",
      { role: "cell" },
      h(
        "button.plainbutton",
        { type: "button", dir: "auto", onclick: () => setBeside("row", { row: digest, at: digest }) },
        h("span.hidden-text", () => `Open example ${index.value + 1}: `),
        h("small.rownumber", { title: "Row of the dataset" }, () => int(found.comparison.index(item.value.row) + 1), " "),
        () => waiting(() => cell(parts().input)),
      ),
    ),
    h("div.examplecell", { role: "cell", dir: "auto" }, () =>
      waiting(() => parts().expected === undefined ? h("span.faint", "–") : cell(parts().expected)),
    ),
    found.runs.map((run) =>
      h("div.examplecell", { role: "cell" }, () =>
        waiting(() => answer({ row: row.value, run, found, place: item.value.row, differs })),
      ),
    ),
  );
}

/** A value in at most some lines. */
const cell = (value) => (value === "" || value === null || value === undefined ? h("span.faint", "empty") : valueLine(value, { clamp: true }));

/** What a run answered: the text (or how it differs), its scores and its change. */
function answer({ row, run, found, place, differs }) {
  const trials = trialsOf(row, run.id);
  if (!trials.length) return h("span.faint", "not in this run");
  const base = differs() && run.id !== found.baseline ? trialsOf(row, found.baseline)[0] : null;
  const change = run.id === found.baseline ? null : gain(found.comparison, found.measure(), found.baseline, run.id, place);
  return [
    h(
      "div.examplemarks",
      change ? changeBadge(found.measure(), change) : null,
      scoreChips(trials[0].scores, 2),
      trials.length > 1 && h("span.faint", plural(trials.length, "trial")),
      h("span.faint", duration(trials[0].model_latency_seconds)),
    ),
    h(
      "div.clamp",
      { dir: "auto" },
      trials[0].model_output === null && !Object.keys(trials[0].scores ?? {}).length
        ? h("span.worse", "failed")
        : base
          ? () => diffText(cut(valueText(base.model_output), MOST), cut(valueText(trials[0].model_output), MOST))
          : cell(trials[0].model_output),
    ),
  ];
}

/** How much better or worse a row got. */
export function changeBadge(name, change) {
  const shown = lessIsBetter(name) ? -change : change;
  return h(
    "span.badge",
    { class: change < 0 ? "error" : "good", title: change < 0 ? "worse than the baseline" : "better than the baseline" },
    writtenChange(name, shown),
  );
}

/** The trials of a run in a row of results. */
export const trialsOf = (row, run) => row?.evaluations?.find(({ evaluation_call_id: id }) => id === run)?.trials ?? [];
