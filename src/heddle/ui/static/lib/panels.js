// Parts of pages that show one thing at length: tabs, cards, facts, texts to copy, refs.
import { computed, h, untrack } from "./dom.js";
import { parseRef } from "./format.js";
import { icon } from "./parts.js";
import { link, loadStyle, path, query, setQuery } from "./router.js";

await loadStyle("lib/panels");

/** Tabs whose choice lives in the query `name`; entries are [[value, text, make], …]; the first is the default. */
export function tabs(label, entries, name = "tab") {
  const chosen = computed(() => query(name));
  const current = () => entries.find(([value]) => value === chosen.value) ?? entries[0];
  const pick = (value) => setQuery({ [name]: value === entries[0][0] ? null : value });
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = entries[(entries.indexOf(current()) + step + entries.length) % entries.length];
    pick(next[0]);
    list.children[entries.indexOf(next)].focus();
  };
  const list = h("div.tabs", { role: "tablist", "aria-label": label, onkeydown: move }, entries.map(([value, text]) =>
    h("button", {
      type: "button", role: "tab", id: `tab-${name}-${value}`, "aria-controls": `panel-${name}`,
      "aria-selected": () => String(current()[0] === value), tabindex: () => (current()[0] === value ? 0 : -1),
      onclick: () => pick(value),
    }, text)));
  const panel = h("div.tabpanel", {
    role: "tabpanel", id: `panel-${name}`, tabindex: 0, "aria-labelledby": () => `tab-${name}-${current()[0]}`,
  }, () => untrack(current()[2]));
  return [list, panel];
}

/** A labelled number. */
export function tile(label, value, note = "") {
  return h("div.tile", h("small", label), h("b", value), h("span", note));
}

/** A card with a heading; `side` stands at its right (a legend, a control). */
export function card(heading, side, ...content) {
  return h("section.card", h("header", h("h2", heading), h("div.legend", side)), content);
}

/** A small labelled number in a header. */
export function stat(label, value) {
  return h("div.stat", h("small", label), h("b", value));
}

/** Facts as a definition list: [[name, value], …]; entries without a value are left out. */
export function facts(entries) {
  const shown = entries.filter((entry) => entry && entry[1] != null && entry[1] !== "");
  return h("dl.facts", shown.map(([name, value]) => h("div", h("dt", name), h("dd", value))));
}

/** What a page shows where there is nothing yet: a heading, a sentence, code to copy, and what to do next. */
export function empty({ title: heading, text = "", code = "", action = null }) {
  return h("div.empty", h("h2", heading), text && h("p", text), code && codeBlock(code), action);
}

/** Text in a fixed-width box with a button that copies it. */
export function codeBlock(text) {
  return h("div.codebox", h("pre", { tabindex: 0 }, h("code", text)), copyButton(() => text, "Copy"));
}

/** A button that copies what `text()` gives (or resolves to). */
export function copyButton(text, label = "Copy", shown = null) {
  // The word is drawn by the style sheet: text here would have to be part of the button's name.
  const mark = h("span.copied");
  const copy = async (event) => {
    event.stopPropagation();
    await navigator.clipboard?.writeText(await text());
    mark.dataset.text = "copied";
    setTimeout(() => { delete mark.dataset.text; }, 1500);
  };
  return h("button.button.quiet", { type: "button", onclick: copy, "aria-label": shown ? null : label, title: label },
    icon("copy"), shown, mark);
}

/** A labelled control of a form; `hint` says more below it. */
export function field(label, control, hint = "") {
  return h("label.field", h("span", label), control, hint && h("small", hint));
}

/** The address of what a ref names, or null. */
export function refHref(ref) {
  const found = parseRef(ref);
  if (!found) return null;
  const project = `${found.entity}/${found.project}`;
  if (found.kind === "call") return link(path`/calls/${found.name}`, {}, project);
  if (found.kind === "table") return null;
  const room = found.kind === "op" ? "ops" : "objects";
  return link(`/${room}${path`/${found.name}/versions/${found.digest || "latest"}`}`, {}, project);
}

/** A ref as a link with its name and short digest; other texts as they are. */
export function refLink(ref, text = null) {
  const found = parseRef(ref);
  const href = refHref(ref);
  const shown = text ?? (found ? `${found.name}:${found.digest.slice(0, 6)}` : String(ref ?? ""));
  return href ? h("a.ref", { href, title: ref }, shown) : h("span.ref", { title: ref }, shown);
}
