// The difference of two texts: Myers' algorithm in linear memory, bounded, and a view of its result.
import { h, signal } from "./dom.js";

/** Beyond this many differing pieces in one stretch the rest counts as replaced: it would take long and read no better. */
const MOST_EDITS = 1500;
const CONTEXT = 3;
const FEWEST_FOLDED = 4;
const MOST_ROWS = 2000;
const WORDS_UP_TO = 2000;
const DIFF_UP_TO = 4000;

/**
 * The lines of two texts in one order, each the same in both, only in the second (added) or only in the first.
 * @param {string} a
 * @param {string} b
 * @returns {{kind: "same"|"added"|"removed", text: string}[]}
 */
export function lineDiff(a, b) {
  return sequenceDiff(linesOf(a), linesOf(b));
}

/** The same by words, so that a changed line shows what changed in it; the texts are short. */
export function wordDiff(a, b) {
  return sequenceDiff(wordsOf(a), wordsOf(b));
}

/** Neighbours of one kind as one part. */
function joined(parts) {
  const found = [];
  for (const { kind, text } of parts) {
    if (found.at(-1)?.kind === kind) found.at(-1).text += text;
    else found.push({ kind, text });
  }
  return found;
}

/** How many lines were added and removed. */
export function diffCounts(parts) {
  const count = (kind) => parts.filter((part) => part.kind === kind).length;
  return { added: count("added"), removed: count("removed") };
}

const linesOf = (text) => (text === "" ? [] : String(text).replace(/\r\n/g, "\n").split("\n"));
const wordsOf = (text) => text.match(/[\p{L}\p{N}_]+|\s+|[^\p{L}\p{N}_\s]/gu) ?? [];

function sequenceDiff(a, b) {
  const numbers = new Map();
  const number = (text) => {
    if (!numbers.has(text)) numbers.set(text, numbers.size);
    return numbers.get(text);
  };
  const kept = matches(Int32Array.from(a, number), Int32Array.from(b, number));
  const parts = [];
  let [left, right] = [0, 0];
  for (const [first, second, length] of [...kept, [a.length, b.length, 0]]) {
    while (left < first) parts.push({ kind: "removed", text: a[left++] });
    while (right < second) parts.push({ kind: "added", text: b[right++] });
    for (let step = 0; step < length; step++, left++, right++) parts.push({ kind: "same", text: a[left] });
  }
  return parts;
}

/** The stretches that two sequences share, as [start in a, start in b, length], in order. */
function matches(a, b) {
  const found = [];
  const waiting = [[0, a.length, 0, b.length]];
  while (waiting.length) {
    let [aLow, aHigh, bLow, bHigh] = waiting.pop();
    const start = aLow;
    while (aLow < aHigh && bLow < bHigh && a[aLow] === b[bLow]) (aLow++, bLow++);
    if (aLow > start) found.push([start, bLow - (aLow - start), aLow - start]);
    let tail = 0;
    while (aLow < aHigh && bLow < bHigh && a[aHigh - 1] === b[bHigh - 1]) (aHigh--, bHigh--, tail++);
    if (tail) found.push([aHigh, bHigh, tail]);
    const middle = aLow < aHigh && bLow < bHigh ? middleOf(a, aLow, aHigh, b, bLow, bHigh) : null;
    if (!middle) continue;
    const [x, y, length] = middle;
    if (length) found.push(middle);
    waiting.push([aLow, x, bLow, y], [x + length, aHigh, y + length, bHigh]);
  }
  return found.sort((one, other) => one[0] - other[0]);
}

/** The stretch in the middle of a shortest way from a to b, found from both ends; null beyond the bound. */
function middleOf(a, aLow, aHigh, b, bLow, bHigh) {
  const [n, m] = [aHigh - aLow, bHigh - bLow];
  const delta = n - m;
  const most = Math.min(Math.ceil((n + m) / 2), MOST_EDITS);
  const forward = new Int32Array(2 * most + 3);
  const backward = new Int32Array(2 * most + 3);
  const zero = most + 1;
  for (let edits = 0; edits <= most; edits++) {
    for (let k = -edits; k <= edits; k += 2) {
      const down = k === -edits || (k !== edits && forward[zero + k - 1] < forward[zero + k + 1]);
      const start = down ? forward[zero + k + 1] : forward[zero + k - 1] + 1;
      let x = start;
      while (x < n && x - k < m && a[aLow + x] === b[bLow + x - k]) x++;
      forward[zero + k] = x;
      const other = delta - k;
      const crosses = delta % 2 !== 0 && Math.abs(other) < edits && x + backward[zero + other] >= n;
      if (crosses && x <= n && x - k <= m) return [aLow + start, bLow + start - k, x - start];
    }
    for (let k = -edits; k <= edits; k += 2) {
      const down = k === -edits || (k !== edits && backward[zero + k - 1] < backward[zero + k + 1]);
      const start = down ? backward[zero + k + 1] : backward[zero + k - 1] + 1;
      let x = start;
      while (x < n && x - k < m && a[aHigh - 1 - x] === b[bHigh - 1 - x + k]) x++;
      backward[zero + k] = x;
      const other = delta - k;
      const crosses = delta % 2 === 0 && Math.abs(other) <= edits && x + forward[zero + other] >= n;
      if (crosses && x <= n && x - k <= m) return [aHigh - x, bHigh - x + k, x - start];
    }
  }
  return null;
}

/**
 * Two texts as one column of numbered lines: removed, added and, folded where they are many, the same.
 * The page's style sheet begins with `@import "../lib/textdiff.css";`.
 * @param {string} a
 * @param {string} b
 * @param {{label?: string, names?: [string, string]}} [options] `names` of the two sides stand above
 */
export function diffView(a, b, { label = "Difference", names = null } = {}) {
  const bothEnd = a.endsWith("\n") && b.endsWith("\n");
  const parts = bothEnd ? lineDiff(a.slice(0, -1), b.slice(0, -1)) : lineDiff(a, b);
  const { added, removed } = diffCounts(parts);
  const head = h(
    "div.diffhead",
    names && h("span.diffnames", h("span", names[0]), " → ", h("span", names[1])),
    added || removed
      ? [added > 0 && h("span.diffadded", `+${added}`), removed > 0 && h("span.diffremoved", `−${removed}`)]
      : h("span.dim", "No difference"),
  );
  if (!added && !removed) return h("div.diff", head);
  const rows = h("tbody", folded(numbered(parts)).slice(0, MOST_ROWS).map(drawn));
  return h(
    "div.diff",
    head,
    h("div.diffbody", { tabindex: 0, role: "region", "aria-label": label }, h("table.difflines", rows)),
    rows.childElementCount >= MOST_ROWS && h("p.dim", `The first ${MOST_ROWS} lines are shown.`),
  );
}

/** The words of a text with what was added to and removed from another; texts that are too long are shown as they are. */
export function diffText(before, after) {
  if (before === after || before.length + after.length > DIFF_UP_TO) return [after];
  return wordDiff(before, after).map(({ kind, text }) => (kind === "same" ? text : h(kind === "added" ? "ins" : "del", text)));
}

/** A patch as `diff -u` and git write it: its lines in the colours of a difference. */
export function patchView(text) {
  let [left, right] = [0, 0];
  const lines = linesOf(text.replace(/\n$/, ""));
  const rows = lines.slice(0, MOST_ROWS).map((whole) => {
    const hunk = /^@@ -(\d+)(?:,\d+)? \+(\d+)/.exec(whole);
    if (hunk) [left, right] = [Number(hunk[1]) - 1, Number(hunk[2]) - 1];
    const kind = { "+": "added", "-": "removed", " ": "same" }[whole[0]];
    if (!kind || hunk || /^(---|\+\+\+) /.test(whole)) return h("tr.patchhead", h("td", { colspan: 4 }, whole));
    return line({ kind, text: whole.slice(1), left: kind === "added" ? "" : ++left, right: kind === "removed" ? "" : ++right });
  });
  return h("div.diff", h("div.diffbody", { tabindex: 0, role: "group", "aria-label": "Patch" },
    h("table.difflines", h("tbody", rows))), lines.length > MOST_ROWS && h("p.dim", `The first ${MOST_ROWS} lines are shown.`));
}

function numbered(parts) {
  let [left, right] = [0, 0];
  return parts.map(({ kind, text }) => ({
    kind,
    text,
    left: kind === "added" ? "" : ++left,
    right: kind === "removed" ? "" : ++right,
  }));
}

/** Rows with long runs of the same lines as one entry {hidden: rows}, and pairs of changed lines linked to each other. */
function folded(rows) {
  const found = [];
  for (let at = 0; at < rows.length;) {
    const end = endOfRun(rows, at);
    const run = rows.slice(at, end);
    if (run[0].kind === "same") {
      const [before, after] = [at === 0 ? 0 : CONTEXT, end === rows.length ? 0 : CONTEXT];
      const hidden = run.slice(before, run.length - after);
      if (hidden.length < FEWEST_FOLDED) found.push(...run);
      else found.push(...run.slice(0, before), { hidden }, ...run.slice(run.length - after));
    } else found.push(...run);
    if (run[0].kind === "removed") pair(run, rows.slice(end, endOfRun(rows, end)));
    at = end;
  }
  return found;
}

function endOfRun(rows, start) {
  let end = start + 1;
  while (end < rows.length && rows[end].kind === rows[start].kind) end++;
  return end;
}

function pair(removed, added) {
  if (added[0]?.kind !== "added" || removed.length !== added.length) return;
  removed.forEach((row, index) => {
    if (row.text.length + added[index].text.length > WORDS_UP_TO) return;
    const words = wordDiff(row.text, added[index].text);
    const shared = words.filter(({ kind }) => kind === "same").reduce((sum, { text }) => sum + text.trim().length, 0);
    if (shared * 4 < Math.min(row.text.length, added[index].text.length)) return;
    row.words = joined(words.filter(({ kind }) => kind !== "added"));
    added[index].words = joined(words.filter(({ kind }) => kind !== "removed"));
  });
}

function drawn(row) {
  return row.hidden ? fold(row.hidden) : line(row);
}

function fold(hidden) {
  const open = signal(false);
  const show = () => {
    open.value = true;
    element.replaceWith(...hidden.slice(0, MOST_ROWS).map(line));
  };
  const element = h(
    "tr.difffold",
    h(
      "td",
      { colspan: 4 },
      h(
        "button.more",
        { type: "button", onclick: show, "aria-expanded": () => String(open.value) },
        `${hidden.length} unchanged lines`,
      ),
    ),
  );
  return element;
}

const MARKS = { same: " ", added: "+", removed: "−" };
const SPOKEN = { same: "", added: "added: ", removed: "removed: " };

function line({ kind, text, left, right, words = null }) {
  const shown = words ? words.map((part) => (part.kind === "same" ? part.text : h("b", part.text))) : text;
  return h(
    "tr",
    { class: kind },
    h("td.diffnumber", left),
    h("td.diffnumber", right),
    h("td.diffmark", { "aria-hidden": "true" }, MARKS[kind]),
    h("td.difftext", SPOKEN[kind] && h("span.hidden-text", SPOKEN[kind]), h("span", { dir: "auto" }, shown)),
  );
}
