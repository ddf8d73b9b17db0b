// One dataset: its versions, its rows in the editor grid, what changed, and which evaluations use it.
import { effect, h, onCleanup, scope, signal } from "../lib/dom.js";
import { postProject, resource } from "../lib/data.js";
import { attempt, confirm, menu, toast } from "../lib/dialog.js";
import { ago, plural } from "../lib/format.js";
import { codeBlock, copyButton, empty, facts, refLink, tabs } from "../lib/panels.js";
import { button, loaded, page, skeleton, timeNode, title } from "../lib/parts.js";
import { go, link, loadStyle, path, projectId, query, setQuery } from "../lib/router.js";
import { serverAddress } from "../lib/setup.js";
import { table } from "../lib/table.js";
import { versionRail } from "../lib/versions.js";
import { datasetChanges } from "./dataset_changes.js";
import { datasetEditor } from "./dataset_editor.js";
import { exportRows } from "./dataset_import.js";
import { evaluationsUsing, publishDialog, readVersion, tableOf } from "./dataset_publish.js";

/** The page of a dataset; `?v=` chooses a version. */
export default function Dataset({ name }) {
  title(name);
  const state = resource(() => ({ name, version: query("v") ?? "latest" }), load);
  const versions = resource(() => name, loadVersions);
  const reload = () => { state.reload(); versions.reload(); };
  const head = { crumbs: [["Datasets", link("/datasets")]], title: name, extra: () => badges(state.data.value),
    actions: () => actions(name, state.data.value, reload) };
  return page(head, h("div.versioned", loaded(versions, (all) => versionRail({
    versions: all.objs, current: () => state.data.value?.version.digest ?? "", href: (version) => link(path`/datasets/${name}`,
      { v: version.is_latest ? null : `v${version.version_index}`, tab: query("tab") }),
    compared: () => query("compare"), oncompare: (digest) => setQuery({ compare: digest, tab: digest ? "changes" : null }),
    onchange: reload, note: (version) => h("span", rowsText(all.counts.get(tableOf(version)) ?? 0)),
  })), versionBody(name, state, versions, reload)), { fixed: true });
}

async function load({ name, version }, abort) {
  const found = await readVersion(name, version, abort);
  const digest = tableOf(found);
  const count = digest ? (await postProject("/table/query_stats", { digest }, abort)).count : 0;
  return { version: found, table: digest && { digest, count } };
}

async function loadVersions(name, abort) {
  const { objs } = await postProject("/objs/query", {
    filter: { object_ids: [name], is_op: false }, include_tags_and_aliases: true, limit: 500,
      sort_by: [{ field: "created_at", direction: "desc" }],
  }, abort);
  const digests = [...new Set(objs.map(tableOf).filter(Boolean))];
  const { tables } = digests.length ? await postProject("/table/query_stats_batch", { digests }, abort) : { tables: [] };
  return { objs, counts: new Map(tables.map((entry) => [entry.digest, entry.count])) };
}

/** The tabs of the open version; the editor is made once per version, so that edits survive a look at another tab. */
function versionBody(name, state, versions, reload) {
  const shown = signal(null);
  let off = null;
  effect(() => {
    const data = state.data.value;
    if (!data || data.version.digest === shown.peek()?.digest) return;
    off?.();
    const [body, end] = scope(() => bodyOf(name, data, versions, reload), true);
    off = end;
    shown.value = { digest: data.version.digest, body };
  });
  onCleanup(() => off?.());
  return h("div.datasetbody", loaded(state, () => shown.value?.body ?? skeleton()));
}

function bodyOf(name, data, versions, reload) {
  if (!data.table) return empty(
    { title: "No table", text: "The rows of this version are not stored as a table and cannot be shown here." });
  const publish = async (sheet) => {
    if (!(await publishDialog({ name, version: data.version, table: data.table, sheet }))) return;
    setQuery({ v: null, sort: null, filter: null, find: null, compare: null });
    toast("New version published");
    reload();
  };
  const { element } = datasetEditor({ name, table: data.table, publish });
  return h("div.datasettabs", tabs("Dataset", [
    ["rows", "Rows", () => element],
    ["changes", "Changes", () => loaded(versions, (all) => datasetChanges(all.objs, data.version))],
    ["used", "Used by", () => usedBy(name, versions)],
    ["code", "Use in Python", () => codeTab(name, data)],
  ]));
}

function badges(data) {
  if (!data) return null;
  const { version, table: rows } = data;
  return h("span.headbadges", h("span.badge.good", `v${version.version_index}`),
    version.is_latest ? null : h("span.badge.warn", "not the latest"),
    h("span.count", rowsText(rows?.count ?? 0)),
      h("span.faint.mono.wide", { title: version.digest }, version.digest.slice(0, 8)));
}

const rowsText = (count) => plural(count, "row");

const refOf = (name, version) => `weave:///${projectId()}/object/${name}:${version.digest}`;

function actions(name, data, reload) {
  if (!data) return null;
  const { version } = data;
  const remove = async (digests, heading, text) => {
    if (!(await confirm(heading, text))) return;
    const done = await attempt(() => postProject("/obj/delete", { object_id: name, ...(digests ? { digests } : {}) }), "Deleted");
    if (!done) return;
    const { objs } = await postProject("/objs/query", { filter: { object_ids: [name], is_op: false }, metadata_only: true,
      limit: 1 });
    if (!objs.length) go(link("/datasets"));
    else {
      setQuery({ v: null });
      reload();
    }
  };
  const evaluate = async () => {
    const [{ newEvaluation }] = await Promise.all([import("./evaluations_new.js"), loadStyle("pages/evaluations")]);
    await newEvaluation(null, null, { dataset: name, name: `${name}-quality` });
  };
  return [
    copyButton(() => refOf(name, version), "Copy ref", "Ref"),
    button("Evaluate a model", () => attempt(evaluate), { iconName: "evaluate", needs: "write" }),
    data.table && menu("Export",
      () => [["CSV", () => attempt(() => exportRows(name, data.table, "csv")), { iconName: "download" }],
      ["JSON lines", () => attempt(() => exportRows(name, data.table, "jsonl")), { iconName: "download" }]],
      { iconName: "download" }),
    menu(null, () => [
      [`Delete v${version.version_index}`, () => remove([version.digest], `Delete v${version.version_index}?`,
        "Calls and evaluations that use it can no longer read it. This cannot be undone."), { iconName: "trash", danger: true, needs: "delete" }],
      ["Delete dataset", () => remove(null, `Delete ${name}?`,
        "All versions will be deleted. Calls and evaluations that use them can no longer read them. This cannot be undone."),
        { iconName: "trash", danger: true, needs: "delete" }],
    ], { label: "More" }),
  ];
}

function usedBy(name, versions) {
  const indexOf = (digest) => versions.data.value?.objs.find((version) => version.digest === digest)?.version_index;
  const state = resource(() => name, (_, abort) => evaluationsUsing(name, abort));
  const columns = [
    { key: "name", label: "Evaluation", render: ({ evaluation }) => refLink(refOf(evaluation.object_id, evaluation),
      evaluation.val.name || evaluation.object_id) },
    { key: "version", label: "Version", render: ({ evaluation }) => `v${evaluation.version_index}` },
    { key: "dataset", label: "Dataset version",
      render: ({ used }) => h("a.ref", { href: link(path`/datasets/${name}`, { v: used.digest }), title: used.digest },
      indexOf(used.digest) === undefined ? used.digest.slice(0, 8) : `v${indexOf(used.digest)}`) },
    { key: "runs", label: "Runs",
      render: ({ evaluation }) => h("a.ref", { href: link("/evaluations", { evaluation: evaluation.object_id }) }, "Show runs") },
    { key: "created", label: "Created", number: true,
      render: ({ evaluation }) => timeNode(evaluation.created_at, ago) },
  ];
  return loaded(state,
    (rows) => (rows.length ? h("div.tablebox", { tabindex: 0, role: "region", "aria-label": "Evaluations" },
    table({ columns: () => columns, rows: () => rows, key: ({ evaluation }) => evaluation.digest,
    label: "Evaluations that use the dataset", keyboard: false }))
    : empty({ title: "No evaluations yet",
      text: "Evaluations that use this dataset appear here with their runs.", code: evaluationLines(name) })));
}

const evaluationLines = (name) => [
  "import weave", "", `weave.init("${projectId()}")`, `dataset = weave.ref("${name}").get()`,
  "evaluation = weave.Evaluation(dataset=dataset, scorers=[your_scorer])", "await evaluation.evaluate(your_model)",
].join("\n");

function codeTab(name, { version }) {
  const ref = refOf(name, version);
  return h("div.codetab",
    facts([["Ref", h("span.mono", ref)], ["Digest", h("span.mono", version.digest)], ["Created", timeNode(version.created_at)],
      ["By", version.wb_user_id], ["Description", version.val?.description]]),
    h("h2", "Read it"), codeBlock(["import os", `os.environ["WANDB_BASE_URL"] = "${serverAddress()}"`, "import weave", "",
      `weave.init("${projectId()}")`, `dataset = weave.ref("${ref}").get()`, "for row in dataset.rows:", "    print(row)"].join(
      "\n")),
    h("h2", "Add rows from Python"),
      codeBlock(["dataset = dataset.add_rows([{\"question\": \"…\"}])", `weave.publish(dataset, "${name}")`].join("\n")));
}
