// The runs that are compared: their colours, the baseline, and how to change the set.
import { h } from "../lib/dom.js";
import { ago, int, plural } from "../lib/format.js";
import { dialog } from "../lib/dialog.js";
import { button, icon } from "../lib/parts.js";
import { setQuery } from "../lib/router.js";
import { commonRows } from "../lib/comparison.js";
import { loadEvaluations, loadRuns, runLink, versionText } from "../lib/runs.js";

/** One card per run in the order of the address. */
export function runLegend({ runs, comparison }, ids) {
  const missing = ids.length - runs.length;
  const common = commonRows(
    comparison,
    runs.map((run) => run.id),
  );
  return h(
    "div.runlegend",
    { role: "group", "aria-label": "Runs" },
    runs.map((run, index) => card(run, index, ids)),
    button("Add a run", () => addRun(ids), { kind: "quiet", iconName: "add" }),
    h("span.grow"),
    missing > 0 && h("span.badge.warn", `${missing} not found`),
    common < comparison.rows.length &&
      h(
        "span.badge.warn",
        { title: "Only rows that both runs have are compared." },
        `${int(common)} of ${plural(comparison.rows.length, "row")} in all runs`,
      ),
  );
}

function card(run, index, ids) {
  const isBase = index === 0;
  const others = ids.filter((id) => id !== run.id);
  return h(
    "div.runcard",
    { style: { "--run": run.color } },
    h("span.runletter", { "aria-hidden": "true" }, run.letter),
    h(
      "div",
      h(
        "a.one-line",
        { href: runLink(run.id), title: run.model.name, dir: "auto" },
        run.model.name,
        " ",
        h("span.faint", versionText(run.model.version)),
      ),
      h("small.one-line", { title: run.evaluation.name }, isBase ? "baseline" : run.evaluation.name, `, ${ago(run.started)}`),
    ),
    h(
      "button.star",
      {
        type: "button",
        "aria-pressed": String(isBase),
        "aria-label": `Baseline: ${run.model.name}`,
        title: isBase ? "The baseline" : "Make this the baseline",
        onclick: () => setQuery({ runs: [run.id, ...others].join(",") }, false),
      },
      icon("scorer"),
    ),
    h(
      "button.star",
      {
        type: "button",
        "aria-label": `Remove ${run.model.name}`,
        title: "Remove",
        onclick: () => setQuery({ runs: others.join(",") }, false),
      },
      icon("close"),
    ),
  );
}

async function addRun(ids) {
  const about = await loadEvaluations();
  const runs = (await loadRuns({ limit: 100 }, about)).filter((run) => !ids.includes(run.id));
  const chosen = await dialog("Add a run", (close) =>
    runs.length
      ? h(
          "div.chooserun",
          runs.map((run) =>
            h(
              "button",
              { type: "button", onclick: () => close(run.id) },
              h("b.one-line", { dir: "auto" }, run.model.name),
              h("span.one-line.dim", run.evaluation.name),
              h("span.faint", ago(run.started)),
            ),
          ),
        )
      : h("p.dim", "This project has no other runs."),
  );
  if (chosen) setQuery({ runs: [...ids, chosen].join(",") }, false);
}
