// A prompt as its messages, with the variables that it is filled with.
import { h } from "../lib/dom.js";
import { cut, plural } from "../lib/format.js";
import { copyButton } from "../lib/panels.js";
import { longText } from "../lib/json.js";

const VARIABLE = /\{(\w+)(?::[^}]+)?\}/g;
const NAMES = new Set(["Prompt", "StringPrompt", "MessagesPrompt", "EasyPrompt"]);

/** Whether a stored value is a prompt. */
export function isPrompt(value) {
  if (!value || typeof value !== "object") return false;
  return NAMES.has(value._class_name) || (Array.isArray(value._bases) && value._bases.includes("Prompt"));
}

/** The messages of a prompt: [{role, text}, …]; a role of "" is a plain text. */
export function messagesOf(value) {
  const list = Array.isArray(value?.messages) ? value.messages : Array.isArray(value?.data) ? value.data : null;
  if (list)
    return list.map((message) => ({ role: String(message?.role ?? "user"), text: contentOf(message?.content ?? message) }));
  const text = value?.content ?? value?.template ?? value?.prompt;
  return [{ role: "", text: contentOf(text ?? value) }];
}

function contentOf(content) {
  if (typeof content === "string") return content;
  if (Array.isArray(content))
    return content.map((part) => (typeof part?.text === "string" ? part.text : JSON.stringify(part))).join("\n");
  return JSON.stringify(content, null, 2) ?? "";
}

/** The names of the variables in texts, in order. */
export function variablesOf(messages) {
  return [...new Set(messages.flatMap(({ text }) => [...text.matchAll(VARIABLE)].map((found) => found[1])))];
}

/** The messages as cards. */
export function promptView(value) {
  const messages = messagesOf(value);
  const variables = variablesOf(messages);
  return [
    variables.length
      ? h(
          "div.variables",
          h("span.dim", variables.length === 1 ? "Variable" : "Variables"),
          variables.map((name) => h("code.variable", `{${name}}`)),
        )
      : null,
    h(
      "ol.prompt",
      messages.map(({ role, text }) =>
        h(
          "li.promptmessage",
          { "data-role": role },
          h(
            "header",
            h("b", role || "text"),
            h("span.grow"),
            h("small.dim", plural(text.length, "character")),
            copyButton(() => text, "Copy message"),
          ),
          h("div.prompttext", { dir: "auto" }, text.length > 20_000 ? longText(text) : marked(text)),
        ),
      ),
    ),
  ];
}

function marked(text) {
  const found = [];
  let end = 0;
  for (const match of text.matchAll(VARIABLE)) {
    found.push(text.slice(end, match.index), h("span.variable", { title: `Variable ${cut(match[1], 60)}` }, match[0]));
    end = match.index + match[0].length;
  }
  return [...found, text.slice(end)];
}
