// Markdown as nodes: what a model writes, never as markup. Every rule looks at a character a bounded number of times.
import { h } from "./dom.js";
import { plural } from "./format.js";
import { codeBlock } from "./panels.js";
import { inline } from "./markdown_inline.js";

const DEPTH = 12;
const PIECE = 24_000;
const BULLET = /^(\s*)([-*+]|\d{1,9}[.)])(\s+|$)/;
const FENCE = /^(\s{0,3})(`{3,}|~{3,})([^`]*)$/;

/** A text's Markdown as a block of nodes; very long texts show their beginning and more on demand. */
export function markdown(text) {
  const box = h("div.markdown", { dir: "auto" });
  const show = (rest) => {
    const [piece, left] = firstPiece(rest);
    box.append(...blocks(piece.split("\n"), 0));
    if (!left) return;
    const more = h(
      "button.more",
      {
        type: "button",
        onclick: () => {
          more.remove();
          show(left);
        },
      },
      `show more (${plural(left.length, "character")} left)`,
    );
    box.append(more);
  };
  show(String(text).replace(/\r\n?/g, "\n"));
  return box;
}

/** Cut at the end of a paragraph, or of a line, or anywhere. */
function firstPiece(text) {
  if (text.length <= PIECE * 1.2) return [text, ""];
  const paragraph = text.lastIndexOf("\n\n", PIECE);
  const line = text.lastIndexOf("\n", PIECE);
  const at = paragraph > PIECE / 2 ? paragraph : line > PIECE / 2 ? line : PIECE;
  return [text.slice(0, at), text.slice(at)];
}

/** Lines as block nodes. */
function blocks(lines, depth) {
  const found = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at++;
      continue;
    }
    const rule = RULES.find(([fits]) => fits(lines[at], lines[at + 1] ?? ""));
    const [node, next] = rule[1](lines, at, depth);
    found.push(node);
    at = Math.max(next, at + 1);
  }
  return found;
}

const isHeading = (line) => /^ {0,3}#{1,6}(\s|$)/.test(line);
const isRule = (line) => line.length < 200 && /^ {0,3}([-*_])( *\1){2,} *$/.test(line);
const isQuote = (line) => /^ {0,3}>/.test(line);
const isTable = (line, next) =>
  line.includes("|") && next.includes("-") && /^[\s|:-]+$/.test(next) && cells(next).length === cells(line).length;
const startsBlock = (line, next) =>
  isHeading(line) || isRule(line) || isQuote(line) || FENCE.test(line) || BULLET.test(line) || isTable(line, next);

/**
 * Which rule fits a line, and what reads from there: it gives a node and the line after it.
 * @type {[(line: string, next: string) => boolean, (lines: string[], at: number, depth: number) => any[]][]}
 */
const RULES = [
  [(line) => FENCE.test(line), fence],
  [isHeading, heading],
  [isRule, (lines, at) => [h("hr"), at + 1]],
  [isQuote, quote],
  [isTable, table],
  [(line) => BULLET.test(line), list],
  [() => true, paragraph],
];

function fence(lines, at) {
  const [, indent, mark, language] = FENCE.exec(lines[at]);
  const body = [];
  let next = at + 1;
  const isEnd = (line) => line.trim().startsWith(mark) && line.trim().split(mark[0]).join("") === "";
  while (next < lines.length && !isEnd(lines[next])) {
    body.push(lines[next].startsWith(indent) ? lines[next].slice(indent.length) : lines[next]);
    next++;
  }
  const name = language.trim().split(/\s/)[0].slice(0, 40);
  return [h("figure.fence", name && h("figcaption", name), codeBlock(body.join("\n"))), next + 1];
}

function heading(lines, at) {
  const [, marks, text] = /^ {0,3}(#{1,6})\s*(.*)$/.exec(lines[at]);
  // No heading of the page: a model's text must not break the page's own outline.
  return [h("p.heading", { "data-level": marks.length }, inline(text.trimEnd())), at + 1];
}

function quote(lines, at, depth) {
  const body = [];
  let next = at;
  for (; next < lines.length && lines[next].trim() && (isQuote(lines[next]) || !startsBlock(lines[next], "")); next++) {
    body.push(lines[next].replace(/^ {0,3}> ?/, ""));
  }
  return [h("blockquote", depth < DEPTH ? blocks(body, depth + 1) : body.join("\n")), next];
}

function list(lines, at, depth) {
  const first = BULLET.exec(lines[at]);
  const isOrdered = /\d/.test(first[2]);
  const items = [];
  let next = at;
  while (next < lines.length) {
    const start = BULLET.exec(lines[next]);
    if (!start || start[1].length > first[1].length + 3 || /\d/.test(start[2]) !== isOrdered || isRule(lines[next])) break;
    const [body, end] = itemLines(lines, next, start);
    items.push(item(body, depth));
    next = end;
  }
  if (next === at) return paragraph(lines, at);
  const number = isOrdered ? Number.parseInt(first[2], 10) : 1;
  return [isOrdered ? h("ol", number === 1 ? {} : { start: number }, items) : h("ul", items), next];
}

/** The lines of one list item: what is indented below its mark, blank lines between, and lazy continuations. */
function itemLines(lines, at, start) {
  const width = start[1].length + start[2].length + Math.min(4, Math.max(1, start[3].length));
  const least = start[1].length + 2;
  const body = [lines[at].slice(start[0].length)];
  let next = at + 1;
  for (; next < lines.length; next++) {
    const line = lines[next];
    if (!line.trim()) {
      const after = lines[next + 1] ?? "";
      if (!after.trim() || (indentOf(after) < least && !BULLET.test(after))) break;
      body.push("");
    } else if (indentOf(line) >= least) body.push(line.slice(Math.min(indentOf(line), width)));
    else if (startsBlock(line, "") || !lines[next - 1].trim()) break;
    else body.push(line);
  }
  return [body, next];
}

const indentOf = (line) => line.length - line.trimStart().length;

function item(body, depth) {
  const task = /^\[([ xX])\]\s+/.exec(body[0]);
  if (task) body[0] = body[0].slice(task[0].length);
  const inner = depth < DEPTH ? blocks(body, depth + 1) : [body.join("\n")];
  // A tight item is only its text, without a paragraph.
  const shown =
    inner.length && inner[0].nodeName === "P" && !inner[0].className ? [...inner[0].childNodes, ...inner.slice(1)] : inner;
  return h(
    "li",
    task && h("span.task", { role: "img", "aria-label": task[1] === " " ? "to do" : "done" }, task[1] === " " ? "☐ " : "☑ "),
    shown,
  );
}

function cells(line) {
  const text = line.trim().replace(/^\|/, "").replace(/\|$/, "");
  const found = [""];
  let inCode = false;
  for (let at = 0; at < text.length; at++) {
    if (text[at] === "\\" && text[at + 1] === "|") found[found.length - 1] += text[++at];
    else if (text[at] === "|" && !inCode) found.push("");
    else {
      if (text[at] === "`") inCode = !inCode;
      found[found.length - 1] += text[at];
    }
  }
  return found.map((cell) => cell.trim());
}

function table(lines, at) {
  const heads = cells(lines[at]);
  const sides = cells(lines[at + 1]).map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : "left"));
  const rows = [];
  let next = at + 2;
  for (; next < lines.length && lines[next].trim() && lines[next].includes("|"); next++) rows.push(cells(lines[next]));
  const cell = (tag, text, column) => h(tag, { style: { "text-align": sides[column] ?? "left" } }, inline(text ?? ""));
  return [
    h(
      "div.tablewrap",
      { tabindex: 0, role: "group", "aria-label": "Table" },
      h(
        "table",
        h(
          "thead",
          h(
            "tr",
            heads.map((text, column) => cell("th", text, column)),
          ),
        ),
        h(
          "tbody",
          rows.map((row) =>
            h(
              "tr",
              heads.map((_, column) => cell("td", row[column], column)),
            ),
          ),
        ),
      ),
    ),
    next,
  ];
}

function paragraph(lines, at) {
  const body = [lines[at]];
  let next = at + 1;
  while (next < lines.length && lines[next].trim() && !startsBlock(lines[next], lines[next + 1] ?? "")) body.push(lines[next++]);
  return [h("p", inline(body.join("\n"))), next];
}
