// Making and changing a queue: its name, the guideline, and the fields that annotators fill in.
import { h, each, signal } from "../lib/dom.js";
import { dialog } from "../lib/dialog.js";
import { postProject, send } from "../lib/data.js";
import { field } from "../lib/panels.js";
import { button } from "../lib/parts.js";
import { path, projectId } from "../lib/router.js";
import { allFields, GONE, KINDS, optionText, storeField } from "./queue_fields.js";

let drafts = 0;

/**
 * Ask for a queue; resolves to its id, or null when left.
 * @param {any} [queue] the one to change; without it a new one is made
 */
export async function queueForm(queue = null) {
  const known = await allFields();
  const own = queue?.scorer_refs ?? [];
  // Older versions of a field that the queue uses stand for themselves, so that saving changes nothing by itself.
  const offered = known.map((entry) => own
    .find((ref) => ref.split(":").slice(0, -1).join(":") === entry.ref.split(":").slice(0, -1).join(":")) ?? entry.ref);
  return dialog(queue ? "Edit queue" : "New queue", (close) => {
    const name = h("input", { type: "text", required: true, autofocus: true, value: queue?.name ?? "",
      placeholder: "Answers to check", maxlength: 200 });
    const guideline = h("textarea",
      { rows: 4, value: queue?.description ?? "", dir: "auto",
      placeholder: "What annotators should look at, and when to choose what" });
    const boxes = known.map((entry, index) =>
      ({ ref: offered[index], box: h("input", { type: "checkbox", checked: own.includes(offered[index]) }), entry }));
    const fresh = signal(known.length || queue ? [] : [newField()]);
    const problem = h("p.problem", { role: "alert" });
    const save = async (event) => {
      event.preventDefault();
      problem.textContent = "";
      try {
        const made = [];
        for (const draft of fresh.peek().filter((one) => one.name.trim())) made.push(
          await storeField({ ...draft, name: draft.name.trim() }));
        const refs = [...boxes.filter(({ box }) => box.checked).map(({ ref }) => ref), ...made];
        if (!refs.length) throw new Error("Choose or create at least one field");
        close(await store(queue, { name: name.value.trim(), description: guideline.value.trim(),
          scorer_refs: [...new Set(refs)] }));
      } catch (error) {
        problem.textContent = error.message;
      }
    };
    return h("form", { onsubmit: save }, field("Name", name), field("Guideline", guideline, "Shown beside every item."),
      h("fieldset.queuefields", h("legend", "Fields that annotators fill in"),
        boxes.map(({ box, entry }) => h("label.check", box, h("b", entry.label), h("span.badge", kindText(entry.kind)),
          h("span.dim.one-line", entry.options.map(optionText).join(", ")))),
        draftList(fresh), button("New field", () => { fresh.value = [...fresh.peek(), newField()]; },
          { iconName: "add", kind: "quiet" })),
      problem, h("div.actions", button("Cancel", () => close()),
        h("button.button.primary", { type: "submit" }, queue ? "Save" : "Create queue")));
  }, { wide: true });
}

/** What a kind of field is called. */
export const kindText = (kind) => (kind === GONE ? "Gone" : KINDS.find(([name]) => name === kind)?.[1] ?? "JSON");

const newField = () => ({ id: ++drafts, name: "", kind: "choice", options: [], lowest: 1, highest: 5 });

async function store(queue, body) {
  if (!body.name) throw new Error("The queue needs a name");
  if (!queue) return (await postProject("/annotation_queues", body)).id;
  await send("PUT", path`/annotation_queues/${queue.id}`, { project_id: projectId(), ...body });
  return queue.id;
}

function draftList(fresh) {
  const change = (id, changes) => { fresh.value = fresh.peek()
    .map((draft) => (draft.id === id ? { ...draft, ...changes } : draft)); };
  return each(h("div.fielddrafts"), () => fresh.value, ({ id }) => id, (held, { id }) => h("div.fielddraft",
    h("input", { type: "text", "aria-label": "Field name", placeholder: "Correct", value: held.peek().name,
      oninput: (event) => change(id, { name: event.target.value }) }),
    h("select", { "aria-label": "Kind of field", onchange: (event) => change(id, { kind: event.target.value }) },
      KINDS.map(([kind, text]) => h("option", { value: kind, selected: kind === held.peek().kind }, text))),
    draftOptions(held, (changes) => change(id, changes)),
    button(null, () => { fresh.value = fresh.peek().filter((draft) => draft.id !== id); },
      { kind: "quiet", iconName: "close", label: "Remove field" })));
}

function draftOptions(held, change) {
  const isChoice = h("input", {
    type: "text", "aria-label": "Choices", placeholder: "good, bad, unclear", hidden: () => !held.value.kind.startsWith("choice"),
    oninput: (event) => change({ options: event.target.value.split(",").map((text) => text.trim()).filter(Boolean) }),
  });
  const limit = (label, key) =>
    h("input", { type: "number", "aria-label": label, title: label, value: held.peek()[key],
    oninput: (event) => change({ [key]: Math.round(Number(event.target.value)) }) });
  return h("span.draftoptions", isChoice,
    h("span", { hidden: () => held.value.kind !== "rating" }, limit("Lowest rating", "lowest"), " to ",
    limit("Highest rating", "highest")));
}
