// What an experiment leaves behind: a version of a prompt, a row of a dataset.
import { postProject, stored, storeObject } from "../lib/data.js";
import { appendRows } from "../lib/addtodataset.js";
import { dialog, form, toast } from "../lib/dialog.js";
import { h, signal } from "../lib/dom.js";
import { parseJson } from "../lib/exactjson.js";
import { parseRef } from "../lib/format.js";
import { field } from "../lib/panels.js";
import { button } from "../lib/parts.js";
import { link, path, projectId, query } from "../lib/router.js";
import { wireOf } from "./playground_state.js";

const NAME = /^[\w.-]{1,128}$/;

/** Save the prompt as the SDK would publish it: one user message is a StringPrompt, anything else a MessagesPrompt. */
export async function savePrompt(state) {
  const messages = state.messages.peek().map((draft) => wireOf(draft));
  const isText = messages.length === 1 && messages[0].role === "user" && typeof messages[0].content === "string";
  const known = parseRef(query("prompt"))?.name ?? "";
  const saved = await form(
    "Save as a prompt version",
    [
      {
        name: "name",
        label: "Name",
        value: known,
        required: true,
        placeholder: "support-greeting",
        hint: "An existing name gets a new version.",
      },
      { name: "description", label: "Description", value: "" },
    ],
    {
      action: "Save version",
      submit: async ({ name, description }) => {
        if (!NAME.test(name.trim())) throw new Error("Names may only contain letters, digits, - _ and .");
        const kind = isText ? "StringPrompt" : "MessagesPrompt";
        const value = {
          _type: kind,
          _class_name: kind,
          _bases: ["Prompt", "Object", "BaseModel"],
          name: null,
          description: description || null,
          ...(isText ? { content: messages[0].content } : { messages }),
        };
        return { name, digest: await storeObject(name.trim(), value) };
      },
    },
  );
  if (saved) toast(["Saved ", h("a", { href: link(path`/objects/${saved.name}/versions/${saved.digest}`) }, h("b", saved.name))]);
  return saved;
}

/**
 * Save a row that holds the variables, the messages and the answer that is expected, in a dataset that is there or a new one;
 * resolves to {name, digest}, or null when left.
 */
export async function saveRow(state, column, answer) {
  const { objs } = await postProject("/objs/query", {
    filter: { base_object_classes: ["Dataset"], latest_only: true },
    limit: 500,
  });
  const saved = await dialog("Save as a dataset row", (close) => rowForm(objs, rowOf(state, column, answer), close));
  if (saved) {
    lastDataset().value = saved.name;
    toast(["Row saved in ", h("a", { href: link(path`/datasets/${saved.name}`) }, h("b", saved.name))]);
  }
  return saved;
}

const lastDataset = () => stored(`playground.dataset.${projectId()}`, "");

function rowOf(state, column, answer) {
  const filled = Object.entries(state.values.peek()).filter(([, value]) => value);
  const messages = [...state.messages.peek().map((draft) => wireOf(draft, state.values.peek())), ...column.tail.peek()];
  return { ...Object.fromEntries(filled), messages, target: answer };
}

function rowForm(datasets, row, close) {
  const known = () => datasets.find((entry) => entry.object_id === which.value);
  const last = lastDataset().peek();
  const which = h(
    "select",
    h("option", { value: "" }, "New dataset…"),
    datasets.map(({ object_id: name }) => h("option", { value: name, selected: name === last }, name)),
  );
  const isNew = signal(!which.value);
  const other = signal("");
  const name = h("input", { type: "text", value: datasets.some((entry) => entry.object_id === "examples") ? "" : "examples", autocomplete: "off" });
  const area = h("textarea.code", { rows: 9, value: JSON.stringify(row, null, 2), spellcheck: "false" });
  const expected = h("textarea", {
    rows: 3,
    dir: "auto",
    value: typeof row.target === "string" ? row.target : JSON.stringify(row.target),
    oninput: () => withTarget(area, expected.value),
  });
  const choose = async () => {
    isNew.value = !which.value;
    other.value = "";
    const columns = known() ? await columnsOf(known()).catch(() => []) : [];
    if (columns.length && !columns.includes(
      "messages")) other.value = `Its rows have ${columns.join(", ")}; this one has ${Object.keys(row).join(", ")}.`;
  };
  const problem = h("p.problem", { role: "alert" });
  const submit = async (event) => {
    event.preventDefault();
    try {
      const chosen = which.value || name.value.trim();
      close({ name: chosen, digest: await appendRows(chosen, !which.value, [parsedRow(area.value)]) });
    } catch (error) {
      problem.textContent = error.message;
    }
  };
  which.addEventListener("change", choose);
  choose();
  return h(
    "form",
    { onsubmit: submit },
    field("Dataset", [which, () => (other.value ? h("small", other.value) : null)]),
    () => (isNew.value ? field("Name of a new dataset", name) : null),
    field("Expected answer", expected, "Stored in the column target, which scorers compare with."),
    field("Row (JSON)", area),
    problem,
    h("div.actions", button("Cancel", () => close()), h("button.button.primary", { type: "submit" }, "Save row")),
  );
}

/** What is expected goes into the row, unless the row is no JSON just now. */
function withTarget(area, target) {
  try {
    area.value = JSON.stringify({ ...parsedRow(area.value), target }, null, 2);
  } catch {
    // The row says itself what is wrong with it when it is saved.
  }
}

async function columnsOf(dataset) {
  const rows = dataset.val?.rows;
  if (Array.isArray(rows)) return Object.keys(rows[0] ?? {});
  const found = await postProject("/table/query", { digest: String(rows).split("/").pop(), limit: 1 });
  return Object.keys(found.rows[0]?.val ?? {});
}

function parsedRow(text) {
  const row = parseJson(text);
  if (!row || typeof row !== "object" || Array.isArray(row)) throw new Error("A row must be a JSON object");
  return row;
}
