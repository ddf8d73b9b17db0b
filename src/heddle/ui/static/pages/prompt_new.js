// A new prompt: its messages with their variables, stored as the SDK would publish it.
import { storeObject } from "../lib/data.js";
import { dialog } from "../lib/dialog.js";
import { each, h, signal } from "../lib/dom.js";
import { field } from "../lib/panels.js";
import { button } from "../lib/parts.js";
import { go, link, path, projectId } from "../lib/router.js";
import { objectName } from "../lib/scorerkinds.js";
import { variablesOf } from "./object_prompt.js";

const ROLES = ["system", "user", "assistant"];

/** Ask for a prompt and store it; the page of its version, or the playground with it, opens. */
export async function newPrompt() {
  const made = await dialog("New prompt", (close) => promptForm(close), { wide: true });
  if (!made) return;
  const ref = `weave:///${projectId()}/object/${made.name}:${made.digest}`;
  go(made.isTried ? link("/playground", { prompt: ref }) : link(path`/objects/${made.name}/versions/${made.digest}`));
}

function promptForm(close) {
  let next = 0;
  const draft = (role, text = "") => ({ id: next++, role, text });
  const messages = signal([draft("system"), draft("user")]);
  const name = h("input", { type: "text", required: true, autocomplete: "off", placeholder: "support-greeting" });
  const description = h("input", { type: "text", autocomplete: "off" });
  const problem = h("p.problem", { role: "alert" });
  const variables = () => variablesOf(messages.value);
  const save = async (isTried) => {
    problem.textContent = "";
    try {
      const said = messages.peek().filter(({ text }) => text.trim());
      if (!said.length) throw new Error("Write at least one message");
      const found = objectName(name.value);
      if (!found) throw new Error("The prompt needs a name");
      close({ name: found, isTried, digest: await store(found, description.value.trim(), said) });
    } catch (error) {
      problem.textContent = error.message;
    }
  };
  return h("form", { onsubmit: (event) => { event.preventDefault(); return save(false); } },
    h("div.columns", field("Name", name, "An existing name gets a new version."), field("Description", description)),
    messageList(messages),
    h("div.actions", { style: { "justify-content": "start" } },
      button("Message", () => { messages.value = [...messages.peek(), draft(messages.peek().at(-1)?.role === "user" ? "assistant" : "user")]; },
        { iconName: "add", kind: "quiet" })),
    h("p", { role: "status" }, () => (variables().length ? ["Variables: ", variables().map((one) => [h("code.variable", `{${one}}`), " "])]
      : h("span.dim", "Write {name} where a value is to be filled in."))),
    problem,
    h("div.actions", button("Cancel", () => close()), button("Save and try", () => save(true), { iconName: "play" }),
      h("button.button.primary", { type: "submit" }, "Save prompt")));
}

function messageList(messages) {
  const change = (id, changes) => {
    messages.value = messages.peek().map((entry) => (entry.id === id ? { ...entry, ...changes } : entry));
  };
  const place = (id) => messages.value.findIndex((entry) => entry.id === id) + 1;
  return each(h("div"), () => messages.value, ({ id }) => id, (held, { id }) => h("fieldset.promptdraft",
    h("legend.hidden-text", () => `Message ${place(id)}`),
    h("div.bar-of-tools", { style: { padding: "4px 0" } },
      h("select", { "aria-label": () => `Role of message ${place(id)}`, onchange: (event) => change(id, { role: event.target.value }) },
        ROLES.map((role) => h("option", { value: role, selected: role === held.peek().role }, role))),
      h("span.grow"),
      button(null, () => { messages.value = messages.peek().filter((entry) => entry.id !== id); },
        { kind: "quiet", iconName: "trash", label: "Remove message" })),
    h("textarea", { rows: 4, dir: "auto", "aria-label": () => `Text of message ${place(id)}`, value: held.peek().text,
      oninput: (event) => change(id, { text: event.target.value }) })));
}

/** One user message is a StringPrompt, anything else a MessagesPrompt, as the SDKs publish them. */
async function store(name, description, said) {
  const isText = said.length === 1 && said[0].role === "user";
  const kind = isText ? "StringPrompt" : "MessagesPrompt";
  const content = isText ? { content: said[0].text } : { messages: said.map(({ role, text }) => ({ role, content: text })) };
  const value = { _type: kind, _class_name: kind, _bases: ["Prompt", "Object", "BaseModel"], name: null,
    description: description || null, ...content };
  return storeObject(name, value);
}
