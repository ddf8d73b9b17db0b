// The prompt that all columns answer: messages, variables, tools, the form of the answer.
import { computed, each, h } from "../lib/dom.js";
import { field } from "../lib/panels.js";
import { button, icon } from "../lib/parts.js";
import { draftOf, jsonField, placeholders } from "./playground_state.js";
import { fillFromDataset } from "./playground_load.js";

const ROLES = ["system", "developer", "user", "assistant", "tool"];
const TOOL_EXAMPLE = [
  {
    type: "function",
    function: {
      name: "get_weather",
      description: "The weather of a city",
      parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
    },
  },
];
const SCHEMA_EXAMPLE = {
  type: "object",
  properties: { answer: { type: "string" }, confidence: { type: "number" } },
  required: ["answer", "confidence"],
};

/** The editor of the prompt; `origin` says where it came from. */
export function promptEditor(state, origin = () => null) {
  const list = h("div.drafts");
  const change = (id, changes) => {
    state.messages.value = state.messages.peek().map((draft) => (draft.id === id ? { ...draft, ...changes } : draft));
  };
  each(
    list,
    () => state.messages.value,
    (draft) => draft.id,
    (held, first) => draftEditor(state, first, held, change),
  );
  return h(
    "section.prompteditor",
    { "aria-label": "Prompt" },
    h("h2", "Prompt"),
    origin,
    list,
    button("Add message", () => addMessage(state), { iconName: "add", kind: "quiet" }),
    variables(state),
    jsonEditor("Tools", "tools", "A JSON list of the tools that the model may call.", state.tools, TOOL_EXAMPLE),
    jsonEditor("Structured output", "structured output", "A JSON schema that the answer must follow.", state.schema, SCHEMA_EXAMPLE),
  );
}

function addMessage(state) {
  const last = state.messages.peek().at(-1);
  state.messages.value = [...state.messages.peek(), draftOf({ role: last?.role === "user" ? "assistant" : "user", content: "" })];
}

function draftEditor(state, first, held, change) {
  const role = computed(() => held.value.role);
  const remove = () => {
    state.messages.value = state.messages.peek().filter((draft) => draft.id !== first.id);
  };
  const insert = () => {
    const all = state.messages.peek();
    const at = all.findIndex((draft) => draft.id === first.id);
    state.messages.value = [...all.slice(0, at + 1), draftOf({ role: "user", content: "" }), ...all.slice(at + 1)];
  };
  const name = () => `${role.value} message`;
  return h(
    "article.draft",
    { "data-role": () => role.value },
    h(
      "header",
      h(
        "select",
        { "aria-label": "Role", onchange: (event) => change(first.id, { role: event.target.value }) },
        ROLES.map((text) => h("option", { value: text, selected: text === first.role }, text)),
      ),
      () =>
        role.value === "tool"
          ? h("input", {
              "aria-label": "Tool call id",
              placeholder: "tool call id",
              value: first.toolCallId,
              oninput: (event) => change(first.id, { toolCallId: event.target.value }),
            })
          : null,
      h("span.grow"),
      button(null, insert, { kind: "quiet", iconName: "add", label: "Insert a message below" }),
      button(null, remove, { kind: "quiet", iconName: "close", label: "Remove message" }),
    ),
    h("textarea", {
      "aria-label": name,
      rows: 1,
      dir: "auto",
      value: first.text,
      placeholder: "Text, with {variables} in braces",
      oninput: (event) => change(first.id, { text: event.target.value }),
    }),
    () =>
      held.value.parts.length > 0 &&
      h(
        "div.keptparts",
        held.value.parts.map((part, index) =>
          h(
            "span.chip.plain",
            part.type === "image_url" ? "picture" : part.type,
            h(
              "button",
              {
                type: "button",
                "aria-label": "Remove attachment",
                onclick: () => change(first.id, { parts: held.peek().parts.filter((_, place) => place !== index) }),
              },
              icon("close"),
            ),
          ),
        ),
      ),
    () => held.value.toolCalls.length > 0 && toolCalls(held, change),
  );
}

function toolCalls(held, change) {
  return h(
    "div.keptparts",
    held.value.toolCalls.map((call, index) =>
      h(
        "span.chip.plain",
        { title: call.function?.arguments },
        `calls ${call.function?.name ?? "a tool"}`,
        h(
          "button",
          {
            type: "button",
            "aria-label": "Remove tool call",
            onclick: () => change(held.peek().id, { toolCalls: held.peek().toolCalls.filter((_, place) => place !== index) }),
          },
          icon("close"),
        ),
      ),
    ),
  );
}

function variables(state) {
  const names = computed(() => placeholders(state.messages.value).join(" "));
  const set = (name, value) => {
    state.values.value = { ...state.values.peek(), [name]: value };
  };
  return () =>
    names.value
      ? h(
          "section.variables",
          { "aria-label": "Variables" },
          h(
            "header",
            h("h3", "Variables"),
            button("From a dataset row", () => fillFromDataset(state), { kind: "quiet", iconName: "data" }),
          ),
          names.value
            .split(" ")
            .map((name) =>
              field(
                h("code", name),
                h("input", {
                  "aria-label": name,
                  dir: "auto",
                  value: () => state.values.value[name] ?? "",
                  oninput: (event) => set(name, event.target.value),
                }),
              ),
            ),
        )
      : null;
}

function jsonEditor(label, name, hint, text, example) {
  const problem = computed(() => {
    try {
      jsonField(text.value, label);
      return "";
    } catch (error) {
      return error.message;
    }
  });
  const area = h("textarea.code", {
    "aria-label": `${label} as JSON`,
    rows: 6,
    spellcheck: "false",
    value: () => text.value,
    oninput: (event) => {
      text.value = event.target.value;
    },
  });
  return h(
    "details.jsoneditor",
    { open: Boolean(text.peek()) },
    h("summary", label, () => text.value.trim() && h("span.badge.good", "on")),
    h("p.faint", hint),
    area,
    h("p.problem", { role: "alert" }, () => problem.value),
    h(
      "div.actions",
      button(
        "Example",
        () => {
          text.value = JSON.stringify(example, null, 2);
        },
        { kind: "quiet", "aria-label": `Insert an example of ${name}` },
      ),
      button(
        "Clear",
        () => {
          text.value = "";
        },
        { kind: "quiet", "aria-label": `Clear ${name}` },
      ),
    ),
  );
}
