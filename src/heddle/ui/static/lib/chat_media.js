// Pictures, sounds and files of a message: stored ones come through the API, those of other hosts are never fetched.
import { h, onCleanup, signal } from "./dom.js";
import { request } from "./data.js";
import { dialog } from "./dialog.js";
import { anchor, remotePicture } from "./markdown_inline.js";
import { icon, skeleton } from "./parts.js";

const TYPES = {
  png: "image/png",
  jpg: "image/jpeg",
  jpeg: "image/jpeg",
  gif: "image/gif",
  webp: "image/webp",
  wav: "audio/wav",
  mp3: "audio/mpeg",
  ogg: "audio/ogg",
  flac: "audio/flac",
  mp4: "video/mp4",
  webm: "video/webm",
};

/**
 * What a media part shows.
 * @param {import("./message_parts.js").Part} part
 * @param {string} project "entity/project", where stored files are read from
 */
export function mediaNode(part, project) {
  const source = part.source ?? {};
  if (source.files) return storedNode(source.files, project);
  if (source.base64)
    return shown(`data:${source.mime ?? defaultType(part.type)};base64,${source.base64}`, source.mime ?? defaultType(part.type));
  const address = source.uri ?? "";
  if (address.startsWith("data:")) return shown(address, /^data:([^;,]*)/.exec(address)?.[1] || defaultType(part.type));
  if (/^https?:/.test(address))
    return part.type === "image" ? remotePicture(address) : h("span.remote", icon("link"), anchor(address, address));
  return h(
    "span.remote",
    icon("info"),
    `${part.type}${address || source.name ? `: ${address || source.name}` : " that was not stored"}`,
  );
}

const defaultType = (kind) => (kind === "audio" ? "audio/wav" : kind === "image" ? "image/png" : "application/octet-stream");

/** A stored file, read when it is shown. */
export function storedNode(files, project) {
  const state = signal(/** @type {any} */ (null));
  const abort = new AbortController();
  let address = "";
  onCleanup(() => {
    abort.abort();
    if (address) URL.revokeObjectURL(address);
  });
  readStored(files, project, abort.signal).then(
    ([blob, name]) => {
      if (abort.signal.aborted) return;
      address = URL.createObjectURL(blob);
      state.value = shown(address, blob.type, name);
    },
    (error) => {
      if (error.name !== "AbortError")
        state.value = h("span.remote", icon("info"), `This file cannot be shown: ${error.message}`);
    },
  );
  return h("div.media", () => state.value ?? skeleton(2));
}

/**
 * The bytes of a stored object with their type, and its name.
 * @returns {Promise<[Blob, string]>}
 */
export async function readStored(files, project, abort = undefined) {
  const names = Object.keys(files);
  const name = names.find((entry) => extension(entry) in TYPES) ?? names.find((entry) => !entry.includes("metadata")) ?? names[0];
  const read = async (digest) => (await request("POST", "/file/content", { project_id: project, digest }, abort)).blob();
  let type = TYPES[extension(name)] ?? "";
  let given = name;
  if (!type && files["metadata.json"]) {
    const metadata = JSON.parse(await (await read(files["metadata.json"])).text());
    type = metadata.mimetype ?? "";
    given = metadata.filename ?? metadata.original_filename ?? name;
  }
  const blob = await read(files[name]);
  return [blob.slice(0, blob.size, type || "application/octet-stream"), given];
}

const extension = (name) => name.split(".").at(-1).toLowerCase();

/** An address of this page's own (data: or blob:) as what its type says. */
function shown(address, type, name = "") {
  if (type.startsWith("image/")) return picture(address, name);
  if (type.startsWith("audio/"))
    return h("audio", { controls: true, src: address, "aria-label": name || "Sound", preload: "metadata" });
  if (type.startsWith("video/")) return h("video.picture", { controls: true, src: address, "aria-label": name || "Video" });
  return h("a.remote", { href: address, download: name || "file" }, icon("download"), `${name || "File"} (${type})`);
}

/** A picture that opens large on a click. */
function picture(address, name) {
  const label = name && name !== "content" ? name : "Picture";
  const enlarge = () => dialog(label, () => h("img.lightbox", { src: address, alt: label }), { wide: true });
  return h(
    "button.thumbnail",
    { type: "button", onclick: enlarge, "aria-label": `${label}: show large`, title: "Show large" },
    h("img.picture", { src: address, alt: "" }),
  );
}
