// Source text with line numbers and light colours: Python and JSON, by a small tokenizer that builds nodes.
import { h } from "./dom.js";
import { longText } from "./json.js";
import { copyButton } from "./panels.js";

const COLOURED_UP_TO = 200_000;

const KEYWORDS = new Set(
  (
    "and as assert async await break class continue def del elif else except finally for from global if import in is " +
    "lambda match nonlocal not or pass raise return try while with yield None True False case"
  ).split(" "),
);
const STRINGS = [
  /"""(?:[^\\"]|\\[^]|"(?!""))*(?:"""|$)/,
  /'''(?:[^\\']|\\[^]|'(?!''))*(?:'''|$)/,
  /"(?:[^"\\\n]|\\[^])*"?/,
  /'(?:[^'\\\n]|\\[^])*'?/,
];
const PYTHON = pattern({
  comment: /#[^\n]*/,
  text: new RegExp(`[rbfuRBFU]{0,2}(?:${STRINGS.map(({ source }) => source).join("|")})`),
  decorator: /(?<=^[ \t]*)@[\w.]+/,
  number: /\b\d[\w.]*/,
  name: /[A-Za-z_]\w*/,
});
const JSON_PARTS = pattern({
  name: /"(?:[^"\\\n]|\\.)*"(?=\s*:)/,
  text: /"(?:[^"\\\n]|\\.)*"/,
  keyword: /\b(?:true|false|null)\b/,
  number: /-?\b\d[\d.eE+-]*/,
});

function pattern(parts) {
  const named = Object.entries(parts).map(([name, { source }]) => `(?<${name}>${source})`);
  return new RegExp(named.join("|"), "gm");
}

/**
 * Source text in a box that scrolls, with a button that copies it.
 * The page's style sheet begins with `@import "../lib/code.css";`.
 * @param {string} text
 * @param {{language?: "python"|"json"|"", label?: string}} [options]
 */
export function codeView(text, { language = "python", label = "Source" } = {}) {
  const count = text.replace(/\n$/, "").split("\n").length;
  const numbers = Array.from({ length: count }, (_, index) => index + 1).join("\n");
  return h(
    "div.source",
    h(
      "div.sourcescroll",
      { tabindex: 0, role: "region", "aria-label": label },
      h("pre.sourcenumbers", { "aria-hidden": "true" }, numbers),
      h("pre.sourcetext", h("code", coloured(text, language))),
    ),
    copyButton(() => text, "Copy"),
  );
}

/** The pieces of a source text as nodes; very long ones have no colours. */
export function coloured(text, language) {
  if (text.length > COLOURED_UP_TO) return longText(text, COLOURED_UP_TO);
  return language === "python" ? python(text) : language === "json" ? pieces(text, JSON_PARTS, (kind) => kind) : [text];
}

function python(text) {
  let before = "";
  return pieces(text, PYTHON, (kind, word) => {
    const found =
      kind !== "name" ? kind : KEYWORDS.has(word) ? "keyword" : before === "def" || before === "class" ? "definition" : "";
    before = word;
    return found;
  });
}

function pieces(text, pattern, kindOf) {
  const found = [];
  let end = 0;
  for (const match of text.matchAll(pattern)) {
    const [kind] = Object.entries(match.groups).find(([, value]) => value !== undefined);
    const name = kindOf(kind, match[0]);
    if (match.index > end) found.push(text.slice(end, match.index));
    found.push(name ? h("span", { class: `source-${name}` }, match[0]) : match[0]);
    end = match.index + match[0].length;
  }
  found.push(text.slice(end));
  return found;
}
