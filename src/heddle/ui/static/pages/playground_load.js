// Where a prompt may come from: a stored call, a prompt object, a row of a dataset.
import { isPlainJson, lineText } from "../lib/line.js";
import { postProject } from "../lib/data.js";
import { attempt, dialog, form, toast } from "../lib/dialog.js";
import { h, signal } from "../lib/dom.js";
import { oneLine, parseRef } from "../lib/format.js";
import { readStored } from "../lib/media.js";
import { toOpenai } from "../lib/messages.js";
import { empty, refHref } from "../lib/panels.js";
import { failure, skeleton } from "../lib/parts.js";
import { link, path, projectId, setQuery } from "../lib/router.js";
import { callName } from "../lib/spans.js";
import { placeholders, setPrompt } from "./playground_state.js";

const LARGEST_PICTURE = 3_000_000;
const TAKEN = [
  "temperature",
  "top_p",
  "max_tokens",
  "seed",
  "n",
  "reasoning_effort",
  "tool_choice",
  "frequency_penalty",
  "presence_penalty",
];

/** Fill the playground from the call of that id; its answer is left out, to be asked for again. Resolves to what it is. */
export async function loadCall(state, id) {
  const { call } = await postProject("/call/read", { id, include_conversation: true });
  if (!call) throw new Error(`Call ${id} not found: it may have been deleted, or be past the project's retention`);
  const { messages, tools } = call.conversation;
  const inputs = call.inputs ?? {};
  const parameters = Object.fromEntries(TAKEN.filter((name) => inputs[name] != null).map((name) => [name, inputs[name]]));
  const most = inputs.max_tokens ?? inputs.max_completion_tokens ?? inputs.max_output_tokens;
  if (typeof most === "number") parameters.max_tokens = most;
  if (inputs.stop) parameters.stop = [inputs.stop].flat().join("\n");
  const schema = inputs.response_format?.json_schema?.schema;
  setPrompt(state, (await withPictures(messages, call.project_id)).flatMap(toOpenai), {
    tools: tools.length ? JSON.stringify(tools, null, 2) : "",
    schema: schema ? JSON.stringify(schema, null, 2) : "",
    model: inputs.model ?? Object.keys(call.summary?.usage ?? {})[0] ?? "",
    parameters,
  });
  return {
    name: callName(call),
    model: inputs.model ?? "",
    href: link(path`/traces/${call.trace_id}`, { call: call.id }),
  };
}

/** Stored pictures are read, to be sent again; of other files and of large ones a note stands in their place. */
function withPictures(messages, project) {
  const read = async (part) => {
    if (!part.files) return part;
    const [blob] = part.modality === "image" ? await readStored(part.files, project) : [null];
    if (!blob || blob.size > LARGEST_PICTURE) return { type: "text", content: `[a stored ${part.modality} that is not sent]` };
    return { type: "uri", modality: "image", uri: await dataAddress(blob) };
  };
  return Promise.all(messages.map(async (item) => ({ ...item, parts: await Promise.all(item.parts.map(read)) })));
}

function dataAddress(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

/** Fill the playground from a prompt object (MessagesPrompt, StringPrompt, EasyPrompt); resolves to what it is. */
export async function loadPrompt(state, ref) {
  const found = parseRef(ref);
  if (!found) throw new Error("This is not a prompt ref");
  const { obj } = await postProject("/obj/read", {
    project_id: `${found.entity}/${found.project}`,
    object_id: found.name,
    digest: found.digest || "latest",
  });
  setPrompt(state, messagesOfPrompt(obj.val));
  return { name: found.name, model: "", href: refHref(ref) };
}

function messagesOfPrompt(value) {
  const messages = value.messages ?? value.data;
  if (Array.isArray(messages)) return messages;
  if (typeof value.content === "string") return [{ role: "user", content: value.content }];
  throw new Error("This object is not a prompt");
}

/** Choose a stored prompt. */
export function choosePrompt() {
  return choose(
    "Load a prompt",
    "Prompt",
    (entry) => setQuery({ prompt: `weave:///${projectId()}/object/${entry.object_id}:${entry.digest}`, call: null }, false),
    {
      title: "No prompts yet",
      text: "Save what you try here as a prompt version, or publish a MessagesPrompt or StringPrompt.",
    },
  );
}

/** Ask for a call by its id. */
export async function chooseCall() {
  const values = await form(
    "Load a call",
    [{ name: "id", label: "Call id", required: true, hint: "Or use “Open in playground” on the page of a call." }],
    { action: "Load" },
  );
  if (values) setQuery({ call: values.id.trim(), prompt: null }, false);
}

/** Choose a dataset and one of its rows, whose columns fill the variables of the same names. */
export function fillFromDataset(state) {
  return choose("Fill variables from a dataset", "Dataset", (entry) => chooseRow(state, entry), {
    title: "No datasets yet",
    text: "Publish one, or save an answer as a dataset row.",
  });
}

async function choose(heading, kind, done, none) {
  const picked = await dialog(heading, (close) => {
    const content = signal(/** @type {any} */ (skeleton(4)));
    postProject("/objs/query", {
      filter: { base_object_classes: [kind], latest_only: true },
      metadata_only: true,
      limit: 500,
      sort_by: [{ field: "created_at", direction: "desc" }],
    }).then(
      ({ objs }) => {
        content.value = objs.length
          ? h(
              "ul.choicelist",
              objs.map((entry) =>
                h(
                  "li",
                  h(
                    "button",
                    { type: "button", onclick: () => close(entry) },
                    h("b.one-line", entry.object_id),
                    h("span.faint", `v${entry.version_index}`),
                  ),
                ),
              ),
            )
          : empty(none);
      },
      (error) => {
        content.value = failure(error, null);
      },
    );
    return () => content.value;
  });
  if (picked) done(picked);
}

async function chooseRow(state, entry) {
  const rows = await attempt(async () => {
    const { obj } = await postProject("/obj/read", { object_id: entry.object_id, digest: entry.digest });
    if (Array.isArray(obj.val.rows)) return obj.val.rows;
    return (await postProject("/table/query", { digest: String(obj.val.rows).split("/").pop(), limit: 100 })).rows.map(
      (row) => row.val,
    );
  });
  if (!rows) return;
  const row = await dialog(
    `Row of ${entry.object_id}`,
    (close) =>
      rows.length
        ? h(
            "ul.choicelist",
            rows.map((value, index) =>
              h(
                "li",
                h(
                  "button",
                  { type: "button", onclick: () => close(value) },
                  h("span.faint.number", String(index + 1)),
                  h("span.one-line", { dir: "auto" }, isPlainJson(value) ? oneLine(value, 140) : lineText(value, 140)),
                ),
              ),
            ),
          )
        : empty({ title: "The dataset has no rows" }),
    { wide: true },
  );
  if (!row) return;
  const names = placeholders(state.messages.peek()).filter((name) => row[name] != null);
  const text = (value) => (typeof value === "string" ? value : JSON.stringify(value));
  state.values.value = { ...state.values.peek(), ...Object.fromEntries(names.map((name) => [name, text(row[name])])) };
  toast(names.length ? `Filled ${names.join(", ")}` : "No column matches a variable");
}
