// What each run came to by each measure, with the difference to the baseline and how sure it is; bars, radar, scatter.
import { computed, h, untrack } from "../lib/dom.js";
import { legend } from "../lib/chart.js";
import { plural } from "../lib/format.js";
import { scatter } from "../lib/scatter.js";
import { card } from "../lib/panels.js";
import { segments } from "../lib/parts.js";
import { query, setQuery } from "../lib/router.js";
import { differences } from "../lib/comparison.js";
import { groupedBars, radar } from "../lib/radar.js";
import { measureLabel, written, writtenChange } from "../lib/runs.js";
import { change, measureHeading, scoreBar } from "../lib/scores.js";
import { VERDICTS } from "../lib/statistics.js";

const MOST_AXES = 12;
const MOST_POINTS = 2000;

/** The summary of a comparison. */
export const summary = (found) => untrack(() => made(found));

function made(found) {
  return h(
    "div.scroll",
    { tabindex: 0, role: "region", "aria-label": "Summary" },
    measureTable(found),
    h("div.columns", shapes(found), found.others.length ? scatterCard(found) : null),
  );
}

function measureTable({ comparison, runs, baseline, others, measure }) {
  const changes = differences(
    comparison,
    baseline,
    others.map((run) => run.id),
  );
  const pick = (name) => setQuery({ measure: name });
  const row = (name) => {
    const scale = comparison.scale(name);
    return h(
      "tr",
      { class: () => (measure() === name ? "active" : ""), onclick: (event) => !event.target.closest("button,a") && pick(name) },
      h(
        "th",
        { scope: "row" },
        h(
          "button.plainbutton",
          { type: "button", onclick: () => pick(name), "aria-pressed": () => String(measure() === name) },
          measureHeading(name),
        ),
      ),
      runs.map((run) =>
        h(
          "td.number",
          h(
            "div.measured",
            run.id === baseline ? null : () => changed(name, changes.get(`${run.id} ${name}`).value),
            scoreBar(name, comparison.mean(run.id, name), { scale, color: run.color }),
          ),
        ),
      ),
    );
  };
  return card(
    "Measures",
    others.length ? h("span", "Change from the baseline with its 95 % interval (paired bootstrap over rows)") : null,
    h(
      "div.tablebox",
      { tabindex: 0, role: "region", "aria-label": "Measures" },
      h(
        "table.table.measures",
        { "aria-label": "Measures by run" },
        h(
          "thead",
          h(
            "tr",
            h("th", { scope: "col" }, "Measure"),
            runs.map((run) =>
              h(
                "th.number",
                { scope: "col" },
                h(
                  "span.runhead",
                  h("i", { style: { background: run.color } }),
                  h("span.one-line", { title: run.model.name }, `${run.letter} ${run.model.name}`),
                ),
              ),
            ),
          ),
        ),
        h("tbody", comparison.names.map(row)),
      ),
    ),
  );
}

function changed(name, { change: value, interval, sure, rows }) {
  if (value === null) return null;
  const range =
    interval && sure === "same"
      ? "same in every row"
      : interval && `${writtenChange(name, interval[0])} … ${writtenChange(name, interval[1])}`;
  return h(
    "span.changed",
    { title: interval ? `${VERDICTS[sure]} ${plural(rows, "row")} in both.` : `${plural(rows, "row")} in both` },
    sure === "better" || sure === "worse" ? h("span.badge", { class: sure === "worse" ? "error" : "good" }, sure) : null,
    change(name, value, sure),
    h("small.faint", range ?? "…"),
  );
}

function shapes({ comparison, runs }) {
  const axes = comparison.scores
    .slice(0, MOST_AXES)
    .map((name) => ({ name, text: measureLabel(name), scale: comparison.scale(name) }));
  const series = runs.map((run) => ({
    label: run.model.name,
    color: run.color,
    values: Object.fromEntries(axes.map(({ name }) => [name, comparison.mean(run.id, name)])),
  }));
  const isRadar = computed(() => query("shape") === "radar" && axes.length > 2);
  const control =
    axes.length > 2
      ? segments(
          "Shape",
          [
            ["", "Bars"],
            ["radar", "Radar"],
          ],
          () => query("shape") ?? "",
          (shape) => setQuery({ shape }),
        )
      : null;
  return card("Scores", control, h("div.legend", legend(series.map(({ color, label }) => [color, label]))), () =>
    axes.length === 0
      ? h("p.dim", "No scorer returned a number.")
      : isRadar.value
        ? radar({ axes, series, label: "Mean scores by run" })
        : groupedBars({ axes, series, label: "Mean scores by run", format: written }),
  );
}

function scatterCard({ comparison, runs, baseline, others, measure }) {
  const find = (id, fallback) => runs.find((run) => run.id === id) ?? fallback;
  const across = () => find(query("x"), find(baseline, runs[0]));
  const up = () => find(query("y"), others[0]);
  const pair = computed(() => `${across().id} ${measureLabel(measure())}`);
  const points = computed(() => {
    const [xs, ys] = [comparison.column(across().id, measure()), comparison.column(up().id, measure())];
    if (!xs || !ys) return [];
    const found = [];
    for (let row = 0; row < xs.length && found.length < MOST_POINTS; row++) {
      if (xs[row] === null || ys[row] === null) continue;
      found.push({
        x: xs[row],
        y: ys[row],
        key: comparison.rows[row],
        label: `${written(measure(), xs[row])} → ${written(measure(), ys[row])}`,
        color: up().color,
      });
    }
    return found;
  });
  const choose = (label, name, current) =>
    h(
      "label.inlinefield",
      h("span", label),
      h(
        "select",
        {
          onchange: (event) => setQuery({ [name]: event.target.value }),
        },
        runs.map((run) => h("option", { value: run.id, selected: run.id === current().id }, `${run.letter} ${run.model.name}`)),
      ),
    );
  const filter = ({ x, y }) =>
    setQuery(
      {
        tab: "examples",
        show: "all",
        area: [across().id, up().id, ...[...x, ...y].map((value) => Number(value.toPrecision(6)))].join(","),
        row: null,
      },
      false,
    );
  return card(
    () => `Row by row: ${measureLabel(measure())}`,
    [choose("Across", "x", across), choose("Up", "y", up)],
    () => {
      const [first, shown] = pair.value.split(" ");
      return scatter({
        points: () => points.value,
        label: `${shown} of two runs, one point per row`,
        labelX: find(first, runs[0]).model.name,
        labelY: "",
        height: 300,
        diagonal: true,
        onpick: (digest) => setQuery({ tab: "examples", show: "all", row: digest }, false),
        onselect: filter,
      });
    },
    h(
      "p.dim",
      () =>
        `Drag over points to list their rows. Points below the diagonal got lower.${points.value.length === MOST_POINTS ? ` The first ${MOST_POINTS.toLocaleString("en")} rows are shown.` : ""}`,
    ),
  );
}
