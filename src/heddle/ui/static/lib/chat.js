// A conversation as people read it: role cards, Markdown, tool calls with their results, reasoning, media, choices.
import { h, signal } from "./dom.js";
import { oneLine, plural } from "./format.js";
import { json, longText } from "./json.js";
import { markdown } from "./markdown.js";
import { plainText, toolCallsOf } from "./messages.js";
import { mediaNode } from "./media.js";
import { tokenHeat } from "./chat_tokens.js";
import { problemView } from "./problem.js";
import { projectId } from "./router.js";
import { copyButton } from "./panels.js";
import { button, icon } from "./parts.js";
import { mode, modeSwitch, valueView } from "./value.js";
import { readValue } from "./values.js";
import { lineText } from "./line.js";

/**
 * @typedef {import("./messages.js").Message} Message
 * @typedef {import("./messages.js").Part} Part
 * @typedef {import("./messages.js").Conversation} Conversation
 * @typedef {{project?: string, finish?: string, logprobs?: any[]|null, results?: Map<Part, Part>, extra?: any,
 *   answers?: Map<any, any>}} MessageOptions `answers` are nodes in the place of results that are missing
 */

const NAMES = { system: "System", developer: "Developer", user: "User", assistant: "Assistant", tool: "Tool" };
const LONG_TEXT = 3000;
const LONG_LINES = 40;
const FIRST = 20;
const LAST = 80;

/** Whether a call, read with `include_conversation`, holds a conversation. */
export const hasChat = (call) => Boolean(call?.conversation?.is_chat);

/**
 * A conversation: its messages, then the answer or the answers to choose from.
 * @param {Conversation} found
 * @param {{bar?: boolean, project?: string, exception?: string}} [options] `bar: false` leaves out the line with the
 *   offered tools and the switch; `exception` is why there is no answer
 */
export function conversationView(found, { bar = true, project = projectId(), exception = "" } = {}) {
  const only = found.choices.length === 1 ? found.choices[0] : null;
  return h(
    "div.chat",
    bar && h("div.chatbar", found.tools.length > 0 && offeredTools(found.tools), h("span.grow"), modeSwitch()),
    () => (mode.value === "json" ? json({ messages: found.messages, choices: found.choices }, 4)
      : messageList([...found.messages, ...(only?.messages ?? [])], { project, choice: only })),
    () => mode.value !== "json" && found.choices.length > 1 && choicesView(found.choices, project),
    exception &&
      h(
        "article.message",
        { "data-role": "error", "aria-label": "Error" },
        h("header", h("b", "Error")),
        problemView(exception),
      ),
  );
}

/** The conversation of a call that was read with `include_conversation`. */
export function chatView(call, { bar = true } = {}) {
  if (!hasChat(call)) return h("p.dim", "This call has no messages.");
  return conversationView(call.conversation, { bar, project: call.project_id, exception: call.exception });
}

/** The tools that a model was offered. */
export function offeredTools(tools) {
  return h(
    "details.offered",
    h("summary", `${plural(tools.length, "tool")} offered`),
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
      ...(isAnswer ? { finish: choice.finish_reason, logprobs: choice.logprobs } : {}),
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
        `Show ${Math.min(LAST, from.value - FIRST)} of ${plural(from.value - FIRST, "message")} between`,
        () => {
          from.value = Math.max(FIRST, from.value - LAST);
        },
        { class: "between" },
      ),
    () => cards.slice(from.value).map(make),
  );
}

/**
 * Messages with the results of their tool calls: by id, where results have none by name and order. A message of which
 * every part is such a result is shown there alone.
 * @param {Message[]} messages
 * @returns {[Message, Map<Part, Part>][]}
 */
function paired(messages) {
  const waiting = [];
  const shown = [];
  for (const item of messages) {
    const results = new Map();
    const rest = item.parts.filter((part) => part.type !== "tool_call_response" || !answered(part, waiting));
    waiting.push(...toolCallsOf(item).map((call) => ({ call, results })));
    if (rest.length === item.parts.length) shown.push([item, results]);
    else if (rest.length) shown.push([{ ...item, parts: rest }, results]);
  }
  return shown;
}

function answered(part, waiting) {
  const at = waiting.findIndex(({ call }) =>
    part.id ? call.id === part.id : !call.id || !part.name || call.name === part.name,
  );
  if (at < 0) return false;
  const [{ call, results }] = waiting.splice(at, 1);
  results.set(call, part);
  return true;
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
      button(null, () => step(-1), { kind: "quiet", iconName: "left", label: "Previous choice" }),
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
            item.parts
              .filter((part) => part.type !== "tool_call")
              .map((part, place, all) =>
                part.type === "data" && place && all[0].type === "text" ? besides(part, project) : partNode(part, project),
              ),
          ),
    toolCallsOf(item).map((call) => toolCard(call, results.get(call) ?? null, project, answers.get(call))),
  );
}

/** What stands beside the words of a message that is no model's: ids, scores, sources. */
const besides = (part, project) =>
  h("details.besides", h("summary", { dir: "auto" }, lineText(part.content, 100)), valueView(part.content, { project }));

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
      () => (open.value ? "show less" : `show all ${plural(text.length, "character")}`),
    ),
  ];
}

/** The value of an object with one entry, whose name says nothing beside it; any other value. */
function onlyOf(value) {
  const values = value && typeof value === "object" && !Array.isArray(value) && !value._type ? Object.values(value) : [];
  return values.length === 1 ? values[0] : value;
}

/** One part of a message. */
export function partNode(part, project) {
  if (part.type === "text") return textNode(part.content);
  if (part.type === "reasoning") {
    return h(
      "details.reasoning",
      h("summary", "Reasoning ", h("span.faint", plural(part.content.trim().split(/\s+/).length, "word"))),
      textNode(part.content),
    );
  }
  if (part.type === "refusal") return h("p.refusal", { dir: "auto" }, h("span.badge.warn", "refused"), " ", part.content);
  if (part.type === "tool_call_response") return (part.response ?? []).map((one) => partNode(one, project));
  if (part.type === "data") return valueView(onlyOf(part.content), { project });
  return mediaNode(part, project);
}

/** A text by the reader's choice: as Markdown (as a tree where it is JSON), or as it was sent. */
export function textNode(text) {
  return h("div.text", () => {
    if (mode.value !== "rendered") return h("pre.plaintext", { dir: "auto", tabindex: 0 }, longText(text, 20_000));
    return ["text", "markdown"].includes(readValue(text).kind) ? markdown(text) : valueView(text);
  });
}

/** A tool call with what came back, or that nothing has yet. */
export function toolCard(call, result, project, answer = null) {
  const isSmall = JSON.stringify([call.arguments, result?.response]).length < 4000;
  const name = call.name ?? "tool";
  const isPlain = call.arguments == null || typeof call.arguments !== "object";
  return h(
    "details.toolcall",
    { open: isSmall },
    h(
      "summary",
      icon("code"),
      h("b.one-line", { title: name }, name),
      h("span.faint.one-line", oneLine(call.arguments, 80)),
      h("span.grow"),
      !result && h("span.badge", answer ? "awaiting result" : "no result"),
    ),
    h(
      "div.toolbody",
      h("small", "Arguments"),
      isPlain ? h("pre.plaintext", { dir: "auto" }, longText(String(call.arguments ?? ""))) : valueView(call.arguments, { project }),
      result && h("small", "Result"),
      result &&
        h(
          "div.toolresult",
          partNode(result, project),
        ),
      answer,
    ),
  );
}
