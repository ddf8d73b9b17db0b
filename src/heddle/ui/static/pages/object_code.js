// The files of a stored value: the source of an op, a class or any other custom object.
import { request, resource, textOf } from "../lib/data.js";
import { h, onCleanup } from "../lib/dom.js";
import { codeView } from "../lib/code.js";
import { attempt } from "../lib/dialog.js";
import { download } from "../lib/importers.js";
import { button, loaded } from "../lib/parts.js";
import { projectId } from "../lib/router.js";

const IMAGES = /\.(png|jpe?g|gif|webp)$/i;
const TEXTS = /\.(py|json|jsonl|txt|md|ts|js|toml|ya?ml|csv|sql|html|css)$/i;

/** The files that a stored value names: [[file name, digest], …], the code first. */
export function filesOf(value) {
  const files = value?._type === "CustomWeaveType" && value.files && typeof value.files === "object" ? value.files : {};
  return Object.entries(files)
    .filter(([, digest]) => typeof digest === "string")
    .sort(([one], [other]) => Number(other === "obj.py") - Number(one === "obj.py"));
}

/** The text of a stored file. */
export async function fileText(digest, abort) {
  return textOf(await request("POST", "/file/content", { project_id: projectId(), digest }, abort));
}

/** The source of a version, or an empty text where it holds none. */
export async function sourceOf(value, abort) {
  const [first] = filesOf(value);
  return first ? fileText(first[1], abort) : "";
}

const languageOf = (name) => (name.endsWith(".py") ? "python" : /\.jsonl?$/.test(name) ? "json" : "");

/** A file that is no text: pictures are shown, others can be saved. */
function binary(name, digest) {
  const state = resource(
    () => (IMAGES.test(name) ? [digest] : null),
    async ([wanted], abort) => {
      const answer = await request("POST", "/file/content", { project_id: projectId(), digest: wanted }, abort);
      return URL.createObjectURL(await answer.blob());
    },
  );
  onCleanup(() => state.data.peek() && URL.revokeObjectURL(state.data.peek()));
  const save = () =>
    attempt(async () => {
      const answer = await request("POST", "/file/content", { project_id: projectId(), digest });
      download(name, [await answer.blob()], "application/octet-stream");
    });
  return h(
    "figure.storedfile",
    loaded(state, (address) => h("img", { src: address, alt: name })),
    h("figcaption", h("span.mono", name), button("Download", save, { iconName: "download" })),
  );
}

/** All files of a value, one below the other. */
export function filesView(files) {
  return files.map(([name, digest]) => {
    if (!TEXTS.test(name)) return binary(name, digest);
    const state = resource(
      () => [digest],
      ([wanted], abort) => fileText(wanted, abort),
    );
    return [
      files.length > 1 ? h("h3", name) : null,
      h(
        "div",
        loaded(state, (text) => codeView(text, { language: languageOf(name), label: name })),
      ),
    ];
  });
}
