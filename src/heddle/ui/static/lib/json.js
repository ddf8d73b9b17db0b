// Any JSON value as a tree that opens part by part; what is untrusted is only ever text.
import { h } from "./dom.js";
import { plural } from "./format.js";
import { copyButton, refHref } from "./panels.js";
import { loadStyle } from "./router.js";

await loadStyle("lib/json");

const TEXT_LIMIT = 4000;
const LIST_LIMIT = 200;

/** A value as a tree, `open` levels deep at first. Long texts and lists show their beginning with a way to see more. */
export function json(value, open = 2) {
  return h("div.json", entry(value, null, open));
}

function entry(value, name, open) {
  const label = name === null ? null : h("span.jsonkey", `${name}: `);
  if (value === null || typeof value !== "object") return h("div.jsonline", label, leaf(value));
  const isList = Array.isArray(value);
  const entries = Object.entries(value);
  if (!entries.length) return h("div.jsonline", label, h("span.jsoncount", isList ? "[]" : "{}"));
  let made = false;
  const fill = () => {
    if (made || !details.open) return;
    made = true;
    details.append(children(entries, open - 1));
  };
  const details = h("details", { ontoggle: fill },
    h("summary", label, h("span.jsoncount", isList ? `[${entries.length}]` : `{${entries.length}}`)));
  if (open > 0) {
    details.open = true;
    fill();
  }
  return details;
}

function children(entries, open) {
  const box = h("div.jsonchildren");
  const more = (from) => {
    const part = entries.slice(from, from + LIST_LIMIT);
    box.append(...part.map(([name, value]) => entry(value, name, open)));
    const left = entries.length - from - part.length;
    if (left > 0) {
      const next = h("button.more", { type: "button", onclick: () => { next.remove(); more(from + LIST_LIMIT); } },
        `show ${Math.min(left, LIST_LIMIT)} more of ${left}`);
      box.append(next);
    }
  };
  more(0);
  return box;
}

function leaf(value) {
  if (typeof value !== "string") return h("span.jsonplain", String(value));
  const href = refHref(value);
  return href ? h("a.ref", { href }, value) : h("span.jsontext", { dir: "auto" }, longText(value));
}

/** A text that is cut where it is very long, with a button that shows the rest. */
export function longText(text, limit = TEXT_LIMIT) {
  if (text.length <= limit * 1.2) return [text];
  const cut = h("span", text.slice(0, limit));
  const more = h("button.more", {
    type: "button", onclick: () => { cut.textContent = text; more.remove(); },
  }, `show all ${plural(text.length, "character")}`);
  return [cut, more];
}

/** A value as indented text with a button that copies it. */
export function rawJson(value) {
  const text = JSON.stringify(value, null, 2) ?? "null";
  return h("div.codebox", h("pre", { tabindex: 0 }, longText(text, 100_000)), copyButton(() => text, "Copy JSON"));
}
