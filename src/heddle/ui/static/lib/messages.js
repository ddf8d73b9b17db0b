// The conversation that a stored call holds, whichever provider's wire its inputs and output are written in.
import { isMessage, message, messagesFrom, parsed } from "./message_parts.js";

/**
 * @typedef {import("./message_parts.js").Message} Message
 * @typedef {{messages: Message[], finish: string, logprobs: any[]|null}} Choice
 */

const INPUT_KEYS = [
  "messages",
  "gen_ai.input.messages",
  "gen_ai.prompt",
  "llm.input_messages",
  "input_messages",
  "contents",
  "ai.prompt",
  "ai.prompt.messages",
  "chat_history",
  "input",
  "prompt",
  "prompts",
];
const OUTPUT_KEYS = [
  "gen_ai.output.messages",
  "gen_ai.completion",
  "llm.output_messages",
  "output_messages",
  "ai.response",
  "message",
  "messages",
  "output",
  "content",
  "text",
];

/**
 * What was said to a model and what it answered, one choice per answer; null when the call holds no conversation.
 * @param {any} call a stored call
 * @returns {{messages: Message[], choices: Choice[], tools: any[]}|null}
 */
export function conversationOf(call) {
  const inputs = call?.inputs && typeof call.inputs === "object" ? call.inputs : {};
  const [said, isCertain] = inputMessages(inputs, call);
  const choices = choicesOf(call?.output, said.length > 0);
  const isChat = isCertain
    ? said.length > 0 || choices.length > 0
    : said.length > 0 && (isModelCall(call) || isAnswer(call?.output));
  if (!isChat && !(choices.length && isAnswer(call?.output))) return null;
  return { messages: said, choices: withoutRepeated(choices, said), tools: toolsOf(inputs, call) };
}

/** The tools that the model was offered, as OpenAI's wire has them. */
function toolsOf(inputs, call) {
  const given = parsed(inputs.tools ?? inputs.functions ?? inputs.config?.tools ?? call?.attributes?.tools);
  if (!Array.isArray(given)) return [];
  return given.flatMap((tool) => {
    if (tool?.function_declarations) return tool.function_declarations.map((item) => ({ type: "function", function: item }));
    if (tool?.function) return [tool];
    return tool?.name
      ? [
          {
            type: "function",
            function: { name: tool.name, description: tool.description, parameters: tool.input_schema ?? tool.parameters },
          },
        ]
      : [];
  });
}

function isModelCall(call) {
  const attributes = call?.attributes ?? {};
  return (
    (attributes.kind ?? attributes.weave?.kind) === "llm" ||
    Boolean(call?.summary?.usage && Object.keys(call.summary.usage).length)
  );
}

/**
 * The messages of the inputs, and whether they certainly are a conversation (not just a text called "input").
 * @returns {[Message[], boolean]}
 */
function inputMessages(inputs, call) {
  const system = systemOf(inputs, call);
  for (const key of INPUT_KEYS) {
    const value = parsed(inputs[key] ?? inputs.kwargs?.[key]);
    if (value == null || value === "") continue;
    const inner = parsed(value.messages ?? value);
    const list = Array.isArray(inner) ? inner.flat() : [inner];
    if (key !== "prompts" && list.some(isMessage)) return [[...systemUnless(list, system), ...messagesFrom(inner)], true];
    if (list.every((item) => typeof item === "string") || key === "contents") return [[...system, ...messagesFrom(inner)], false];
    if (value.prompt || value.system) return [[...messagesFrom(value.system, "system"), ...messagesFrom(value.prompt)], true];
  }
  const indexed = byIndex(inputs["gen_ai.prompt"] ?? inputs.gen_ai?.prompt);
  return [indexed.length ? [...system, ...messagesFrom(indexed)] : [], indexed.length > 0];
}

const systemUnless = (list, system) => (list.some((item) => item?.role === "system") ? [] : system);

function systemOf(inputs, call) {
  const config = inputs.config ?? inputs.kwargs ?? {};
  const value =
    inputs.system ??
    inputs.instructions ??
    inputs.system_instruction ??
    inputs.systemInstruction ??
    config.system_instruction ??
    inputs["gen_ai.system_instructions"] ??
    systemAttribute(call, inputs);
  const found = messagesFrom(parsed(value), "system");
  return found.map((item) => ({ ...item, role: "system" }));
}

/** OTel spans keep instructions as an attribute; the same name may hold the provider, which is no message. */
function systemAttribute(call, inputs) {
  const value = call?.attributes?.system;
  return Object.keys(inputs).some((key) => key.startsWith("gen_ai.")) && Array.isArray(value) ? value : null;
}

/** `{"0": {role, content}, …}` as a list. */
function byIndex(value) {
  if (!value || typeof value !== "object" || Array.isArray(value)) return [];
  return Object.keys(value).every((key) => /^\d+$/.test(key)) ? Object.values(value) : [];
}

/** Whether an output can only be what a model answered. */
function isAnswer(output) {
  if (!output || typeof output !== "object") return false;
  if (Array.isArray(output)) return output.length > 0 && output.every(isMessage);
  if (Array.isArray(output.choices))
    return output.choices.some(
      (item) => item && typeof item === "object" && ("message" in item || "text" in item || "delta" in item),
    );
  return (
    isMessage(output) ||
    Boolean(
      output.candidates ||
      output.generations ||
      output["gen_ai.output.messages"] ||
      output["gen_ai.completion"] ||
      output["ai.response"],
    ) ||
    (Array.isArray(output.output) && output.output.some(isMessage)) ||
    (Array.isArray(output.messages) && output.messages.some(isMessage))
  );
}

function choicesOf(output, isChat) {
  const value = parsed(output);
  if (value == null) return [];
  if (Array.isArray(value.choices)) return value.choices.filter(Boolean).map(openaiChoice);
  if (Array.isArray(value.candidates))
    return value.candidates.map((item) =>
      choice(messagesFrom(item.content ?? {}, "assistant"), item.finish_reason ?? item.finishReason),
    );
  if (Array.isArray(value.generations))
    return value.generations
      .flat()
      .map((item) => choice(messagesFrom(item.message ?? item.text, "assistant"), item.generation_info?.finish_reason));
  if (Array.isArray(value.output) && value.output.some(isMessage))
    return [choice(joined(messagesFrom(value.output, "assistant")), value.status === "incomplete" ? "length" : "")];
  if (isMessage(value) || (Array.isArray(value) && value.some(isMessage)))
    return [choice(messagesFrom(value, "assistant"), value.stop_reason)];
  const inner = OUTPUT_KEYS.map((key) => parsed(value[key])).find((item) => item != null && item !== "");
  if (typeof value === "object" && inner !== undefined) {
    const list = byIndex(inner);
    return [choice(messagesFrom(list.length ? list : (inner.messages ?? inner), "assistant"), "")];
  }
  if (!isChat) return [];
  return [
    choice(
      [
        typeof value === "object"
          ? message("assistant", [{ type: "data", value }])
          : message("assistant", [{ type: "text", text: String(value) }]),
      ],
      "",
    ),
  ];
}

function choice(messages, finish, logprobs = null) {
  return { messages, finish: typeof finish === "string" ? finish : "", logprobs };
}

/** A choice of a chat completion, whole or as the parts of its stream were put together. */
export function openaiChoice(item) {
  const said = item.message ?? item.delta ?? { role: "assistant", content: item.text };
  const logprobs = item.logprobs?.content ?? null;
  return choice(
    messagesFrom(said, "assistant"),
    item.finish_reason,
    Array.isArray(logprobs) && logprobs.length ? logprobs : null,
  );
}

/** Reasoning, text and calls of one answer are several items on some wires: one message here. */
function joined(messages) {
  const all = [];
  for (const item of messages) {
    const last = all.at(-1);
    if (last?.role === "assistant" && item.role === "assistant" && !last.toolCalls.length) {
      all[all.length - 1] = { ...last, parts: [...last.parts, ...item.parts], toolCalls: item.toolCalls };
    } else all.push(item);
  }
  return all;
}

/** An agent's output often repeats its whole state: what was said before is not said again. */
function withoutRepeated(choices, said) {
  if (!said.length) return choices;
  const first = said.filter((item) => item.role !== "system");
  return choices.map((item) => {
    const repeats = item.messages.length > first.length && first.every((before, index) => sameText(before, item.messages[index]));
    return repeats ? { ...item, messages: item.messages.slice(first.length) } : item;
  });
}

const sameText = (one, other) => one.role === other?.role && JSON.stringify(one.parts) === JSON.stringify(other.parts);

/** What a message says, without reasoning, pictures and tools. */
export function plainText(item) {
  return item.parts
    .filter((part) => part.type === "text" || part.type === "refusal")
    .map((part) => part.text)
    .join("\n\n");
}

/** A message on OpenAI's wire again, for the playground and for prompts. */
export function toOpenai(item) {
  const isText = item.parts.every((part) => part.type === "text" || part.type === "reasoning");
  const content = isText ? plainText(item) : item.parts.filter((part) => part.type !== "reasoning").map(openaiPart);
  const made = /** @type {any} */ ({ role: item.role, content });
  if (item.name) made.name = item.name;
  if (item.role === "tool") made.tool_call_id = item.toolCallId;
  if (item.toolCalls.length) {
    made.tool_calls = item.toolCalls.map((call) => ({
      id: call.id,
      type: "function",
      function: {
        name: call.name,
        arguments: typeof call.arguments === "string" ? call.arguments : JSON.stringify(call.arguments),
      },
    }));
  }
  return made;
}

function openaiPart(part) {
  if (part.type === "text" || part.type === "refusal") return { type: "text", text: part.text };
  if (part.type !== "image") return { type: "text", text: JSON.stringify(part.value ?? part.source ?? "") };
  const { uri, base64, mime } = part.source;
  return { type: "image_url", image_url: { url: uri ?? `data:${mime ?? "image/png"};base64,${base64}` } };
}

/**
 * What one turn of a thread said: the last words of the user and the answer; for calls that are no chat, their inputs and output.
 * @param {any} call
 * @returns {{messages: Message[], choice: Choice|null, isWhole: boolean}} `isWhole` says that the call's chat holds no more
 */
export function turnOf(call) {
  const found = conversationOf(call);
  if (found) {
    const last = found.messages.findLastIndex((item) => item.role === "user");
    const messages = [...found.messages.slice(Math.max(0, last)), ...(found.choices[0]?.messages ?? [])];
    return { messages, choice: found.choices[0] ?? null, isWhole: last <= 0 && found.choices.length < 2 };
  }
  const inputs = Object.entries(call.inputs ?? {}).filter(([name]) => name !== "self");
  const said =
    inputs.length === 1 && typeof inputs[0][1] === "string"
      ? { type: "text", text: inputs[0][1] }
      : { type: "data", value: Object.fromEntries(inputs) };
  const answer = typeof call.output === "string" ? { type: "text", text: call.output } : { type: "data", value: call.output };
  const messages = [
    ...(inputs.length ? [message("user", [/** @type {any} */ (said)])] : []),
    ...(call.output == null ? [] : [message("assistant", [/** @type {any} */ (answer)])]),
  ];
  return { messages, choice: null, isWhole: true };
}
