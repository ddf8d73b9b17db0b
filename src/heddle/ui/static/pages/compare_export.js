// The rows of a comparison from the server, a page at a time, and as a file.
import { post } from "../lib/data.js";
import { attempt, menu, toast } from "../lib/dialog.js";
import { plural } from "../lib/format.js";
import { projectId } from "../lib/router.js";
import { trialsOf } from "./compare_rows.js";
import { gateConditions } from "./evaluation_actions.js";

const BATCH = 200;

/** Rows with data and the trials of all runs about each, by the public interface, which knows rows by their content. */
export async function loadContents({ runs, comparison }, rows, abort) {
  const digests = [...new Set(rows.map(digestOf))];
  const query = { $expr: { $in: [{ $getField: "row_digest" }, digests.map((digest) => ({ $literal: digest }))] } };
  const answer = await post(
    `/v2/${projectId()}/eval_results/query`,
    {
      evaluation_call_ids: runs.map((run) => run.id),
      filters: [{ query }],
      include_raw_data_rows: true,
      resolve_row_refs: true,
      include_costs: true,
      limit: digests.length,
    },
    abort,
  );
  const byDigest = new Map(answer.rows.map((row) => [row.row_digest, row]));
  return rows
    .filter((row) => byDigest.has(digestOf(row)))
    .map((row) => {
      const found = byDigest.get(digestOf(row));
      const evaluations = found.evaluations.map((part) => {
        const own = comparison.byRun.get(part.evaluation_call_id)?.calls ?? {};
        const isOne = Object.keys(own).some((key) => digestOf(key) === digestOf(row));
        const trials = isOne ? part.trials.filter((trial) => own[row]?.includes(trial.predict_and_score_call_id))
          : row === digestOf(row) ? part.trials : [];
        return { ...part, trials };
      });
      return { ...found, row, evaluations };
    });
}

const digestOf = (row) => row.split("~")[0];

/** A menu that saves all rows. */
export function exportMenu(found) {
  return menu(
    "Export",
    [
      ["Rows as JSONL", () => save(found, "jsonl"), { iconName: "download" }],
      ["Rows as CSV", () => save(found, "csv"), { iconName: "download" }],
      ["Copy gate command", () => copyGate(found), { iconName: "copy", disabled: !found.others.length }],
    ],
    { iconName: "download" },
  );
}

async function copyGate({ baseline, others, comparison }) {
  const lines = others.map(
    (run) =>
      `heddle eval compare ${run.id} ${baseline} --server ${location.origin} --project ${projectId()} ${gateConditions(comparison.names)}`,
  );
  await navigator.clipboard?.writeText(lines.join("\n"));
  toast("Command copied");
}

async function save(found, kind) {
  const rows = found.comparison.rows;
  await attempt(async () => {
    const parts = kind === "csv" ? [csvLine(heading(found))] : [];
    for (let start = 0; start < rows.length; start += BATCH) {
      for (const row of await loadContents(found, rows.slice(start, start + BATCH))) {
        parts.push(kind === "csv" ? csvLine(cells(row, found)) : `${JSON.stringify(row)}\n`);
      }
    }
    offer(new Blob(parts, { type: kind === "csv" ? "text/csv" : "application/jsonl" }), `comparison.${kind}`);
  }, `${plural(rows.length, "row")} saved`);
}

function offer(blob, name) {
  const address = URL.createObjectURL(blob);
  const anchor = document.createElement("a");
  anchor.href = address;
  anchor.download = name;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

const scoreNames = (found) => found.comparison.names;

function heading(found) {
  return [
    "index",
    "row_digest",
    "row",
    ...found.runs.flatMap((run) => [`${run.letter} output`, ...scoreNames(found).map((name) => `${run.letter} ${name}`)]),
  ];
}

function cells(row, found) {
  const place = found.comparison.rows.indexOf(row.row);
  return [
    found.comparison.index(place),
    row.row_digest,
    row.raw_data_row,
    ...found.runs.flatMap((run) => [
      trialsOf(row, run.id)[0]?.model_output,
      ...scoreNames(found).map((name) => found.comparison.value(run.id, name, place)),
    ]),
  ];
}

/** A line of CSV; what a table program would take for a formula is made a text. */
function csvLine(values) {
  const text = (value) =>
    value === null || value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
  const quoted = (value) =>
    `"${text(value)
      .replace(/^[=+\-@\t\r](?![\d.]+$)/, "'$&")
      .replaceAll('"', '""')}"`;
  return `${values.map(quoted).join(",")}\r\n`;
}
