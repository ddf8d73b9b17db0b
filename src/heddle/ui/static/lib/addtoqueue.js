// Calls become items of an annotation queue: an existing one, or a new one with what annotators fill in.
import { lines, postProject, post } from "./data.js";
import { publicSelection } from "./filterquery.js";
import { loadedDialog, toast } from "./dialog.js";
import { h, signal } from "./dom.js";
import { plural } from "./format.js";
import { field } from "./panels.js";
import { button } from "./parts.js";
import { link, path, projectId } from "./router.js";

const FIELDS = ["inputs", "output"];

/**
 * Ask for a queue and add the calls to it; resolves to {queue, name, added, duplicates}, or null when left.
 * @param {string[]|{selection: any, count: number}} target calls by their ids, or all that match
 * @returns {Promise<{queue: string, name: string, added: number, duplicates: number}|null>}
 */
export async function addToQueue(target) {
  const count = Array.isArray(target) ? target.length : target.count;
  if (!count) return null;
  const many = count === 1 ? "the call" : plural(count, "call");
  const result = await loadedDialog(`Add ${many} to an annotation queue`, start, (found, close) => chooser(found, target, close));
  if (result) toast([...told(result), h("a", { href: link(path`/queues/${result.queue}`) }, h("b", result.name))]);
  return result;
}

function told({ added, duplicates }) {
  if (!added) return [duplicates === 1 ? "The call is already in " : "All calls are already in "];
  return [`${plural(added, "call")} added${duplicates ? `, ${duplicates} already there,` : ""} to `];
}

async function start() {
  const [queues, specs] = await Promise.all([
    lines("/annotation_queues/query", { limit: 500 }),
    postProject("/objs/query", { filter: { base_object_classes: ["AnnotationSpec"], latest_only: true }, limit: 200 }),
  ]);
  return { queues, specs: specs.objs };
}

function chooser({ queues, specs }, callIds, close) {
  const target = h(
    "select",
    { "aria-label": "Queue" },
    queues.map((queue, index) => h("option", { value: queue.id, selected: index === 0 }, queue.name)),
    h("option", { value: "" }, "New queue…"),
  );
  const isNew = signal(queues.length === 0);
  target.addEventListener("change", () => {
    isNew.value = target.value === "";
  });
  const name = h("input", { type: "text", value: "Review" });
  const chosen = specs.map((spec) => [spec, h("input", { type: "checkbox", checked: true })]);
  const problem = h("p.problem", { role: "alert" });
  const save = async (event) => {
    event.preventDefault();
    problem.textContent = "";
    try {
      const refs = chosen.filter(([, box]) => box.checked).map(([spec]) => refOf(spec));
      const queue = target.value || (await create(name.value.trim(), refs));
      close(await add(queue, queues.find((entry) => entry.id === queue)?.name ?? name.value.trim(), callIds));
    } catch (error) {
      problem.textContent = error.message;
    }
  };
  return h(
    "form",
    { onsubmit: save },
    field("Queue", target),
    () => (isNew.value ? newQueue(name, chosen) : null),
    problem,
    h(
      "div.actions",
      button("Cancel", () => close()),
      h("button.button.primary", { type: "submit" }, "Add to queue"),
    ),
  );
}

function newQueue(name, chosen) {
  return [
    field("Name", name),
    chosen.length
      ? h(
          "fieldset",
          h("legend", "What annotators fill in"),
          chosen.map(([spec, box]) => h("label.check", box, " ", spec.val?.name ?? spec.object_id)),
        )
      : h("p.dim", "Fields for annotators can be added on the queue's page."),
  ];
}

const refOf = (spec) => `weave:///${projectId()}/object/${spec.object_id}:${spec.digest}`;

async function create(name, refs) {
  if (!name) throw new Error("The queue needs a name");
  return (await postProject("/annotation_queues", { name, scorer_refs: refs })).id;
}

async function add(queue, name, target) {
  const chosen = Array.isArray(target) ? { call_ids: target }
    : { call_ids: [], ...publicSelection({ from: null, to: null, ...target.selection }), limit: target.count };
  const body = { project_id: projectId(), ...chosen, display_fields: FIELDS };
  const answer = await post(path`/annotation_queues/${queue}/items`, body);
  return { queue, name, added: answer.added_count, duplicates: answer.duplicates };
}
