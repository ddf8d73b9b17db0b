// Runs of an evaluation side by side: what changed, how certain that is, and in which rows.
import { computed, h } from "../lib/dom.js";
import { resource } from "../lib/data.js";
import { empty, tabs } from "../lib/panels.js";
import { header, loaded, title } from "../lib/parts.js";
import { link, query } from "../lib/router.js";
import { context, load } from "./compare_context.js";
import { examples } from "./compare_examples.js";
import { exportMenu } from "./compare_export.js";
import { runLegend } from "./compare_legend.js";
import { summary } from "./compare_summary.js";

/** The comparison of the runs that the address names; the first of them is the baseline. */
export default function Compare() {
  title("Compare runs");
  const ids = computed(() => [...new Set((query("runs") ?? "").split(",").filter(Boolean))]);
  const state = resource(() => (ids.value.length ? [...ids.value].sort() : null), load);
  const head = (extra, actions) =>
    header({ crumbs: [["Evaluations", link("/evaluations")]], title: "Compare runs", extra, actions });
  return h(
    "div.page",
    head(
      () => (ids.value.length ? h("span.count", ids.value.length) : null),
      () => (state.data.value ? exportMenu(context(state.data.value, ids.value)) : null),
    ),
    () => (ids.value.length ? loaded(state, (data) => comparison(data, ids))() : nothing()),
  );
}

function comparison(data, ids) {
  return [
    () => runLegend(context(data, ids.value), ids.value),
    () => {
      const found = context(data, ids.value);
      if (!found.runs.length) return nothing();
      const [list, panel] = tabs("Comparison", [
        ["summary", "Summary", () => summary(found)],
        ["examples", `Examples ${found.comparison.rows.length.toLocaleString("en")}`, () => examples(found)],
      ]);
      panel.classList.add("comparepanel");
      return [h("div.comparetabs", list), panel];
    },
  ];
}

function nothing() {
  return empty({
    title: "Choose runs to compare",
    text: "Select two or more runs in the list of evaluations and press Compare. The first one is the " +
      "baseline. You can also compare two runs from a shell:",
    code: `heddle eval compare RUN BASELINE --server ${location.origin} --project ` +
      `${decodeURIComponent(link("").split("/weave")[0].slice(1))}`,
    action: h("a.button.primary", { href: link("/evaluations") }, "All evaluation runs"),
  });
}
