// A conversation as people read it: role cards, Markdown, tool calls with their results, reasoning, media, choices.
import { h, signal } from "./dom.js";
import { stored } from "./data.js";
import { int, oneLine } from "./format.js";
import { json, longText } from "./json.js";
import { markdown } from "./markdown.js";
import { parsed } from "./message_parts.js";
import { conversationOf, plainText } from "./messages.js";
import { mediaNode } from "./chat_media.js";
import { tokenHeat } from "./chat_tokens.js";
import { problemView } from "./problem.js";
import { projectId } from "./router.js";
import { copyButton } from "./panels.js";
import { button, icon, segments } from "./parts.js";

/**
 * @typedef {import("./message_parts.js").Message} Message
 * @typedef {{project?: string, finish?: string, logprobs?: any[]|null, results?: Map<any, Message>, extra?: any,
 *   answers?: Map<any, any>}} MessageOptions `answers` are nodes in the place of results that are missing
 */

const NAMES = { system: "System", developer: "Developer", user: "User", assistant: "Assistant", tool: "Tool" };
const LONG_TEXT = 3000;
const LONG_LINES = 40;
const FIRST = 20;
const LAST = 80;

/** "rendered" or "raw", for all chats of this browser. */
const mode = stored("chat", "rendered");

/** The choice between Markdown and the text as it was sent. */
export const modeSwitch = () =>
  segments(
    "Messages",
    [
      ["rendered", "Rendered"],
      ["raw", "Raw"],
    ],
    () => mode.value,
    (value) => {
      mode.value = value;
    },
  );

/** Whether a stored call holds a conversation. */
export const hasChat = (call) => conversationOf(call) !== null;

/**
 * A call's conversation: its messages, then the answer or the answers to choose from.
 * @param {any} call a stored call with inputs and output
 * @param {{bar?: boolean}} [options] `bar: false` leaves out the line with the offered tools and the switch
 */
export function chatView(call, { bar = true } = {}) {
  const found = conversationOf(call);
  if (!found) return h("p.dim", "This call holds no messages.");
  const project = call.project_id ?? projectId();
  const only = found.choices.length === 1 ? found.choices[0] : null;
  return h(
    "div.chat",
    bar && h("div.chatbar", found.tools.length > 0 && offeredTools(found.tools), h("span.grow"), modeSwitch()),
    messageList([...found.messages, ...(only?.messages ?? [])], { project, choice: only }),
    found.choices.length > 1 && choicesView(found.choices, project),
    call.exception &&
      h(
        "article.message",
        { "data-role": "error", "aria-label": "Error" },
        h("header", h("b", "Error")),
        problemView(call.exception),
      ),
  );
}

/** The tools that a model was offered. */
export function offeredTools(tools) {
  return h(
    "details.offered",
    h("summary", `${int(tools.length)} ${tools.length === 1 ? "tool" : "tools"} offered`),
    h(
      "ul",
      tools.map((tool) =>
        h(
          "li",
          h("code", tool.function.name),
          tool.function.description && h("p.dim", { dir: "auto" }, tool.function.description),
          tool.function.parameters && json(tool.function.parameters, 1),
        ),
      ),
    ),
  );
}

/**
 * Messages as cards, tool results inside the calls that asked for them; of very many the middle is held back.
 * @param {Message[]} messages
 * @param {{project?: string, choice?: any, extraOf?: (item: Message) => any}} [options] `choice` is the answer that ends
 *   the list, for its finish and tokens; `extraOf` gives what stands in the header of a message
 */
export function messageList(messages, { project = projectId(), choice = null, extraOf = () => null } = {}) {
  const cards = paired(messages);
  const make = ([item, results]) => {
    const isAnswer = choice !== null && item === choice.messages.at(-1);
    return messageCard(item, {
      project,
      results,
      extra: extraOf(item),
      ...(isAnswer ? { finish: choice.finish, logprobs: choice.logprobs } : {}),
    });
  };
  if (cards.length <= FIRST + LAST) return h("div.messages", cards.map(make));
  const from = signal(cards.length - LAST);
  return h(
    "div.messages",
    cards.slice(0, FIRST).map(make),
    () =>
      from.value > FIRST &&
      button(
        `Show ${Math.min(LAST, from.value - FIRST)} of ${int(from.value - FIRST)} messages between`,
        () => {
          from.value = Math.max(FIRST, from.value - LAST);
        },
        { class: "between" },
      ),
    () => cards.slice(from.value).map(make),
  );
}

/** Messages with the results of their tool calls: by id, where results have none by name and order. */
function paired(messages) {
  const waiting = [];
  const shown = [];
  for (const item of messages) {
    const asked =
      item.role === "tool" &&
      waiting.findIndex((entry) =>
        item.toolCallId ? entry.call.id === item.toolCallId : !entry.call.id || !item.name || entry.call.name === item.name,
      );
    if (typeof asked === "number" && asked >= 0) {
      const [{ call, results }] = waiting.splice(asked, 1);
      results.set(call, item);
      continue;
    }
    const results = new Map();
    waiting.push(...item.toolCalls.map((call) => ({ call, results })));
    shown.push([item, results]);
  }
  return shown;
}

/** Answers of one request, one at a time. */
export function choicesView(choices, project = projectId()) {
  const at = signal(0);
  const step = (by) => {
    at.value = (at.value + by + choices.length) % choices.length;
  };
  return h(
    "section.choices",
    { "aria-label": "Choices" },
    h(
      "header",
      button(null, () => step(-1), { kind: "quiet", iconName: "left", label: "Choice before" }),
      h("span", { "aria-live": "polite" }, () => `Choice ${at.value + 1} of ${choices.length}`),
      button(null, () => step(1), { kind: "quiet", iconName: "chevron", label: "Next choice" }),
    ),
    () => messageList(choices[at.value].messages, { project, choice: choices[at.value] }),
  );
}

/**
 * One message.
 * @param {Message} item
 * @param {MessageOptions} [options]
 */
export function messageCard(
  item,
  { project = projectId(), finish = "", logprobs = null, results = new Map(), answers = new Map(), extra = null } = {},
) {
  const heat = signal(false);
  const text = plainText(item);
  const name = NAMES[item.role] ?? item.role;
  const isCut = finish === "length" || finish === "content_filter" || finish === "MAX_TOKENS" || finish === "max_tokens";
  return h(
    "article.message",
    { "data-role": item.role, "aria-label": `${name} message` },
    h(
      "header",
      h("b", name),
      item.name && h("span.dim.one-line", { title: item.name }, item.name),
      isCut &&
        h(
          "span.badge.warn",
          { title: `finish reason: ${finish}` },
          finish === "content_filter" ? "filtered" : "cut at the token limit",
        ),
      h("span.grow"),
      logprobs &&
        button(
          "Tokens",
          () => {
            heat.value = !heat.value;
          },
          { kind: "quiet", "aria-pressed": () => String(heat.value), title: "How sure the model was of each token" },
        ),
      extra,
      text && copyButton(() => text, "Copy message"),
    ),
    () =>
      heat.value
        ? tokenHeat(logprobs)
        : collapsible(
            text,
            item.parts.map((part) => partNode(part, project)),
          ),
    item.toolCalls.map((call) => toolCard(call, results.get(call) ?? null, project, answers.get(call))),
  );
}

function collapsible(text, nodes) {
  if (!nodes.length) return null;
  const body = h("div.messagebody", nodes);
  if (text.length < LONG_TEXT && text.split("\n", LONG_LINES).length < LONG_LINES) return body;
  const open = signal(false);
  return [
    h("div", { class: () => (open.value ? "" : "clipped") }, body),
    h(
      "button.more",
      {
        type: "button",
        "aria-expanded": () => String(open.value),
        onclick: () => {
          open.value = !open.value;
        },
      },
      () => (open.value ? "show less" : `show all ${int(text.length)} characters`),
    ),
  ];
}

/** One part of a message. */
export function partNode(part, project) {
  if (part.type === "text") return textNode(part.text);
  if (part.type === "reasoning") {
    return h(
      "details.reasoning",
      h("summary", "Reasoning ", h("span.faint", `${int(part.text.trim().split(/\s+/).length)} words`)),
      textNode(part.text),
    );
  }
  if (part.type === "refusal") return h("p.refusal", { dir: "auto" }, h("span.badge.warn", "refused"), " ", part.text);
  if (part.type === "data") return json(part.value, 2);
  return mediaNode(part, project);
}

/** A text by the reader's choice: as Markdown (as a tree where it is JSON), or as it was sent. */
export function textNode(text) {
  return h("div.text", () => {
    if (mode.value === "raw") return h("pre.plaintext", { dir: "auto", tabindex: 0 }, longText(text, 20_000));
    const value = text.length < 200_000 ? parsed(text) : text;
    return typeof value === "object" ? json(value, 3) : markdown(text);
  });
}

/** A tool call with what came back, or that nothing has yet. */
export function toolCard(call, result, project, answer = null) {
  const isSmall = JSON.stringify([call.arguments, result?.parts]).length < 4000;
  const isPlain = call.arguments === null || typeof call.arguments !== "object";
  return h(
    "details.toolcall",
    { open: isSmall },
    h(
      "summary",
      icon("code"),
      h("b.one-line", { title: call.name }, call.name),
      h("span.faint.one-line", oneLine(call.arguments, 80)),
      h("span.grow"),
      !result && h("span.badge", answer ? "result wanted" : "no result"),
    ),
    h(
      "div.toolbody",
      h("small", "Arguments"),
      isPlain ? h("pre.plaintext", { dir: "auto" }, longText(String(call.arguments ?? ""))) : json(call.arguments, 3),
      result && h("small", "Result"),
      result &&
        h(
          "div.toolresult",
          result.parts.map((part) => partNode(part, project)),
        ),
      answer,
    ),
  );
}
