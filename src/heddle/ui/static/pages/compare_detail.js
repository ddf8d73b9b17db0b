// One example in full: the row, and every trial of every run with its scores and its trace.
import { h } from "../lib/dom.js";
import { drawer } from "../lib/dialog.js";
import { duration, int, money } from "../lib/format.js";
import { lineText } from "../lib/line.js";
import { card, facts } from "../lib/panels.js";
import { button } from "../lib/parts.js";
import { link, path, query, setQuery } from "../lib/router.js";
import { gain, splitRow } from "../lib/comparison.js";
import { leaves } from "../lib/scores.js";
import { diffView } from "../lib/textdiff.js";
import { valueView, modeSwitch } from "../lib/value.js";
import { valueText } from "../lib/values.js";
import { changeBadge, trialsOf } from "./compare_rows.js";

/** Open the drawer of a row; returns what closes it. */
export function openDetail({ digest, content, found, differs, close, rows }) {
  const row = content(digest);
  const place = () => rows.value.findIndex((item) => item.digest === digest);
  const step = (by) => {
    const next = rows.value[place() + by];
    if (next) setQuery({ row: next.digest, at: next.digest });
  };
  const bound = { j: () => step(1), k: () => step(-1), d: () => setQuery({ diff: differs() ? null : "1" }) };
  const onkeydown = (event) => {
    if (!bound[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    bound[event.key]();
  };
  const focus = (element) => queueMicrotask(() => element.focus({ preventScroll: true }));
  return drawer(
    "Example",
    () =>
      h(
        "div.detail",
        { tabindex: -1, onkeydown, ref: focus },
        h(
          "div.bar-of-steps",
          h("span.dim", () => (place() < 0 ? "" : `${int(place() + 1)} of ${int(rows.value.length)}`)),
          h("span.grow"),
          found.others.length > 0 &&
            h(
              "button.button",
              {
                type: "button",
                "aria-pressed": () => String(differs()),
                onclick: () => setQuery({ diff: differs() ? null : "1" }),
              },
              "Differences",
            ),
          button("Previous", () => step(-1), { disabled: place() <= 0 }),
          button("Next", () => step(1), { disabled: place() >= rows.value.length - 1 }),
        ),
        () =>
          row.value === null
            ? h("p.dim", "Loading…")
            : row.value.problem
              ? h("p.worse", row.value.problem)
              : body(row.value, found, differs),
      ),
    () => query("row") && close(),
  );
}

function body(row, found, differs) {
  const { input, expected } = splitRow(row.raw_data_row);
  return [
    card("Input", modeSwitch(), valueView(input)),
    expected === undefined ? null : card("Expected", null, valueView(expected)),
    found.runs.map((run) => runCard(row, run, found, differs)),
  ];
}

function runCard(row, run, found, differs) {
  const trials = trialsOf(row, run.id);
  const place = found.comparison.rows.indexOf(row.row);
  const change = run.id === found.baseline ? null : gain(found.comparison, found.measure(), found.baseline, run.id, place);
  const heading = h(
    "span.runhead",
    h("i", { style: { background: run.color } }),
    h("span", `${run.letter} ${run.model.name}`.trim()),
  );
  return card(
    heading,
    [change ? changeBadge(found.measure(), change) : null],
    trials.length
      ? trials.map((trial, index) =>
          trialPart(trial, {
            index,
            count: trials.length,
            base: trialsOf(row, found.baseline)[0],
            isBase: run.id === found.baseline,
            differs,
          }),
        )
      : h("p.dim", "This row is not in this run."),
  );
}

function trialPart(trial, { index, count, base, isBase, differs }) {
  const failed = trial.model_output === null && !Object.keys(trial.scores ?? {}).length;
  return h(
    "div.trial",
    count > 1 && h("h3", `Trial ${index + 1}`),
    () =>
      failed
        ? h("p.worse", "The answer failed.")
        : differs() && !isBase && base
          ? diffView(valueText(base.model_output), valueText(trial.model_output), {
              label: "Difference from the baseline",
              names: ["baseline", "this run"],
            })
          : valueView(trial.model_output),
    facts([
      ...leaves(trial.scores).map(([name, score]) => [
        name,
        score === true ? h("span.better", "true") : score === false ? h("span.worse", "false") : lineText(score, 300),
      ]),
      ["Latency", duration(trial.model_latency_seconds)],
      ["Tokens", trial.total_tokens === null ? "" : int(trial.total_tokens)],
      ["Cost", money(trial.total_cost)],
    ]),
    h(
      "div.traillinks",
      callLink(trial.predict_call_id ?? trial.predict_and_score_call_id, "Open the trace"),
      Object.entries(trial.scorer_call_ids ?? {}).map(([name, id]) => callLink(id, name)),
    ),
  );
}

function callLink(id, text) {
  return h("a.ref", { href: link(path`/calls/${id}`) }, text);
}
