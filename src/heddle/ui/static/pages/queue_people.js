// Who labelled what in a queue, and how the labels are spread.
import { lineText } from "../lib/line.js";
import { h } from "../lib/dom.js";
import { postProject, resource } from "../lib/data.js";
import { ago, int, percent, plural } from "../lib/format.js";
import { card, empty } from "../lib/panels.js";
import { loaded, timeNode } from "../lib/parts.js";
import { path } from "../lib/router.js";
import { table } from "../lib/table.js";
import { optionText } from "./queue_fields.js";

const MOST = 10_000;

/** Counts per annotator, and the distribution of every field's labels. */
export function annotators(id, fields) {
  const state = resource(() => id, load);
  return loaded(state, ({ labels, items }) => {
    if (!labels.length && !items.some((item) => item.annotator_user_id)) {
      return empty({ title: "Nobody has started yet",
        text: "Progress per annotator and the distribution of labels appear here." });
    }
    return h("div.queuecards",
      h("div.wide", card("Annotators", null,
      h("div.tablebox", { tabindex: 0, role: "region", "aria-label": "Progress per annotator" }, peopleTable(labels, items)))),
      fields.map((field) => spread(field, labels)));
  });
}

async function load(id, abort) {
  const query = { $expr: { $eq: [{ $getField: "queue_id" }, { $literal: id }] } };
  const fields = ["id", "wb_user_id", "feedback_type", "created_at", "weave_ref", "payload"];
  const [{ result }, { items }] = await Promise.all([
    postProject("/feedback/query", { query, fields, limit: MOST }, abort),
    postProject(path`/annotation_queues/${id}/items/query`,
      { limit: MOST, filter: { annotation_states: ["in_progress", "completed", "skipped"] } }, abort),
  ]);
  return { labels: result, items };
}

function peopleTable(labels, items) {
  const people = [...new Set([...labels.map((row) => row.wb_user_id), ...items.map((item) => item.annotator_user_id)])]
    .filter(Boolean).sort();
  const count = (name, state) =>
    items.filter((item) => item.annotator_user_id === name && item.annotation_state === state).length;
  const rows = people.map((name) => {
    const own = labels.filter((row) => row.wb_user_id === name);
    return {
      name, labels: own.length, calls: new Set(own.map((row) => row.weave_ref)).size,
        last: own.reduce((last, row) => (row.created_at > last ? row.created_at : last), ""),
      completed: count(name, "completed"), skipped: count(name, "skipped"), open: count(name, "in_progress"),
    };
  });
  const columns = [
    { key: "name", label: "Annotator", render: (row) => row.name },
    ...[["completed", "Completed"], ["skipped", "Skipped"], ["open", "In progress"], ["labels", "Labels"],
      ["calls", "Calls labelled"]].map(([key, label]) => ({ key, label, number: true, render: (row) => int(row[key]) })),
    { key: "last", label: "Last label", number: true, render: (row) => timeNode(row.last, ago) },
  ];
  return table({ columns: () => columns, rows: () => rows, key: (row) => row.name, label: "Annotators", keyboard: false });
}

/** The labels of one field as bars, the most frequent first (a rating in its order). */
function spread(field, labels) {
  const values = labels.filter((row) => row.feedback_type === `wandb.annotation.${field.name}`)
    .flatMap((row) => row.payload?.value ?? []);
  const counts = new Map();
  for (const value of values) {
    const text = typeof value === "object" ? lineText(value, 60) : optionText(value);
    counts.set(text, (counts.get(text) ?? 0) + 1);
  }
  const order = new Map(field.options.map((option, index) => [optionText(option), index]));
  const bars = [...counts].sort((one, other) => (order.get(one[0]) ?? 99) - (order.get(other[0]) ?? 99)
    || other[1] - one[1]).slice(0, 12);
  const numbers = values.filter((value) => typeof value === "number");
  const mean = numbers.length
    ? `mean ${Number((numbers.reduce((sum, value) => sum + value, 0) / numbers.length).toPrecision(3))}, ` : "";
  return card(field.label, `${mean}${plural(values.length, "label")}`,
    bars.length ? h("ul.spread", bars.map(([text, count]) => h("li",
    h("span.one-line", { dir: "auto", title: text }, text),
      h("span.progress", { "aria-hidden": "true" }, h("i", { style: { width: `${(count / values.length) * 100}%` } })),
    h("span.number", `${int(count)} · ${percent(count / values.length, 0)}`)))) : h("p.dim", "No labels yet."));
}
