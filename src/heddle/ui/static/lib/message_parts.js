// One message of any provider's wire as {role, parts, …}, the one form that the chat view knows.

/**
 * @typedef {{uri?: string, base64?: string, mime?: string, files?: Record<string, string>, name?: string}} Source
 * @typedef {{type: "text"|"reasoning"|"refusal"|"image"|"audio"|"file"|"data", text?: string, source?: Source, value?: any}} Part
 * @typedef {{id: string, name: string, arguments: any}} ToolCall
 * @typedef {{role: string, name: string, parts: Part[], toolCalls: ToolCall[], toolCallId: string}} Message
 */

const ROLES = {
  human: "user",
  ai: "assistant",
  model: "assistant",
  bot: "assistant",
  function: "tool",
  tool_result: "tool",
  HumanMessage: "user",
  AIMessage: "assistant",
  AIMessageChunk: "assistant",
  SystemMessage: "system",
  ToolMessage: "tool",
  FunctionMessage: "tool",
  ChatMessage: "user",
};
const KNOWN = new Set(["system", "developer", "user", "assistant", "tool"]);

/**
 * The messages that a value holds: a list of them, one, or a bare text.
 * @param {any} value
 * @param {string} role of those that name none
 * @returns {Message[]}
 */
export function messagesFrom(value, role = "user") {
  if (value == null || value === "") return [];
  if (Array.isArray(value)) return value.flatMap((item) => messagesFrom(item, role));
  if (typeof value !== "object") return [message(role, [{ type: "text", text: String(value) }])];
  return fromObject(value, role);
}

/** Whether a value looks like one message, or like one item of the responses API. */
export function isMessage(value) {
  if (!value || typeof value !== "object" || Array.isArray(value)) return false;
  if (value.lc && value.kwargs) return true;
  if (typeof value.role === "string")
    return "content" in value || "parts" in value || "tool_calls" in value || "function_call" in value;
  return typeof value.type === "string" && ((value.type in ROLES && "content" in value) || isItem(value.type));
}

/** An empty message of a role. */
export function message(role, parts = [], rest = {}) {
  return { role, name: "", parts, toolCalls: [], toolCallId: "", ...rest };
}

const isItem = (type) =>
  type === "function_call" || type === "function_call_output" || type === "reasoning" || type.endsWith("_call");

function fromObject(raw, role) {
  if (raw.lc && raw.kwargs) return fromObject({ ...raw.kwargs, type: raw.kwargs.type ?? raw.id?.at?.(-1) }, role);
  if (typeof raw.type === "string" && isItem(raw.type) && !raw.role) return fromItem(raw);
  if (isPart(raw)) return fromObject({ role, content: [raw] }, role);
  const found = message(roleOf(raw, role), [], { name: textOf(raw.name), toolCallId: textOf(raw.tool_call_id) });
  const results = [];
  const thought = raw.reasoning_content ?? raw.reasoning ?? raw.additional_kwargs?.reasoning_content;
  if (typeof thought === "string" && thought) found.parts.push({ type: "reasoning", text: thought });
  collect(contentOf(raw), found, results);
  if (typeof raw.refusal === "string" && raw.refusal) found.parts.push({ type: "refusal", text: raw.refusal });
  if (raw.audio && typeof raw.audio === "object") found.parts.push(...audioOf(raw.audio));
  const calls = raw.tool_calls?.length ? raw.tool_calls : raw.additional_kwargs?.tool_calls;
  if (Array.isArray(calls)) found.toolCalls.push(...calls.map(toolCall));
  if (raw.function_call) found.toolCalls.push(toolCall(raw.function_call));
  const isEmpty = !found.parts.length && !found.toolCalls.length;
  return isEmpty && results.length ? results : [...results, found];
}

const isPart = (raw) =>
  typeof raw.type === "string" && !(raw.type in ROLES) && !KNOWN.has(raw.type) && !raw.role && raw.type !== "message";

function contentOf(raw) {
  const content = raw.content ?? raw.parts ?? raw.text ?? raw.message;
  return raw.content === null && raw.parts ? raw.parts : content;
}

function roleOf(raw, fallback) {
  const named = raw.role ?? (raw.type === "message" ? fallback : raw.type) ?? fallback;
  const role = String(named?.value ?? named);
  return ROLES[role] ?? role.toLowerCase();
}

/** An item of the responses API. */
function fromItem(raw) {
  if (raw.type === "function_call_output") {
    const found = message("tool", [], { toolCallId: textOf(raw.call_id) });
    collect(raw.output, found, []);
    return [found];
  }
  if (raw.type === "reasoning") {
    const texts = [raw.summary, raw.content]
      .flat()
      .map((item) => item?.text ?? item)
      .filter((text) => typeof text === "string" && text);
    return texts.length ? [message("assistant", [{ type: "reasoning", text: texts.join("\n\n") }])] : [];
  }
  if (raw.type === "function_call")
    return [message("assistant", [], { toolCalls: [toolCall({ ...raw, id: raw.call_id ?? raw.id })] })];
  const { type, id, status, ...rest } = raw;
  return [message("assistant", [], { toolCalls: [{ id: textOf(id), name: type.replace(/_call$/, ""), arguments: rest }] })];
}

/** A tool call of any wire: OpenAI's, LangChain's, Anthropic's, Google's, the GenAI conventions'. */
export function toolCall(raw) {
  const inner = raw?.function ?? raw ?? {};
  const given = inner.arguments ?? inner.args ?? inner.input ?? inner.parameters ?? {};
  return { id: textOf(raw?.id ?? raw?.call_id), name: textOf(inner.name) || "tool", arguments: parsed(given) };
}

/** A text that is a JSON object or list as that, anything else as it is. */
export function parsed(value) {
  if (typeof value !== "string") return value;
  const start = value.trimStart()[0];
  if (start !== "{" && start !== "[") return value;
  try {
    return JSON.parse(value);
  } catch {
    return value;
  }
}

function collect(content, found, results) {
  if (content == null || content === "") return;
  for (const part of Array.isArray(content) ? content : [content]) addPart(part, found, results);
}

function addPart(part, found, results) {
  if (part == null) return;
  if (typeof part !== "object") found.parts.push({ type: "text", text: String(part) });
  else if (isStored(part)) found.parts.push(mediaPart({ files: part.files, name: part.weave_type?.type }, storedKind(part)));
  else (READERS[part.type ?? keyOf(part)] ?? other)(part, found, results);
}

const keyOf = (part) =>
  [
    "text",
    "inlineData",
    "inline_data",
    "fileData",
    "file_data",
    "functionCall",
    "function_call",
    "functionResponse",
    "function_response",
  ].find((key) => part[key] != null);

function other(part, found) {
  found.parts.push(
    typeof part.text === "string"
      ? { type: part.thought ? "reasoning" : "text", text: part.text }
      : { type: "data", value: part },
  );
}

const text = (part, found) => {
  const value = part.text ?? part.content ?? part.value;
  if (typeof value !== "string") other(part, found);
  else if (value || !found.parts.length) found.parts.push({ type: part.thought ? "reasoning" : "text", text: value });
};
const reasoning = (part, found) => {
  const value = part.thinking ?? part.reasoning ?? part.content ?? part.text ?? "";
  found.parts.push({ type: "reasoning", text: textOf(value) });
};
const call = (part, found) =>
  found.toolCalls.push(
    toolCall({
      ...part,
      ...part.functionCall,
      ...part.function_call,
      id: part.id ?? part.toolCallId ?? part.functionCall?.id,
      name: part.name ?? part.toolName ?? part.functionCall?.name ?? part.function_call?.name,
    }),
  );
const result = (part, found, results) => {
  const inner = part.functionResponse ?? part.function_response ?? part;
  const made = message("tool", [], {
    toolCallId: textOf(inner.tool_use_id ?? inner.toolCallId ?? inner.id),
    name: textOf(inner.name ?? inner.toolName),
  });
  const value = inner.content ?? inner.response ?? inner.result ?? inner.output;
  if (value && typeof value === "object" && !Array.isArray(value)) made.parts.push({ type: "data", value });
  else collect(value, made, []);
  results.push(made);
};
const image = (part, found) => found.parts.push(mediaPart(sourceOf(part), "image"));
const audio = (part, found) => found.parts.push(...audioOf(part.input_audio ?? part.audio ?? part));
const media = (part, found) => {
  const source = sourceOf(part.inlineData ?? part.inline_data ?? part.fileData ?? part.file_data ?? part);
  const kind = part.modality ?? source.mime?.split("/")[0];
  found.parts.push(mediaPart(source, kind === "image" || kind === "audio" ? kind : "file"));
};

const READERS = {
  text,
  input_text: text,
  output_text: text,
  thinking: reasoning,
  reasoning,
  redacted_thinking: reasoning,
  refusal: (part, found) => found.parts.push({ type: "refusal", text: textOf(part.refusal) }),
  tool_use: call,
  server_tool_use: call,
  tool_call: call,
  "tool-call": call,
  functionCall: call,
  function_call: call,
  tool_result: result,
  tool_call_response: result,
  "tool-result": result,
  functionResponse: result,
  function_response: result,
  image_url: image,
  input_image: image,
  image,
  input_audio: audio,
  audio,
  blob: media,
  uri: media,
  file: media,
  input_file: media,
  document: media,
  inlineData: media,
  inline_data: media,
  fileData: media,
  file_data: media,
};

const mediaPart = (source, type) => ({ type, source });

function audioOf(raw) {
  const parts = [];
  const source = sourceOf(raw);
  if (source.files || source.base64 || source.uri)
    parts.push(mediaPart({ ...source, mime: source.mime ?? `audio/${raw.format ?? "wav"}` }, "audio"));
  if (typeof raw.transcript === "string") parts.push({ type: "text", text: raw.transcript });
  return parts;
}

/** Where the bytes of an image, sound or file are. */
function sourceOf(raw) {
  const value =
    raw.image_url?.url ??
    raw.image_url ??
    raw.source ??
    raw.image ??
    raw.data ??
    raw.url ??
    raw.uri ??
    raw.fileUri ??
    raw.file_uri ??
    raw.file ??
    raw.content ??
    raw.blob;
  const mime = raw.mime_type ?? raw.mimeType ?? raw.media_type ?? raw.mediaType;
  if (isStored(value)) return { files: value.files, name: value.weave_type?.type };
  if (value && typeof value === "object" && value !== raw) return { mime, ...sourceOf(value) };
  if (typeof value !== "string") return { mime, name: textOf(raw.filename ?? raw.file_id ?? raw.name) };
  const isAddress = /^(data:|https?:|blob:|gs:|s3:|file:)/.test(value);
  return isAddress ? { uri: value, mime } : { base64: value, mime };
}

/** Whether a value is a file that the SDK or the server stored: a picture, sound or other content. */
export const isStored = (value) =>
  Boolean(value && typeof value === "object" && value._type === "CustomWeaveType" && value.files);

/** "image", "audio" or "file", by the names of a stored object's files and its class. */
export function storedKind(value) {
  const told = `${Object.keys(value.files).join(" ")} ${value.weave_type?.type ?? ""}`;
  if (/\.(png|jpe?g|gif|webp)\b|PIL\.Image/.test(told)) return "image";
  return /\.(wav|mp3|ogg|flac)\b|[Aa]udio/.test(told) ? "audio" : "file";
}

function textOf(value) {
  return typeof value === "string" ? value : value == null ? "" : JSON.stringify(value);
}
