// The datasets of a project.
import { h } from "../lib/dom.js";
import { postProject, resource } from "../lib/data.js";
import { ago, int } from "../lib/format.js";
import { empty } from "../lib/panels.js";
import { button, chip, cutNote, loaded, page, searchBox, timeNode, title } from "../lib/parts.js";
import { go, link, path, projectId, query, setQuery } from "../lib/router.js";
import { serverAddress } from "../lib/setup.js";
import { table } from "../lib/table.js";
import { newDatasetDialog } from "./dataset_import.js";
import { evaluationsUsing, tableOf } from "./dataset_publish.js";

const MOST = 1000;

/** The list of datasets with their newest version. */
export default function Datasets() {
  title("Datasets");
  const state = resource(() => projectId(), load);
  const create = async () => {
    const name = await newDatasetDialog();
    if (name) go(link(path`/datasets/${name}`));
  };
  const head = {
    title: "Datasets", extra: () => state.data.value && h("span.count", int(state.data.value.length)),
    actions: button("New dataset", create, { kind: "primary", iconName: "add", needs: "write" }),
  };
  return page(head, loaded(state, (rows) => (rows.length ? list(rows) : nothing(create))), { fixed: true });
}

async function load(_, abort) {
  const filter = { base_object_classes: ["Dataset"], is_op: false, latest_only: true };
  const [{ objs }, used] = await Promise.all([
    postProject("/objs/query",
      { filter, include_tags_and_aliases: true, limit: MOST, sort_by: [{ field: "created_at", direction: "desc" }] }, abort),
    evaluationsUsing(null, abort),
  ]);
  const digests = [...new Set(objs.map(tableOf).filter(Boolean))];
  const { tables } = digests.length ? await postProject("/table/query_stats_batch", { digests }, abort) : { tables: [] };
  const figures = new Map(tables.map((entry) => [entry.digest, entry]));
  return objs.map((version) => ({
    ...version, rows: figures.get(tableOf(version))?.count,
    evaluations: new Set(used.filter((entry) => entry.used.name === version.object_id)
      .map(({ evaluation }) => evaluation.object_id)).size,
  }));
}

function list(all) {
  const order = () => ({ key: (query("sort") ?? "-created").replace(/^-/, ""),
    descending: (query("sort") ?? "-created").startsWith("-") });
  const value = { name: (row) => row.object_id, rows: (row) => row.rows ?? 0, created: (row) => row.created_at,
    used: (row) => row.evaluations };
  const shown = () => {
    const text = (query("q") ?? "").toLowerCase();
    const { key, descending } = order();
    const rows = all.filter((row) => `${row.object_id} ${row.val?.description ?? ""}`.toLowerCase().includes(text));
    return rows.sort((one, other) => (value[key](one) < value[key](other) ? -1 : 1) * (descending ? -1 : 1));
  };
  const described = all.some((row) => row.val?.description);
  const columns = [
    { key: "name", label: "Name", sort: true, render: (row) => h("a", { href: href(row), title: row.object_id }, row.object_id) },
    described && { key: "description", label: "Description",
      render: (row) => h("span.dim", { dir: "auto", title: row.val?.description ?? "" }, row.val?.description ?? "") },
    { key: "version", label: "Version", render: (row) => [h("span.badge.good", `v${row.version_index}`), " ", (row.aliases ?? [])
      .filter((name) => name !== "latest").map((name) => chip(name)),
      (row.tags ?? []).map((name) => chip(name, null, { class: "plain" }))] },
    { key: "rows", label: "Rows", number: true, sort: true, render: (row) => int(row.rows) },
    { key: "versions", label: "Versions", number: true, render: (row) => int(row.version_index + 1) },
    { key: "used", label: "Evaluations", number: true, sort: true, render: (row) => int(row.evaluations) },
    { key: "digest", label: "Digest", render: (row) => h("span.mono.dim", { title: row.digest }, row.digest.slice(0, 8)) },
    { key: "created", label: "Changed", number: true, sort: true,
      render: (row) => timeNode(row.created_at, ago) },
  ].filter(Boolean);
  const sort = (key) => setQuery({ sort: order().key === key && !order().descending ? `-${key}` : key });
  return [
    h("div.bar-of-tools", searchBox("Search datasets", () => query("q") ?? "", (text) => setQuery({ q: text })),
      all.length === MOST && cutNote(MOST)),
    h("div.tablebox.datasetlist", { tabindex: 0, role: "region", "aria-label": "Datasets" },
      table({ resizable: true, columns: () => columns, rows: shown, key: (row) => row.object_id, label: "Datasets", href, order, onsort: sort })),
  ];
}

const href = (row) => link(path`/datasets/${row.object_id}`);

function nothing(create) {
  return empty({
    title: "No datasets yet",
      text: "A dataset is a list of versioned rows to evaluate models on. Create one here from a file or from calls, or publish one:",
    code: ["import os", `os.environ["WANDB_BASE_URL"] = "${serverAddress()}"`, "import weave", "", `weave.init("${projectId()}")`,
      'rows = [{"question": "What is 2 + 2?", "expected": "4"}]',
        'weave.publish(weave.Dataset(name="questions", rows=rows))'].join("\n"),
    action: button("New dataset", create, { kind: "primary", iconName: "add", needs: "write" }),
  });
}
