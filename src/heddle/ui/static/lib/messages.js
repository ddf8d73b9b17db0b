// Messages as the server tells them (`conversation` of a call), and those of the playground, which speaks OpenAI's wire.
import { parseJson } from "./exactjson.js";

/**
 * @typedef {{type: string, content?: any, id?: string, name?: string, arguments?: any, response?: Part[], modality?: string,
 *   mime_type?: string, uri?: string, files?: Record<string, string>}} Part text, reasoning, refusal, tool_call,
 *   tool_call_response, uri, blob, file or data
 * @typedef {{role: string, parts: Part[], name?: string, finish_reason?: string}} Message
 * @typedef {{messages: Message[], finish_reason: string, logprobs: any[]|null}} Choice
 * @typedef {{is_chat: boolean, messages: Message[], choices: Choice[], tools: any[]}} Conversation
 */

/** What a message says, without reasoning, pictures and tools. */
export function plainText(item) {
  return item.parts
    .filter((part) => part.type === "text" || part.type === "refusal")
    .map((part) => part.content)
    .join("\n\n");
}

/** The tools that a message calls. */
export const toolCallsOf = (item) => item.parts.filter((part) => part.type === "tool_call");

/** A message of one text; of nothing it has no parts. */
export const textMessage = (role, content) => ({ role, parts: content ? [{ type: "text", content }] : [] });

/** A text that is a JSON object or list as that, anything else as it is. */
export function parsed(value) {
  if (typeof value !== "string") return value;
  const start = value.trimStart()[0];
  if (start !== "{" && start !== "[") return value;
  try {
    return parseJson(value);
  } catch {
    return value;
  }
}

/**
 * A message on OpenAI's wire again, for the playground and for prompts; tool results are messages of their own.
 * @param {Message} item
 * @returns {any[]}
 */
export function toOpenai(item) {
  const results = item.parts.filter((part) => part.type === "tool_call_response");
  const parts = item.parts.filter((part) => !["reasoning", "tool_call", "tool_call_response"].includes(part.type));
  const calls = toolCallsOf(item);
  const isText = parts.every((part) => part.type === "text");
  const made = /** @type {any} */ ({ role: item.role, content: isText ? plainText(item) : parts.map(openaiPart) });
  if (item.name) made.name = item.name;
  if (calls.length) {
    made.tool_calls = calls.map((call) => ({
      id: call.id ?? "",
      type: "function",
      function: { name: call.name ?? "tool", arguments: jsonText(call.arguments ?? {}) },
    }));
  }
  const told = results.map((part) => ({ role: "tool", tool_call_id: part.id ?? "", content: resultText(part) }));
  return parts.length || calls.length || !results.length ? [...told, made] : told;
}

const jsonText = (value) => (typeof value === "string" ? value : JSON.stringify(value));

const resultText = (part) =>
  (part.response ?? []).map((one) => (one.type === "file" || one.uri ? one.name || one.uri : jsonText(one.content))).join("\n\n");

function openaiPart(part) {
  if (part.type === "text" || part.type === "refusal") return { type: "text", text: part.content };
  const address = part.uri ?? (part.type === "blob" && `data:${part.mime_type ?? "image/png"};base64,${part.content}`);
  if (part.modality === "image" && address) return { type: "image_url", image_url: { url: address } };
  return { type: "text", text: jsonText(part.content ?? part.uri ?? part.name ?? "") };
}

/**
 * A message that the playground sent or was answered.
 * @returns {Message}
 */
export function fromOpenai(wire) {
  const blocks = Array.isArray(wire.content) ? wire.content : wire.content ? [{ type: "text", text: wire.content }] : [];
  const parts = blocks.map((block) =>
    block.type === "image_url"
      ? { type: "uri", modality: "image", uri: block.image_url.url }
      : { type: "text", content: block.text ?? "" },
  );
  if (wire.role === "tool") return { role: "tool", parts: [{ type: "tool_call_response", id: wire.tool_call_id, response: parts }] };
  const calls = (wire.tool_calls ?? []).map((call) => ({
    type: "tool_call",
    id: call.id,
    name: call.function.name,
    arguments: parsed(call.function.arguments),
  }));
  const thought = wire.reasoning ? [{ type: "reasoning", content: wire.reasoning }] : [];
  return { role: wire.role, parts: [...thought, ...parts, ...calls], ...(wire.name ? { name: wire.name } : {}) };
}

/**
 * What one turn of a thread said: the last words of the user and the answer; for calls that are no chat, their inputs and
 * output.
 * @param {Conversation} conversation
 * @returns {{messages: Message[], choice: Choice|null, isWhole: boolean}} `isWhole` says that the call's chat holds no more
 */
export function turnOf({ is_chat: isChat, messages, choices }) {
  const last = isChat ? messages.findLastIndex((item) => item.role === "user") : 0;
  const choice = choices[0] ?? null;
  return {
    messages: [...messages.slice(Math.max(0, last)), ...(choice?.messages ?? [])],
    choice: isChat ? choice : null,
    isWhole: last <= 0 && choices.length < 2,
  };
}
