// Annotation queues: calls that wait for people, and how far each queue is.
import { h } from "../lib/dom.js";
import { lines, postProject, resource } from "../lib/data.js";
import { attempt } from "../lib/dialog.js";
import { ago, int, parseRef, percent, plural } from "../lib/format.js";
import { empty } from "../lib/panels.js";
import { button, chip, cutNote, loaded, page, searchBox, timeNode, title } from "../lib/parts.js";
import { go, link, path, projectId, query, setQuery } from "../lib/router.js";
import { serverAddress } from "../lib/setup.js";
import { table } from "../lib/table.js";
import { queueForm } from "./queue_form.js";

const MOST = 500;

/** The list of queues. */
export default function Queues() {
  title("Annotation");
  const state = resource(() => projectId(), load);
  const create = async () => {
    const id = await attempt(() => queueForm());
    if (id) go(link(path`/queues/${id}`));
  };
  const head = {
    title: "Annotation queues", extra: () => state.data.value && h("span.count", int(state.data.value.length)),
    actions: button("New queue", create, { kind: "primary", iconName: "add", needs: "write" }),
  };
  return page(head, loaded(state, (rows) => (rows.length ? list(rows) : nothing(create))), { fixed: true });
}

async function load(_, abort) {
  const queues = await lines("/annotation_queues/query", { limit: MOST }, undefined, abort);
  if (!queues.length) return [];
  const { stats } = await postProject("/annotation_queues/stats", { queue_ids: queues.map(({ id }) => id) }, abort);
  const known = new Map(stats.map((entry) => [entry.queue_id, entry]));
  return queues.map((queue) =>
    ({ ...queue, total: known.get(queue.id)?.total_items ?? 0, done: known.get(queue.id)?.completed_items ?? 0 }));
}

/** A bar that shows how many of a queue's items are done. */
export function progressBar(done, total) {
  const share = total ? done / total : 0;
  return h("span.progress", { role: "progressbar", "aria-label": `${done} of ${plural(total, "item")} done`, "aria-valuemin": 0,
    "aria-valuemax": total || 1, "aria-valuenow": done },
    h("i", { style: { width: `${share * 100}%` } }));
}

function list(all) {
  const shown = () => {
    const text = (query("q") ?? "").toLowerCase();
    return all.filter((queue) => `${queue.name} ${queue.description} ${queue.created_by}`.toLowerCase().includes(text));
  };
  const href = (queue) => link(path`/queues/${queue.id}`);
  const columns = [
    { key: "name", label: "Name", render: (queue) => h("a", { href: href(queue), title: queue.name, dir: "auto" }, queue.name) },
    { key: "progress", label: "Progress", render: (queue) => h("span.progresscell", progressBar(queue.done, queue.total),
      h("span.dim", queue.total ? percent(queue.done / queue.total, 0) : "no items")) },
    { key: "done", label: "Done", number: true, render: (queue) => `${int(queue.done)} of ${int(queue.total)}` },
    { key: "fields", label: "Fields", render: (queue) => queue.scorer_refs.slice(0, 4)
      .map((ref) => [chip(parseRef(ref)?.name ?? ref, null, { class: "plain" }), " "]) },
    { key: "owner", label: "Owner", render: (queue) => queue.created_by },
    { key: "created", label: "Created", number: true, render: (queue) => timeNode(queue.created_at, ago) },
    { key: "work", label: "Work", render: (queue) => h("a.ref", { href: link(path`/queues/${queue.id}/work`) },
      queue.done < queue.total ? "Annotate" : "Open") },
  ];
  return [
    h("div.bar-of-tools", searchBox("Search queues", () => query("q") ?? "", (text) => setQuery({ q: text })),
      all.length === MOST && cutNote(MOST)),
    h("div.tablebox.queuelist", { tabindex: 0, role: "region", "aria-label": "Annotation queues" },
      table({ columns: () => columns, rows: shown, key: (queue) => queue.id, label: "Annotation queues", href })),
  ];
}

function nothing(create) {
  return empty({
    title: "No annotation queues yet",
    text: "A queue holds calls for people to review, with a guideline and fields to fill in: choices, ratings, text. "
      + "Create one here, add calls by a filter, and work through it by keyboard. From Python:",
    code: ["import os", `os.environ["WANDB_BASE_URL"] = "${serverAddress()}"`, "import weave",
      "from weave.flow.annotation_spec import AnnotationSpec", "",
      `client = weave.init("${projectId()}")`,
        'spec = weave.publish(AnnotationSpec(name="Correct", field_schema={"type": "boolean"}), "correct")',
      'queue = client.create_annotation_queue(name="To check", scorer_refs=[spec.uri()])',
      "client.add_calls_to_annotation_queue(",
      "    queue, call_ids=[call.id for call in client.get_calls(limit=50)], display_fields=[\"inputs\", \"output\"])"].join(
        "\n"),
    action: button("New queue", create, { kind: "primary", iconName: "add", needs: "write" }),
  });
}
