// Pictures, sounds, films and files: stored ones come through the API, those of other hosts are never fetched. What a
// file is, its bytes say; nothing that could run a script is ever given a type under which it would.
import { h, onCleanup, signal } from "./dom.js";
import { request } from "./data.js";
import { dialog } from "./dialog.js";
import { bytes as size } from "./format.js";
import { anchor, remotePicture } from "./markdown_inline.js";
import { button, icon } from "./parts.js";
import { loadStyle } from "./router.js";
import { loadView } from "./views.js";

await loadStyle("lib/media");

/** Larger files are loaded when the reader asks for them. */
const LARGEST = 24_000_000;
const MOST_KEPT = 48_000_000;
const LONGEST_TEXT = 200_000;

/**
 * How the bytes of a type begin: [type, text or pattern of the first bytes as Latin-1].
 * @type {[string, RegExp][]}
 */
const BEGINNINGS = [
  ["image/png", /^\x89PNG\r\n/],
  ["image/jpeg", /^\xff\xd8\xff/],
  ["image/gif", /^GIF8[79]a/],
  ["image/webp", /^RIFF[^]{4}WEBP/],
  ["image/bmp", /^BM[^]{4}\0\0\0\0/],
  ["image/avif", /^[^]{4}ftypavi[fs]/],
  ["image/svg+xml", /^\s*(<\?xml[^>]*>\s*)?(<!--[^]*?-->\s*)?(<!DOCTYPE svg[^>]*>\s*)?<svg[\s>]/i],
  ["audio/wav", /^RIFF[^]{4}WAVE/],
  ["audio/mpeg", /^(ID3|\xff[\xe2-\xfb])/],
  ["audio/ogg", /^OggS/],
  ["audio/flac", /^fLaC/],
  ["video/webm", /^\x1aE\xdf\xa3/],
  ["video/mp4", /^[^]{4}ftyp/],
  ["application/pdf", /^%PDF-/],
];
const TEXTS = /^(text\/|application\/(json|jsonl|x-ndjson|xml|yaml|x-yaml|toml|javascript|x-python)|.*\+json$)/;
const SPOKEN = { image: "Picture", audio: "Sound", video: "Film" };

/**
 * What a media part shows: a picture, a player, a document, a text, or a file to save.
 * @param {import("./messages.js").Part} part
 * @param {string} project "entity/project", where stored files are read from
 */
export function mediaNode(part, project) {
  if (part.files || inlineOf(part)) return whenSeen("div.media", (show) => load(part, project, show, shown));
  return elsewhere(part);
}

/** The same as large as a line of text: a small picture, or what kind of file it is. */
export function thumbnail(part, project) {
  const name = part.filename || SPOKEN[part.modality ?? ""] || "File";
  const symbol = h("span.filechip", { title: name }, icon(part.modality === "audio" || part.modality === "video" ? "play" : "file"),
    SPOKEN[part.modality ?? ""] ?? "File");
  if (part.modality && part.modality !== "image" && part.modality !== "file") return symbol;
  if (!part.files && !inlineOf(part)) return symbol;
  return whenSeen("span.thumbslot", (show) => load(part, project, show, (address, type, given) =>
    (type.startsWith("image/") ? h("img.thumb", { src: address, alt: given || "Picture" }) : h("span.filechip", { title: given },
      icon(/^(audio|video)/.test(type) ? "play" : "file"), given || typeName(type)))));
}

const typeName = (type) => SPOKEN[type.split("/")[0]] ?? (type === "application/pdf" ? "PDF" : "File");

/** An element that is filled when it comes into view; `begin(show)` calls `show` with what is to be seen. */
function whenSeen(tag, begin) {
  const content = signal(/** @type {any} */ (null));
  const show = (node) => {
    content.value = node;
  };
  const element = h(tag, () => content.value);
  let end = null;
  const observer = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    observer.disconnect();
    end = begin(show);
  }, { rootMargin: "300px" });
  observer.observe(element);
  onCleanup(() => {
    observer.disconnect();
    end?.();
  });
  return element;
}

/** Read a part and show it by `make(address, type, name, blob)`; returns what frees it. */
function load(part, project, show, make) {
  const abort = new AbortController();
  let address = "";
  const fail = (error, again) => {
    if (error instanceof TooLarge) show(button(`Load ${size(error.size)}`, () => begin(Infinity), { iconName: "download" }));
    else if (error.name !== "AbortError") show(h("span.remote", icon("info"), `This file cannot be shown: ${error.message}`,
      part.files && button("Try again", again, { kind: "quiet" })));
  };
  const begin = (most) => {
    const read = part.files ? readStored(part.files, project, abort.signal, most) : Promise.resolve([inlineOf(part), part.name ?? ""]);
    read.then(([blob, name]) => {
      if (abort.signal.aborted) return;
      address = URL.createObjectURL(blob);
      show(make(address, blob.type, name, blob));
    }).catch((error) => fail(error, () => begin(most)));
  };
  begin(LARGEST);
  return () => {
    abort.abort();
    if (address) URL.revokeObjectURL(address);
  };
}

/** What is not stored here: an address of another host is a link, a name is told. */
function elsewhere(part) {
  const kind = part.modality ?? "file";
  const address = part.uri ?? "";
  if (/^https?:/.test(address))
    return kind === "image" ? remotePicture(address) : h("span.remote", icon("link"), anchor(address, address));
  const named = address.slice(0, 500) || part.name;
  return h("span.remote", icon("info"), `${kind}${named ? `: ${named}` : " (not stored)"}`);
}

const inlined = new WeakMap();

/** The bytes that a part holds itself, as a blob of a safe type; null where it holds none. */
function inlineOf(part) {
  if (!inlined.has(part)) inlined.set(part, decoded(part));
  return inlined.get(part);
}

function decoded({ type, content, uri = "", mime_type: told = "", modality = "" }) {
  const found = type === "blob" ? [null, told, ";base64", content] : /^data:([^;,]*)([^,]*),([^]*)$/.exec(uri);
  if (!found) return null;
  try {
    const text = found[2].endsWith(";base64") ? atob(found[3].replace(/\s/g, "").replaceAll("-", "+").replaceAll("_", "/"))
      : unescape(encodeURIComponent(decodeURIComponent(found[3])));
    const bytes = Uint8Array.from(text, (letter) => letter.charCodeAt(0));
    return typed(bytes, found[1] || told || (modality === "audio" ? "audio/wav" : ""));
  } catch {
    return null;
  }
}

/** Bytes as a blob of the type that they begin as, else as text or as a mere file. */
function typed(bytes, told) {
  return new Blob([bytes], { type: safeType(bytes, told) });
}

function safeType(bytes, told) {
  const start = Array.from(bytes.subarray(0, 600), (byte) => String.fromCharCode(byte)).join("");
  const known = BEGINNINGS.find(([, pattern]) => pattern.test(start))?.[0];
  if (known) return known === "video/mp4" && told.startsWith("audio/") ? "audio/mp4" : known;
  if (/^(audio|video)\//.test(told)) return told;
  return TEXTS.test(told) && !start.includes("\0") ? "text/plain" : "application/octet-stream";
}

class TooLarge extends Error {
  constructor(count) {
    super(`it has ${size(count)}`);
    this.size = count;
  }
}

const kept = new Map();

/**
 * The bytes of a stored object with their type, and its name; what was read lately is kept.
 * @returns {Promise<[Blob, string]>}
 */
export async function readStored(files, project, abort = undefined, most = Infinity) {
  const key = `${project} ${Object.values(files).join()}`;
  const held = kept.get(key);
  if (held) return held;
  const found = await readFiles(files, project, abort, most);
  kept.set(key, found);
  let sum = 0;
  for (const [name, [blob]] of [...kept].reverse()) {
    sum += blob.size;
    if (sum > MOST_KEPT && name !== key) kept.delete(name);
  }
  return found;
}

/** @returns {Promise<[Blob, string]>} */
async function readFiles(files, project, abort, most) {
  const names = Object.keys(files);
  const name = names.find((entry) => !entry.endsWith("metadata.json")) ?? names[0];
  const read = (digest) => request("POST", "/file/content", { project_id: project, digest }, abort);
  let [type, given] = [name.endsWith(".wav") ? "audio/wav" : /\.(md|txt|py|json)$/.test(name) ? "text/plain" : "", name];
  if (name === "content" && files["metadata.json"]) {
    const told = await (await read(files["metadata.json"])).json();
    type = String(told.mimetype ?? "");
    given = String(told.filename ?? told.original_filename ?? "");
  }
  const answer = await read(files[name]);
  const count = Number(answer.headers.get("content-length") ?? 0);
  if (count > most) {
    await answer.body.cancel();
    throw new TooLarge(count);
  }
  const blob = typed(new Uint8Array(await answer.arrayBuffer()), type);
  return [blob, given === "content" ? "" : given];
}

/** A stored file, read when it comes into view. */
export const storedNode = (files, project) => mediaNode({ type: "file", files }, project);

/** An address of this page's own (blob:) as what its type says. */
function shown(address, type, name, blob) {
  if (type.startsWith("image/")) return picture(address, name, blob);
  if (type.startsWith("audio/"))
    return named(name, h("audio", { controls: true, src: address, "aria-label": name || "Sound", preload: "metadata" }));
  if (type.startsWith("video/"))
    return named(name, h("video.picture", { controls: true, src: address, "aria-label": name || "Film", preload: "metadata" }));
  if (type === "application/pdf") return pdf(address, name, blob);
  return type.startsWith("text/") ? text(address, name, blob) : saveLink(address, name, blob);
}

const named = (name, player) => h("figure.player", player, name && h("figcaption.faint", { dir: "auto" }, name));

const saveLink = (address, name, blob, ...more) =>
  h("span.remote", icon("file"), h("a", { href: address, download: name || "file", dir: "auto" }, name || "File"),
    h("span.faint", size(blob.size)), more);

/** A document, which the browser's own viewer shows in a tab of its own: the policy of these pages has no frames. */
const pdf = (address, name, blob) =>
  saveLink(address, name || "document.pdf", blob, h("a.button.quiet", { href: address, target: "_blank" }, "Open"));

/** A text file as what it holds: Markdown, a table, JSON; of markup its source. */
function text(address, name, blob) {
  const content = signal(/** @type {any} */ (null));
  Promise.all([blob.slice(0, LONGEST_TEXT).text(), loadView("value")]).then(([read, { fileView }]) => {
    content.value = fileView(read, name);
  });
  return h("div.document", saveLink(address, name, blob), () => content.value);
}

/** A picture that opens large on a click. */
function picture(address, name, blob) {
  const label = name && !/^image\.\w+$/.test(name) ? name : "Picture";
  const broken = signal(false);
  const enlarge = () => dialog(label, () => h("img.lightbox", { src: address, alt: label }), { wide: true });
  return h("span.pictureslot", () => (broken.value ? saveLink(address, name, blob) : h(
    "button.thumbnail",
    { type: "button", onclick: enlarge, "aria-label": `${label}: show large`, title: "Show large" },
    h("img.picture", { src: address, alt: "", onerror: () => { broken.value = true; } }),
  )));
}
