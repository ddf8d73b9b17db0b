// What a value is, and what it says as text: one reading for every place that shows values.
import { cut, parseRef, plural } from "./format.js";
import { parsed, plainText } from "./messages.js";
import { conversationOf, isRef, targetOf } from "./refs.js";

/**
 * @typedef {Record<string, any> & {kind: string}} Reading kinds: nothing, plain, text, markdown, ref, media, moment, code,
 *   problem, diff, table, fields, list
 */

const BASE64 = [["image/png", "iVBORw0KGgo"], ["image/jpeg", "/9j/"], ["image/gif", "R0lGOD"], ["image/webp", "UklGR"],
  ["application/pdf", "JVBERi0"]];
const MEDIA_ADDRESS = /^https?:\/\/[^\s?#]+\.(png|jpe?g|gif|webp|svg|avif)([?#]\S*)?$/i;
const TRACEBACK = /(^|\n)Traceback \(most recent call last\):|\n\s+at \S.*[(:]\d+:\d+\)?/;
const DIFF = /^(diff --git |Index: \S|--- [^\n]+\n\+\+\+ [^\n]+\n@@ |@@ -\d+(,\d+)? \+\d+)/;
const MARKDOWN = /(^|\n)(#{1,6} \S|[-*+] \S|\d{1,3}[.)] \S|> \S|```|\|.*\|.*\n\|?[\s:|-]+\|)|\*\*\S[^*\n]*\*\*|(^|[^\w`])`[^`\n]+`|\[[^\]\n]+\]\([^)\s]+\)/;
const LONGEST_LOOKED_AT = 200_000;
const MOST_LOOKED_AT = 50;
const SAID = ["role", "choices", "candidates", "generations", "parts", "inlineData", "inline_data", "fileData", "lc", "toolCalls",
  "finishReason", "image_url", "input_audio", "output", "outputs", "message", "toolUse", "output.value",
  "gen_ai.output.messages", "gen_ai.completion", "llm.output_messages", "tool_calls"];

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

/**
 * What a value is.
 * @param {any} value
 * @returns {Reading}
 */
export function readValue(value) {
  if (value === null || value === undefined) return { kind: "nothing" };
  if (typeof value === "string") return readText(value);
  if (typeof value !== "object") return { kind: "plain", text: String(value) };
  return Array.isArray(value) ? readList(value) : readObject(value);
}

/** @returns {Reading} */
function readText(text) {
  if (isRef(text)) return { kind: "ref", text };
  if (text.startsWith("data:") && /^data:[\w.+/-]*[;,]/.test(text)) return { kind: "media", part: partOf(text) };
  const start = text.length > 200 && BASE64.find(([, letters]) => text.startsWith(letters));
  if (start && /^[A-Za-z0-9+/=\s]+$/.test(text)) return { kind: "media", part: partOf(`data:${start[0]};base64,${text}`) };
  if (text.length > LONGEST_LOOKED_AT) return { kind: "text", text };
  if (MEDIA_ADDRESS.test(text)) return { kind: "media", part: partOf(text) };
  const value = parsed(text);
  if (typeof value === "object") return { ...readValue(value), of: "text" };
  if (TRACEBACK.test(text)) return { kind: "problem", text };
  if (DIFF.test(text)) return { kind: "diff", text };
  return { kind: MARKDOWN.test(text) ? "markdown" : "text", text };
}

const parts = new Map();

/** The part of an address, the same one for the same address, so that it is decoded once. */
function partOf(uri) {
  if (!parts.has(uri)) {
    if (parts.size > 300) parts.clear();
    const type = /^data:([\w.+/-]*)/.exec(uri)?.[1] ?? "";
    const modality = uri.startsWith("http") ? "image" : (/^(image|audio|video)/.exec(type)?.[0] ?? "file");
    parts.set(uri, { type: "uri", uri, modality });
  }
  return parts.get(uri);
}

/** @returns {Reading} */
function readList(list) {
  const rows = list.length > 0 && list.slice(0, MOST_LOOKED_AT).every(isObject) && list.every(isObject);
  if (rows && !list.some((row) => row._type === "CustomWeaveType" || row._class_name)) return { kind: "table", ...tableOf(list) };
  const width = Array.isArray(list[0]) ? list[0].length : 0;
  if (width > 1 && width < 40 && list.length > 1 && list.every((row) => Array.isArray(row) && row.length === width && row.every(isFlat)))
    return { kind: "table", columns: [], rows: list };
  return { kind: "list", value: list };
}

const isFlat = (value) => value === null || typeof value !== "object";

/** The columns and rows of a list of objects, columns in the order of their first appearance. */
export function tableOf(list) {
  const columns = [...new Set(list.slice(0, 500).flatMap((row) => Object.keys(row)))];
  return { columns, rows: list.map((row) => columns.map((name) => row[name])) };
}

/** @returns {Reading} */
function readObject(value) {
  if (value._type === "CustomWeaveType") return readCustom(value);
  if (typeof value.message === "string" && (Array.isArray(value.traceback) || typeof value.traceback === "string"))
    return { kind: "problem", text: JSON.stringify(value) };
  const frame = readFrame(value);
  if (frame) return { kind: "table", ...frame };
  const name = value._class_name ?? (typeof value._type === "string" ? value._type : "");
  const fields = Object.entries(value).filter(([key]) => !(name && /^_(type|class_name|bases)$/.test(key)));
  return { kind: "fields", name: typeof name === "string" && name !== "ObjectRecord" ? name : "", fields };
}

/** A data frame: columns by index, or {columns, data}; null for any other object. */
function readFrame(value) {
  const names = Object.keys(value);
  if (Array.isArray(value.columns) && Array.isArray(value.data) && value.columns.every(isFlat)
    && value.data.length && value.data.every(Array.isArray)) return { columns: value.columns.map(String), rows: value.data };
  const first = value[names[0]];
  if (!names.length || !isObject(first)) return null;
  const index = Object.keys(first);
  const isIndex = index.length > 0 && index.every((key, place) => key === String(place));
  const fits = (column) => isObject(column) && Object.keys(column).length === index.length && index.every((key) => key in column);
  if (!isIndex || !names.every((name) => fits(value[name]))) return null;
  return { columns: names, rows: index.map((key) => names.map((name) => value[name][key])) };
}

/** @returns {Reading} */
function readCustom(value) {
  const type = String(value.weave_type?.type ?? "");
  const files = isObject(value.files) ? value.files : null;
  if (type.endsWith(".Markdown") && typeof value.val?.markup === "string")
    return { kind: "markdown", text: value.val.markup };
  if (type === "datetime.datetime") return { kind: "moment", text: momentText(String(value.val)) };
  if (type === "Op" && files) return { kind: "code", part: storedPart(value, "file") };
  if (files && Object.keys(files).length) return { kind: "media", part: storedPart(value, modalityOf(type, files)) };
  return value.val === undefined || value.val === null ? { kind: "plain", text: type.split(".").at(-1) || "object" }
    : { ...readValue(value.val), of: type };
}

const stored = new WeakMap();

function storedPart(value, modality) {
  if (!stored.has(value)) stored.set(value, { type: "file", files: value.files, modality });
  return stored.get(value);
}

function modalityOf(type, files) {
  const told = `${type} ${Object.keys(files).join(" ")}`.toLowerCase();
  return /pil\.image|\.(png|jpe?g|gif|webp)/.test(told) ? "image" : /audio|wave_read|\.(wav|mp3|ogg|flac)/.test(told) ? "audio"
    : /video|\.(mp4|webm)/.test(told) ? "video" : "file";
}

const IN_MESSAGES = new Set([...SAID, "type", "content", "text", "name", "tool_call_id", "source", "object", "files"]);

/** What an object holds beside its messages: the model, tokens, ids. */
export const besideMessages = (value) =>
  (isObject(value) ? Object.fromEntries(Object.entries(value).filter(([name, item]) => !IN_MESSAGES.has(name) && item !== null)) : {});

/** Whether the server may find messages in a value. */
export function seemsSaid(value) {
  const first = Array.isArray(value) ? value[0] : value;
  if (!isObject(first) || first._type === "CustomWeaveType") return false;
  if (typeof first.type === "string" && ["content", "text", "source", "image", "file", "video", "audio", "input_audio", "data", "url",
    "uri", "arguments", "summary", "input"].some((name) => name in first)) return true;
  return SAID.some((name) => name in first);
}

/** The last words of a conversation, once the server has found one in a value; else empty. */
export function saidIn(value) {
  const found = seemsSaid(value) && conversationOf(value).value;
  const told = found ? [...found.messages, ...(found.choices[0]?.messages ?? [])] : [];
  const last = told.findLast((item) => plainText(item));
  return last ? plainText(last) : (told.at(-1)?.parts.find((part) => part.type === "tool_call")?.name ?? "");
}

/** The text of any value: its words, "name: value" for what has more, and what refs point to where that is known. */
export function valueText(value, levels = 6) {
  const found = readValue(value);
  const said = saidIn(value);
  if (said) return said;
  if (found.kind === "nothing") return "";
  if (found.kind === "ref") return refText(found.text, levels);
  if (found.kind === "media") return found.part.uri?.startsWith("http") ? found.part.uri : `[${found.part.modality}]`;
  if (found.kind === "code") return "[code]";
  if (found.kind === "table") return tableText(/** @type {any} */ (found));
  if (found.kind === "list") return levels ? found.value.map((item) => valueText(item, levels - 1)).join(", ") : "[…]";
  if (found.kind !== "fields") return found.of === "text" ? value : found.text;
  if (!levels) return "{…}";
  if (found.fields.length === 1) return valueText(found.fields[0][1], levels - 1);
  return found.fields.map(([name, item]) => `${name}: ${valueText(item, levels - 1)}`).join("\n");
}

/** What a ref says: its target where that is small and known, else the target's name. */
export function refText(ref, levels = 6) {
  const target = targetOf(ref).value;
  if (target?.call) return target.call.name;
  if (target && "value" in target && parseRef(ref)?.extra && levels) return valueText(target.value, levels - 1);
  if (target?.table) return plural(target.table.count, "row");
  return refName(ref);
}

/** The name of what a ref points to. */
export function refName(ref) {
  const found = parseRef(ref);
  if (!found) return cut(ref.replace(/^weave(-private)?:\/+/, ""), 60);
  const last = found.extra ? decodeURI(found.extra.split("/").at(-1)) : "";
  if (found.kind === "object" || found.kind === "op") return last ? `${found.name} › ${cut(last, 24)}` : found.name;
  return `${found.kind} ${found.name.slice(0, 8)}`;
}

/** A moment of an SDK as a reader's text. */
const momentText = (text) => text.replace(/^(\d{4}-\d\d-\d\d)T/, "$1 ").replace(/(\+00:00|Z)$/, " UTC");

function tableText({ columns, rows }) {
  const line = (cells) => cells.map((cell) => valueText(cell, 2).replace(/\s+/g, " ")).join("\t");
  return [...(columns.length ? [columns.join("\t")] : []), ...rows.slice(0, 1000).map(line)].join("\n");
}

/** The media anywhere in a value, at most so many. */
export function mediaIn(value, most = 3, levels = 4) {
  const found = readValue(value);
  if (found.kind === "media") return [found.part];
  if (!levels || !["fields", "list", "table", "ref"].includes(found.kind)) return [];
  if (found.kind === "ref") {
    const target = targetOf(found.text).value;
    const leads = target && "value" in target && (parseRef(found.text)?.extra || target.value?._type === "CustomWeaveType");
    return leads ? mediaIn(target.value, most, levels - 1) : [];
  }
  const items = found.kind === "fields" ? found.fields.map(([, item]) => item) : found.kind === "list" ? found.value : found.rows[0];
  const all = [];
  for (const item of items.slice(0, 20)) {
    if (all.length >= most) break;
    if (typeof item === "object" || (typeof item === "string" && /^(data:|weave:)/.test(item))) all.push(...mediaIn(item, most, levels - 1));
  }
  return all.slice(0, most);
}
