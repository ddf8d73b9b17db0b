// Any value as people read it, in the place of its JSON: prose, tables, chats, media, what refs point to, errors, diffs.
// One renderer for every page; the reader's choice of Rendered, Text or JSON holds for all values of this browser.
import { h, signal } from "./dom.js";
import { stored } from "./data.js";
import { parseJson } from "./exactjson.js";
import { int, parseRef, plural } from "./format.js";
import { json, longText } from "./json.js";
import { isPart, lineText, refChip, valueLine } from "./line.js";
import { markdown } from "./markdown.js";
import { codeBlock, copyButton, refHref } from "./panels.js";
import { button, icon, later, segments } from "./parts.js";
import { problemView } from "./problem.js";
import { conversationOf, targetOf } from "./refs.js";
import { loadStyle, projectId } from "./router.js";
import { besideMessages, readValue, seemsSaid, valueText } from "./values.js";
import { loadView } from "./views.js";

await loadStyle("lib/value");

const MOST_FIELDS = 100;
const MOST_ROWS = 50;
const MOST_ITEMS = 100;
const OPEN_LEVELS = 2;
const SHORT = 80;

/** "rendered", "text" or "json", for all values of this browser. */
export const mode = stored("value", "rendered");

/** The choice of how values are shown. */
export const modeSwitch = () =>
  segments("Show as", [["rendered", "Rendered"], ["text", "Text"], ["json", "JSON"]], () => mode.value, (chosen) => {
    mode.value = chosen;
  });

/**
 * A value under a heading, with the switch and a button that copies it.
 * @param {string} name
 * @param {any} value
 * @param {{project?: string, nothing?: string}} [options] `nothing` is said in the place of an empty value
 */
export function valueSection(name, value, { project = projectId(), nothing = "" } = {}) {
  const isEmpty = value === null || value === undefined || (nothing && typeof value === "object" && !Object.keys(value).length);
  return h("section.valuesection", h("header", h("h3", name), h("span.grow"), !isEmpty && [modeSwitch(),
    copyButton(() => (mode.peek() === "json" ? JSON.stringify(value, null, 2) : valueText(value)), `Copy ${name.toLowerCase()}`)]),
    isEmpty && nothing ? h("p.dim", nothing) : valueView(value, { project }));
}

/** A value by the reader's choice. */
export function valueView(value, { project = projectId() } = {}) {
  return h("div.value", () => {
    if (mode.value === "json") return json(value, 3);
    if (mode.value === "text") return h("pre.plaintext", { dir: "auto", tabindex: 0 }, longText(valueText(value), 20_000));
    return rendered(value, { project, level: 0 });
  });
}

/** A text file that was stored, as what it holds. */
export function fileView(text, name) {
  if (/\.(html?|svg|xml|css|js|py|ts|sh|sql|toml|ya?ml)$/i.test(name)) return codeBlock(text);
  if (/\.(csv|tsv)$/i.test(name)) {
    return h("div.value", later(() => import("./importers.js"), ({ readRows }) => {
      try {
        return rendered(readRows(text, name).rows, { project: projectId(), level: 0 });
      } catch {
        return codeBlock(text);
      }
    }));
  }
  return /\.(md|markdown)$/i.test(name) ? markdown(text) : valueView(text);
}

/** What a value is drawn as; `level` counts how deep it lies in another. */
function rendered(value, at) {
  if (seemsSaid(value)) {
    const found = conversationOf(value);
    return () => (found.value ? [chat(found.value, at), besides(value, at)] : drawn(value, at));
  }
  return drawn(value, at);
}

function drawn(value, at) {
  const found = readValue(value);
  if (found.of === "text" && seemsSaid(parseJson(value))) return rendered(parseJson(value), at);
  return DRAWN[found.kind](found, at);
}

/** @type {Record<string, (found: any, at: any) => any>} */
const DRAWN = {
  nothing: () => h("span.faint", "null"),
  plain: ({ text }) => h("span.plainvalue", text),
  moment: ({ text }) => h("time", { datetime: text.replace(" UTC", "Z") }, text),
  text: ({ text }) => (text === "" ? h("span.faint", "empty text") : h("p.prose", { dir: "auto" }, longText(text))),
  markdown: ({ text }) => markdown(text),
  problem: ({ text }) => problemView(text),
  diff: ({ text }) => viewOf("textdiff", ({ patchView }) => patchView(text)),
  media: ({ part }, { project }) => viewOf("media", ({ mediaNode }) => mediaNode(part, project)),
  code: ({ part }, { project }) => viewOf("media", ({ mediaNode }) => mediaNode(part, project)),
  ref: ({ text }, at) => refView(text, at),
  table: (found, at) => tableView(found, at),
  fields: (found, at) => fieldsView(found, at),
  list: ({ value }, at) => listView(value, at),
};

/** What stands beside messages, folded. */
function besides(value, at) {
  const rest = besideMessages(value);
  const names = Object.keys(rest);
  return names.length > 0 && h("details.besides", h("summary", { dir: "auto" }, lineText(rest, 100)), drawn(rest, at));
}

/** What a module makes that few values need. */
const viewOf = (name, show) => h("div.valueview", later(() => loadView(name), (module) => () => show(module), 2));

const chat = (conversation, { project }) =>
  viewOf("chat", ({ conversationView, partNode }) => {
    const [only] = conversation.messages;
    return only?.role === ""
      ? h("div.messagebody", only.parts.map((part) => partNode(part, project)))
      : conversationView(conversation, { bar: false, project });
  });

/** A ref as what it points to: parts of objects, rows, tables and media in their place, other objects below their link. */
function refView(ref, at) {
  const target = targetOf(ref);
  const named = parseRef(ref);
  const chosen = signal(/** @type {boolean|null} */ (null));
  return h("div.target", () => {
    const found = target.value;
    const inner = { project: named && `${named.entity}/${named.project}`, level: at.level + 1 };
    const value = found?.table ? found.table.rows : found?.value;
    if (value === undefined || value === null || at.level > 5 || named.kind === "op") return refChip(ref, found);
    if (isPart(named) || ["media", "markdown", "text"].includes(readValue(value).kind)) {
      return [rendered(value, inner), found.table && found.table.count > value.length
        && h("p.dim", `The first ${int(value.length)} of ${plural(found.table.count, "row")}.`), origin(ref, named)];
    }
    const isOpen = () => chosen.value ?? (value._class_name === "Dataset" && at.level < 3);
    return [h("span.refline", refChip(ref, found), button(() => (isOpen() ? "Hide" : "Show"), () => { chosen.value = !isOpen(); },
      { kind: "quiet", "aria-expanded": () => String(isOpen()) })), () => isOpen() && rendered(value, inner)];
  });
}

const origin = (ref, named) => refHref(ref) && h("a.from", { href: refHref(ref), title: ref }, icon("link"), `from ${named.name}`);

/** Whether a value is drawn within a line: it needs no room of its own. */
function isShort(value) {
  const { kind } = readValue(value);
  if (kind === "ref") return !isPart(parseRef(value));
  if (typeof value === "string") return kind === "text" && value.length <= SHORT && !value.includes("\n");
  return ["nothing", "plain", "moment"].includes(kind) || ((kind === "fields" || kind === "list") && !Object.keys(value).length);
}

function fieldsView({ name, fields }, at) {
  if (!fields.length) return h("span.faint", name || "{}");
  const box = inParts(h("dl.fields"), fields, MOST_FIELDS, "fields", ([key, item]) => field(key, item, at));
  return [name && h("p.recordname", h("span.badge", name)), box];
}

function field(key, item, at) {
  if (isShort(item)) return h("div.short", h("dt", { dir: "auto" }, `${key}:`), h("dd", rendered(item, { ...at, level: at.level + 1 })));
  return h("div", h("dt", { dir: "auto" }, `${key}:`), h("dd", nested(item, at)));
}

/** What lies in another value: open near the surface, folded with its beginning further down. */
function nested(item, at) {
  const inner = { ...at, level: at.level + 1 };
  const { kind } = readValue(item);
  if (at.level < OPEN_LEVELS || !["fields", "list", "table"].includes(kind)) return rendered(item, inner);
  const made = signal(/** @type {any} */ (null));
  return h("details.nested", { ontoggle: () => { made.value ??= rendered(item, inner); } },
    h("summary", { dir: "auto" }, lineText(item, 120)), () => made.value);
}

/** Fill a box with what `make` returns of each item: the first `most`, and as many again at each press of a button. */
export function inParts(box, items, most, what, make) {
  const show = (from) => {
    box.append(...items.slice(from, from + most).map(make));
    more(box, items.length - from - most, what, () => show(from + most));
  };
  show(0);
  return box;
}

function more(box, left, what, show) {
  if (left <= 0) return;
  const next = h("button.more", { type: "button", onclick: () => { next.remove(); show(); } }, `${int(left)} more ${what}`);
  box.append(next);
}

function listView(items, at) {
  if (!items.length) return h("span.faint", "[]");
  if (items.length > 1 && items.every((item) => item === null || typeof item !== "object") && items.every(isShort)) {
    const shown = items.slice(0, MOST_ITEMS);
    return h("ul.chips", shown.map((item) => h("li", { dir: "auto" }, rendered(item, { ...at, level: at.level + 1 }))),
      items.length > MOST_ITEMS && h("li.faint", `${int(items.length - MOST_ITEMS)} more`));
  }
  return inParts(h("ol.items"), items, MOST_ITEMS, "items", (item) => h("li", nested(item, at)));
}

function tableView({ columns, rows }, at) {
  const body = h("tbody");
  const show = (from) => {
    body.append(...rows.slice(from, from + MOST_ROWS).map((row) => h("tr", row.map((cell) => h("td", tableCell(cell, at))))));
    if (rows.length > from + MOST_ROWS) {
      const next = h("tr", h("td", { colspan: Math.max(1, columns.length) }));
      more(next.firstChild, rows.length - from - MOST_ROWS, "rows", () => { next.remove(); show(from + MOST_ROWS); });
      body.append(next);
    }
  };
  show(0);
  return h("div.tablewrap", { tabindex: 0, role: "group", "aria-label": "Table" },
    h("table.valuetable", columns.length > 0 && h("thead", h("tr", columns.map((name) => h("th", { scope: "col", dir: "auto" }, name)))), body));
}

/** A cell: numbers and words as they are, longer values as a line that opens. */
function tableCell(value, at) {
  if (value === undefined) return "";
  const inner = { ...at, level: at.level + 1 };
  const { kind } = readValue(value);
  if (isShort(value) || kind === "media" || kind === "ref") return rendered(value, inner);
  const made = signal(/** @type {any} */ (null));
  const text = typeof value === "string" && value.length <= 300 ? value : null;
  if (text !== null && (kind === "text" || kind === "markdown")) return DRAWN[kind]({ kind, text }, inner);
  return h("details.nested", { ontoggle: () => { made.value ??= rendered(value, inner); } }, h("summary", valueLine(value, { length: 120 })),
    () => made.value);
}
