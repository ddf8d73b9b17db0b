// What the new answers came to against the recorded ones, with how sure each difference is.
import { computed, effect, h, onCleanup, signal } from "../lib/dom.js";
import { written, writtenChange } from "../lib/runs.js";
import { change, leaves, measureHeading } from "../lib/scores.js";
import { interval, measuresInOrder, paired, VERDICTS, verdict } from "../lib/statistics.js";

/** A table of measures over the rows that have both answers. */
export function measures(rows) {
  const columns = computed(() => columnsOf(rows().filter((row) => row.replay)));
  return () => {
    const found = columns.value;
    if (!found.names.length) return null;
    return h(
      "div.card",
      h(
        "div.tablebox",
        { tabindex: 0, role: "region", "aria-label": "Measures" },
        h(
          "table.table.replaymeasures",
          { "aria-label": "Measures" },
          h(
            "thead",
            h(
              "tr",
              ["Measure", "Recorded", "New", "Change", "95 % interval", "Chats"].map((text, index) =>
                h("th", { scope: "col", class: index ? "number" : "" }, text),
              ),
            ),
          ),
          h(
            "tbody",
            found.names.map((name) => measureRow(name, found.before[name], found.after[name])),
          ),
        ),
      ),
    );
  };
}

function measureRow(name, before, after) {
  const pair = paired(before, after);
  if (!pair.rows) return null;
  const held = signal({ range: null, sure: "" });
  const abort = new AbortController();
  effect(() => {
    interval(pair.differences, abort.signal).then((range) => {
      if (range) held.value = { range, sure: verdict(name, range) };
    });
  });
  onCleanup(() => abort.abort());
  return h(
    "tr",
    h("td", measureHeading(name)),
    h("td.number", written(name, pair.baseline)),
    h("td.number", written(name, pair.run)),
    h("td.number", () => change(name, pair.run - pair.baseline, held.value.sure)),
    h("td.number", () =>
      held.value.range
        ? h(
            "span.dim",
            { title: VERDICTS[held.value.sure] },
            held.value.sure === "same"
              ? "same in every chat"
              : `${writtenChange(name, held.value.range[0])} … ${writtenChange(name, held.value.range[1])}`,
          )
        : h("span.faint", "…"),
    ),
    h("td.number.dim", pair.rows),
  );
}

function columnsOf(rows) {
  const sides = { before: rows.map((row) => valuesOf(row.original)), after: rows.map((row) => valuesOf(row.replay)) };
  const names = measuresInOrder([...sides.before, ...sides.after].flatMap((values) => Object.keys(values)));
  const column = (side, name) => side.map((values) => values[name] ?? null);
  return {
    names,
    before: Object.fromEntries(names.map((name) => [name, column(sides.before, name)])),
    after: Object.fromEntries(names.map((name) => [name, column(sides.after, name)])),
  };
}

function valuesOf(answer) {
  const scores = leaves(answer.scores)
    .filter(([, value]) => typeof value === "boolean" || typeof value === "number")
    .map(([name, value]) => [name, Number(value)]);
  const own = [
    ["latency", answer.latency_ms == null ? null : answer.latency_ms / 1000],
    ["tokens", answer.total_tokens],
    ["cost", answer.total_cost],
    ["error_share", answer.status == null ? null : Number(answer.status === "error")],
  ];
  return Object.fromEntries([...scores, ...own].filter(([, value]) => value != null));
}
