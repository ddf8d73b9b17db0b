// Publishing edits as a new version: only what changed is sent, where the table's shape allows it.
import { h, signal } from "../lib/dom.js";
import { dialog } from "../lib/dialog.js";
import { post, postProject, storeObject } from "../lib/data.js";
import { cut, int, parseRef, plural } from "../lib/format.js";
import { valueLine } from "../lib/line.js";
import { button } from "../lib/parts.js";
import { projectId } from "../lib/router.js";
import { same } from "../lib/rowdiff.js";
import { allRows, queryRows } from "./dataset_rows.js";
import { outputRow, summary } from "./dataset_sheet.js";

const STEPS_AT_ONCE = 2000;
const ROWS_AT_ONCE = 2000;
const MOST_STEPS = 20_000;
const MOST_COMPARED = 400;

/** The dataset's version that a name (`latest`, `v3`, a digest, an alias) means, with its tags. */
export const readVersion = (name, version, abort = undefined) =>
  postProject("/obj/read", { object_id: name, digest: version, include_tags_and_aliases: true }, abort)
    .then((answer) => answer.obj);

/** The digest of the table that holds a version's rows, or null. */
export function tableOf(version) {
  const found = parseRef(version.val?.rows);
  return found?.kind === "table" ? found.name : null;
}

/**
 * Store a table; rows come in slices, each row either {digest} of a stored one or {row}.
 * @param {AsyncIterable<any[]>|Iterable<any[]>} slices
 * @param {(done: number) => void} [onprogress]
 */
export async function writeTable(slices, onprogress = () => {}) {
  const digests = [];
  for await (const slice of slices) {
    for (let from = 0; from < slice.length; from += ROWS_AT_ONCE) {
      const part = slice.slice(from, from + ROWS_AT_ONCE);
      const fresh = part.filter((item) => item.row).map((item) => item.row);
      const stored = fresh.length
        ? (await post("/table/create", { table: { project_id: projectId(), rows: fresh } })).row_digests : [];
      let next = 0;
      for (const item of part) digests.push(item.digest ?? stored[next++]);
      onprogress(digests.length);
    }
  }
  return (await postProject("/table/create_from_digests", { row_digests: digests })).digest;
}

/** The steps of /table/update for edits, from the last row to the first, so that places stay as they were. */
export function updateSteps(edits, count) {
  const places = [...new Set([...edits.changes.keys(), ...edits.removed, ...edits.groups.keys()])]
    .sort((one, other) => other - one);
  const steps = [];
  for (const place of places) {
    if (place < count && edits.removed.has(place)) steps.push({ pop: { index: place } });
    else if (edits.changes.has(place)) {
      steps.push({ pop: { index: place } }, { insert: { index: place, row: outputRow(edits.changes.get(place), edits) } });
    }
    (edits.groups.get(place) ?? []).forEach((row, offset) => {
      const output = outputRow(row, edits);
      steps.push(place === count ? { append: { row: output } } : { insert: { index: place + offset, row: output } });
    });
  }
  return steps;
}

async function* rewritten(edits, base, count) {
  const { changes, removed, groups } = edits;
  const rewrites = summary(edits).rewrites;
  const added = (place) => (groups.get(place) ?? []).map((row) => ({ row: outputRow(row, edits) }));
  if (removed.size < count) {
    for await (const rows of allRows(base, count)) {
      yield rows.flatMap((found) => {
        const place = found.original_index;
        if (removed.has(place)) return added(place);
        const isSame = !changes.has(place) && !rewrites;
        return [...added(place), isSame ? { digest: found.digest } : { row: outputRow(changes.get(place) ?? found.val, edits) }];
      });
    }
  } else for (const place of [...groups.keys()].filter((place) => place < count).sort((one, other) => one - other)) yield added(
    place);
  yield added(count);
}

async function storeEdits(edits, base, count, onprogress) {
  const steps = summary(edits).rewrites || edits.removed.size > MOST_STEPS ? null : updateSteps(edits, count);
  if (!steps || steps.length > MOST_STEPS) return writeTable(rewritten(edits, base, count), onprogress);
  let digest = base;
  for (let from = 0; from < steps.length; from += STEPS_AT_ONCE) {
    digest = (await postProject("/table/update",
      { base_digest: digest, updates: steps.slice(from, from + STEPS_AT_ONCE) })).digest;
    onprogress(Math.min(steps.length, from + STEPS_AT_ONCE));
  }
  return digest;
}

/** True when all stored rows that edits touch are the same in another version's table. */
async function fits(edits, base, count, other) {
  const places = [...new Set([...edits.changes.keys(), ...edits.removed])];
  const size = (await postProject("/table/query_stats", { digest: other })).count;
  if (places.length > MOST_COMPARED || size < count || summary(edits).rewrites) return null;
  for (const place of places) {
    const [[mine], [theirs]] = await Promise.all([base, other].map((digest) => queryRows(digest, place, 1)));
    if (!mine || !theirs || !same(mine.val, theirs.val)) return null;
  }
  return size;
}

/** The same edits on a longer table: rows that were appended come after its end. */
function moved(edits, count, size) {
  const groups = new Map(edits.groups);
  const last = groups.get(count);
  groups.delete(count);
  return { ...edits, groups: last ? groups.set(size, last) : groups };
}

/**
 * Show what will be published and do it; resolves to true when there is a new version.
 * @param {{name: string, version: any, table: {digest: string, count: number}, sheet: any}} dataset
 */
export function publishDialog({ name, version, table, sheet }) {
  const edits = sheet.edits.peek();
  const problem = signal("");
  const progress = signal("");
  const newer = signal(null);
  return dialog("Publish a new version", (close) => {
    const run = async (base, count, changes, after) => {
      try {
        progress.value = "Publishing…";
        const digest = await storeEdits(changes, base, count, (done) => { progress.value = `${plural(done, "row")} written…`; });
        await storeObject(name, { ...version.val, rows: `weave:///${projectId()}/table/${digest}` }, { after });
        sheet.reset();
        close(true);
      } catch (error) {
        if (error.status === 409) return start();
        progress.value = "";
        problem.value = error.message + (error.requestId ? ` (request ${error.requestId})` : "");
      }
      return undefined;
    };
    const start = async () => {
      problem.value = "";
      progress.value = "Looking for newer versions…";
      try {
        const latest = await readVersion(name, "latest");
        if (latest.digest === version.digest) return await run(table.digest, table.count, edits, latest.digest);
        const size = await fits(edits, table.digest, table.count, tableOf(latest));
        newer.value = { version: latest, size };
      } catch (error) {
        problem.value = error.message;
      }
      progress.value = "";
      return undefined;
    };
    const rebase = ({ version: latest, size }) => run(tableOf(latest), size, moved(edits, table.count, size), latest.digest);
    return [
      changesOf(edits, sheet), () => newer.value && conflict(newer.value, version),
      () => problem.value && h("p.problem", { role: "alert" }, problem.value),
      h("div.actions", h("span.faint", { "aria-live": "polite" }, () => progress.value), h("span.grow"),
        button("Cancel", () => close(false)), () => {
        if (progress.value) return null;
        if (!newer.value) return button("Publish version", start, { kind: "primary", autofocus: true });
        return [button(`Publish over v${newer.value.version.version_index}`, () => run(table.digest, table.count, edits, newer.value.version.digest),
          { kind: "danger" }),
          newer.value.size !== null && button(`Apply my edits to v${newer.value.version.version_index}`,
            () => rebase(newer.value), { kind: "primary" })];
      }),
    ];
  }, { wide: true });
}

function conflict({ version, size }, mine) {
  return h("div.notice", { role: "alert" }, h("b", `There is a newer version: v${version.version_index}`),
    h("p", `Your edits are based on v${mine.version_index}. `, size !== null
      ? "The rows you edited are the same there, so your edits can be applied to it."
      : "Rows you edited differ there, so your edits cannot be applied to it. Publishing over it discards its changes."));
}

/** A summary of the edits, with counts and the first changed cells. */
function changesOf(edits, sheet) {
  const told = summary(edits);
  const figures = [[told.inserted, "added", "good"], [told.changed, "changed", "warn"], [told.removed, "deleted", "error"]];
  const columns = [...told.renamed.map(([from, to]) => `Column ${from} becomes ${to}`),
    ...told.dropped.map((key) => `Column ${key} is deleted`), ...told.added.map((key) => `Column ${key} is new`)];
  const name = (key) => edits.names.get(key) ?? key;
  const cells = [...edits.changes].slice(0, 12).flatMap(([index, row]) => {
    const before = sheet.original(index) ?? {};
    return Object.keys({ ...before, ...row }).filter((key) => !same(before[key], row[key]))
      .map((key) => h("li", h("b", `Row ${int(index + 1)}, ${name(key)}`),
        h("del", { dir: "auto" }, valueLine(before[key], { length: 120 })),
        h("ins", { dir: "auto" }, valueLine(row[key], { length: 120 }))));
  });
  return [
    h("div.legend", figures.filter(([count]) => count)
      .map(([count, text, kind]) => h("span.badge", { class: kind }, `${plural(count, "row")} ${text}`))),
    columns.length > 0 && h("ul.plainlist", columns.map((text) => h("li", cut(text, 200)))),
    cells.length > 0 && h("ul.celldiff", { tabindex: 0, "aria-label": "Changed cells" }, cells.slice(0, 30)),
    told.rewrites && h("p.dim", "Renaming or deleting a column rewrites every row."),
  ];
}

/** The version objects of evaluations that use a dataset: [{evaluation, dataset ref}, …]. */
export async function evaluationsUsing(name = null, abort = undefined) {
  const { objs } = await postProject("/objs/query", { filter: { base_object_classes: ["Evaluation"], is_op: false }, limit: 1000,
    sort_by: [{ field: "created_at", direction: "desc" }] }, abort);
  return objs.map((evaluation) => ({ evaluation, used: parseRef(evaluation.val?.dataset) }))
    .filter(({ used }) => used && (name === null || used.name === name));
}
