// What stands inside a line of Markdown: code, emphasis, links, pictures.
import { h } from "./dom.js";
import { icon } from "./parts.js";

const DEPTH = 6;
/** @type {[string, string[]][]} */
const WRAPS = [
  ["***", ["strong", "em"]],
  ["**", ["strong"]],
  ["__", ["strong"]],
  ["~~", ["s"]],
  ["*", ["em"]],
  ["_", ["em"]],
];
const SPECIAL = /[\\`*_~[\]!<h\n]/;
const ADDRESS_END = /[\s<>"'`]/;

/** A text's inline Markdown as nodes and texts. */
export function inline(text, depth = 0) {
  const found = [];
  const closers = new Map();
  let plain = "";
  const push = (node) => {
    if (plain) found.push(plain);
    plain = "";
    found.push(node);
  };
  for (let at = 0; at < text.length;) {
    const read = SPECIAL.test(text[at]) && readAt(text, at, depth, closers);
    if (read) {
      push(read[0]);
      at = read[1];
    } else plain += text[at++];
  }
  if (plain) found.push(plain);
  return found;
}

function readAt(text, at, depth, closers) {
  const letter = text[at];
  if (letter === "\n") return [/ {2}$/.test(text.slice(Math.max(0, at - 2), at)) ? h("br") : "\n", at + 1];
  if (letter === "\\") return /[!-/:-@[-`{-~]/.test(text[at + 1] ?? "") ? [text[at + 1], at + 2] : null;
  if (letter === "`") return code(text, at, closers);
  if (letter === "h") return bareLink(text, at);
  if (letter === "<") return bracketLink(text, at, closers);
  if (letter === "!") return text[at + 1] === "[" ? link(text, at + 1, depth, closers, true) : null;
  if (letter === "[") return link(text, at, depth, closers, false);
  return wrapped(text, at, depth, closers);
}

/** The first place of a mark from here on; what was looked for once is not looked for again. */
function nextOf(text, mark, from, closers) {
  const known = closers.get(mark);
  if (known !== undefined && (known >= from || known === -1)) return known;
  const place = text.indexOf(mark, from);
  closers.set(mark, place);
  return place;
}

function code(text, at, closers) {
  let length = 1;
  while (text[at + length] === "`") length++;
  if (length > 8) return null;
  const mark = "`".repeat(length);
  const end = nextOf(text, mark, at + length, closers);
  if (end < 0) return [mark, at + length];
  return [h("code", text.slice(at + length, end).replace(/\n/g, " ")), end + length];
}

function wrapped(text, at, depth, closers) {
  if (depth >= DEPTH) return null;
  const wrap = WRAPS.find(([mark]) => text.startsWith(mark, at));
  if (!wrap) return null;
  const [mark, tags] = wrap;
  const start = at + mark.length;
  const isInWord = mark[0] === "_" && /[\p{L}\p{N}]/u.test(text[at - 1] ?? "");
  if (isInWord || !text[start] || /\s/.test(text[start])) return [mark, start];
  const end = closer(text, mark, start + 1, closers);
  if (end < 0) return [mark, start];
  const inner = inline(text.slice(start, end), depth + 1);
  return [tags.reduceRight((content, tag) => h(tag, content), inner), end + mark.length];
}

/** Where emphasis ends: not after a blank, not in the middle of a longer run, with _ not inside a word. */
function closer(text, mark, from, closers) {
  const key = `end ${mark}`;
  const known = closers.get(key);
  if (known !== undefined && (known >= from || known === -1)) return known;
  let place = text.indexOf(mark, from);
  while (place >= 0) {
    const before = text[place - 1];
    const after = text[place + mark.length] ?? "";
    const isRun = mark.length === 1 && (after === mark || before === mark);
    const isInWord = mark[0] === "_" && /[\p{L}\p{N}]/u.test(after);
    if (!/\s/.test(before) && !isRun && !isInWord && before !== "\\") break;
    place = text.indexOf(mark, place + (isRun && after === mark ? 2 : 1));
  }
  closers.set(key, place);
  return place;
}

function link(text, at, depth, closers, isImage) {
  const middle = nextOf(text, "](", at + 1, closers);
  if (middle < 0 || middle - at > 1000) return null;
  const end = addressEnd(text, middle + 2);
  if (end < 0) return null;
  const label = text.slice(at + 1, middle);
  // In `[a [b](address)` the first bracket is plain.
  if (!isImage && label.includes("[")) return null;
  const address = text
    .slice(middle + 2, end)
    .trim()
    .split(/\s/)[0]
    .replace(/^<|>$/g, "");
  return [isImage ? picture(address, label) : anchor(address, depth < DEPTH ? inline(label, depth + 1) : label), end + 1];
}

function addressEnd(text, from) {
  let open = 0;
  for (let at = from; at < text.length && at - from < 4000; at++) {
    if (text[at] === "\n") return -1;
    if (text[at] === "(") open++;
    if (text[at] === ")" && open-- === 0) return at;
  }
  return -1;
}

/** A link that may be followed: http, https or mail only; anything else stays text. */
export function anchor(address, content) {
  if (!/^(https?:\/\/|mailto:)/i.test(address)) return h("span", { title: address }, content);
  return h("a.link", { href: address, target: "_blank", rel: "noopener noreferrer" }, content);
}

function picture(address, label) {
  if (/^data:image\/(png|jpeg|gif|webp);base64,/.test(address)) return h("img.picture", { src: address, alt: label || "Image" });
  return remotePicture(address, label);
}

/** A picture of another host is not loaded: a link that opens it in a new tab. */
export function remotePicture(address, label = "") {
  let host = "";
  try {
    host = new URL(address).host;
  } catch {
    // Shown as the text that it is.
  }
  return h("span.remote", icon("link"), anchor(address, [label || "Image", host && ` from ${host}`]));
}

function bareLink(text, at) {
  if (!/^https?:\/\//.test(text.slice(at, at + 8)) || /[\p{L}\p{N}]/u.test(text[at - 1] ?? "")) return null;
  let end = at;
  while (end < text.length && !ADDRESS_END.test(text[end])) end++;
  while (/[.,;:!?)\]*_]/.test(text[end - 1])) end--;
  const address = text.slice(at, end);
  return [anchor(address, address), end];
}

function bracketLink(text, at, closers) {
  if (/^<br\s*\/?>/i.test(text.slice(at, at + 8))) return [h("br"), text.indexOf(">", at) + 1];
  if (!/^<https?:/.test(text.slice(at, at + 8))) return null;
  const end = nextOf(text, ">", at + 1, closers);
  if (end < 0) return null;
  const address = text.slice(at + 1, end);
  return [anchor(address, address), end + 1];
}
