// The one-line form of values, for cells of lists: words, small pictures, what refs point to.
import { h } from "./dom.js";
import { cut, oneLine, parseRef, plural } from "./format.js";
import { refHref } from "./panels.js";
import { icon, thumbnails } from "./parts.js";
import { problemText } from "./problem.js";
import { isRef, targetOf } from "./refs.js";
import { link, loadStyle, path } from "./router.js";
import { mediaIn, readValue, refName, saidIn, valueText } from "./values.js";

await loadStyle("lib/line");

/**
 * Any value on one line.
 * @param {any} value
 * @param {{length?: number, kind?: string, clamp?: boolean}} [options] `kind` is a class; with `clamp` it may take two lines
 */
export function valueLine(value, { length = 200, kind = "", clamp = false } = {}) {
  return h(clamp ? "span.valueline.clamp" : "span.valueline", { dir: "auto", class: kind, title: () => cut(lineText(value, 2000), 2000) },
    () => (isRef(value) && !isPart(parseRef(value)) ? [thumbnails(mediaIn(targetOf(value).value?.value)), refChip(value)]
      : [thumbnails(mediaIn(value)), clamp ? linesOf(value) : lineText(value, length)]));
}

/** Whether a ref leads into what it names, so that it is shown as what lies there. */
export const isPart = (named) => named?.kind === "table" || (named?.kind === "object" && Boolean(named.extra));

/** A ref as a link with the name of its target; a dead one says so. */
export function refChip(ref, found = targetOf(ref).value) {
  const named = parseRef(ref);
  const href = found?.call ? link(path`/traces/${found.call.trace_id}`, { call: named.name }) : refHref(ref);
  const version = named && (named.kind === "object" || named.kind === "op") ? named.digest.slice(0, 6) : "";
  const text = [found?.call ? found.call.name : refName(ref), version && h("span.faint", `:${version}`)];
  if (found?.gone) return h("span.refchip.gone", { title: ref }, icon("link"), text, h("span.faint", "no longer exists"));
  return href ? h("a.refchip", { href, title: ref, dir: "auto" }, icon("link"), text) : h("span.refchip", { title: ref }, icon("link"), text);
}

/** Whether a value is JSON and no more: nothing in it has a form of its own. */
export function isPlainJson(value) {
  return ["fields", "list"].includes(readValue(value).kind) && !value._type && !saidIn(value) && !mediaIn(value, 1).length
    && !JSON.stringify(value).includes('"weave:///');
}

/** The words of a value with their line breaks, an entry of an object per line, for a cell of several lines. */
function linesOf(value) {
  const { kind, fields } = readValue(value);
  if (kind === "fields" && fields.length > 1 && !saidIn(value)) {
    return fields.map(([name, item]) => [name, lineText(item, 300)]).filter(([, said]) => said).map(([name, said]) => `${name}: ${said}`).join("\n");
  }
  return cut(["fields", "list", "table", "media"].includes(kind) ? lineText(value, 600) : wordsOf(value, 5).replace(/\n\s*\n/g, "\n"), 600);
}

/** A value's words on one line; what is shown as a picture is not named again. */
export function lineText(value, length = 200) {
  if (value === null || value === undefined) return "";
  if (["number", "bigint", "boolean"].includes(typeof value)) return String(value);
  return oneLine(wordsOf(value, 5), length);
}

function wordsOf(value, levels) {
  const said = saidIn(value);
  if (said) return said;
  const found = readValue(value);
  if (found.kind === "markdown") return found.text.slice(0, 2000).replace(/^\s*(#{1,6}|>|[-*+])\s+|[*`]{1,3}/gm, "");
  const target = found.kind === "ref" && levels && isPart(parseRef(found.text)) ? targetOf(found.text).value : null;
  if (target && "value" in target) return wordsOf(target.value, levels - 1);
  if (found.kind === "problem") return problemText(found.text);
  if (found.kind === "media") return found.part.uri?.startsWith("http") ? found.part.uri : "";
  if (found.kind === "table") {
    const first = found.columns.length ? Object.fromEntries(found.columns.map((name, place) => [name, found.rows[0]?.[place]])) : found.rows[0];
    return `${plural(found.rows.length, "row")}: ${levels ? wordsOf(first, levels - 1) : "…"}`;
  }
  if (found.kind === "list") {
    const items = found.value.slice(0, 20).map((item) => (levels ? wordsOf(item, levels - 1) : "…"));
    return items.filter(Boolean).join(", ") + (found.value.length > 20 ? ", …" : "");
  }
  if (found.kind !== "fields") return cut(valueText(value), 2000);
  const words = found.fields.slice(0, 20).map(([name, item]) => [name, levels ? wordsOf(item, levels - 1) : "…", item]);
  return words.filter(([, said, item]) => said || item === "" || item === null).map(([name, said]) => `${name}: ${said}`).join(", ");
}
