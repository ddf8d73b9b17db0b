// The rows of a replay: the recorded answer next to the new one, and one complete pair.
import { computed, effect, h, onCleanup } from "../lib/dom.js";
import { drawer } from "../lib/dialog.js";
import { duration, int, money, oneLine, plural } from "../lib/format.js";
import { card, facts } from "../lib/panels.js";
import { icon, keys } from "../lib/parts.js";
import { link, path, query, setBeside, setQuery } from "../lib/router.js";
import { lineText } from "../lib/line.js";
import { leaves, scoreChips } from "../lib/scores.js";
import { diffText, diffView } from "../lib/textdiff.js";
import { valueView } from "../lib/value.js";

const MOST_IN_A_CELL = 600;

/** The element of a row. */
export function replayRow({ item, index, differs }) {
  const place = item.peek().place;
  const open = (event) => !event.target.closest("a,button") && setBeside("row", { row: place });
  return h(
    "div.examplerow",
    {
      role: "row",
      "aria-rowindex": () => index.value + 1,
      onclick: open,
      class: () => (query("row") === String(place) ? "active" : ""),
    },
    h(
      "div.examplecell",
      { role: "cell" },
      h(
        "button.plainbutton.dim",
        { type: "button", onclick: () => setBeside("row", { row: place }) },
        h("span.hidden-text", "Open chat "),
        int(place + 1),
      ),
    ),
    h("div.examplecell", { role: "cell" }, () => side(item.value.original, null)),
    h("div.examplecell", { role: "cell" }, () =>
      item.value.replay
        ? side(item.value.replay, differs() ? item.value.original : null)
        : h("span.faint", item.value.reason || (item.value.outcome ?? "waiting")),
    ),
    h("div.examplecell", { role: "cell" }, () => change(item.value)),
  );
}

/** The call of an answer was deleted: nothing of it is known but its id. */
const isGone = (answer) => answer.trace_id === null;
const GONE = "The call was deleted";

function side(answer, other) {
  if (isGone(answer)) return h("span.faint", GONE);
  const text = String(answer.answer ?? lineText(answer.output, MOST_IN_A_CELL)).slice(0, MOST_IN_A_CELL);
  const failed = answer.exception && !answer.answer;
  return [
    h("div.examplemarks", h("span.faint", { title: answer.model }, oneLine(answer.model, 28)), scoreChips(answer.scores, 2)),
    h(
      "div.clamp",
      { dir: "auto" },
      failed
        ? h("span.worse", oneLine(answer.exception, 200))
        : other && other.answer != null
          ? diffText(String(other.answer).slice(0, MOST_IN_A_CELL), text)
          : text || h("span.faint", "empty"),
    ),
  ];
}

const signed = (value, show) => `${value < 0 ? "−" : value > 0 ? "+" : "±"}${show(Math.abs(value))}`;

function change({ original, replay }) {
  if (!replay) return null;
  /** @type {[string, (value: any) => string][]} */
  const parts = [
    ["latency_ms", (value) => duration(value / 1000)],
    ["total_tokens", (value) => plural(value, "token")],
    ["total_cost", money],
  ];
  return parts.map(([name, show]) => {
    const [before, after] = [original[name], replay[name]];
    if (before == null || after == null) return null;
    return h("span", { class: after < before ? "better" : after > before ? "worse" : "dim" }, signed(after - before, show));
  });
}

/** Keys for the rows, and the drawer of the one that the address names. */
export function openReplayed(rows, box, differs) {
  let close = null;
  let isLeaving = false;
  const opened = computed(() => query("row"));
  const step = (by) => {
    const at = rows.value.findIndex((row) => String(row.place) === opened.value);
    const next = rows.value[Math.max(0, Math.min(rows.value.length - 1, at + by))];
    if (!next) return;
    setQuery({ row: next.place });
    box.reveal(rows.value.indexOf(next));
  };
  keys({
    j: [() => step(1), "next chat"],
    k: [() => step(-1), "previous chat"],
    d: [() => setQuery({ diff: differs() ? "0" : null }), "show differences"],
  });
  const isThere = computed(() => rows.value.some((row) => String(row.place) === opened.value));
  effect(() => {
    const place = opened.value;
    close?.();
    close = null;
    if (!isThere.value) return;
    const row = computed(() => rows.value.find((entry) => String(entry.place) === place) ?? null);
    close = drawer(
      `Chat ${Number(place) + 1}`,
      () => pair(row, step),
      () => {
        if (!isLeaving && query("row") === place) setBeside("row", { row: null });
      },
    );
  });
  onCleanup(() => {
    isLeaving = true;
    close?.();
  });
}

function pair(row, step) {
  const onkeydown = (event) => {
    const by = { j: 1, k: -1 }[event.key];
    if (!by || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    event.stopPropagation();
    step(by);
  };
  return h(
    "div.detail",
    { tabindex: -1, onkeydown, ref: (element) => queueMicrotask(() => element.focus({ preventScroll: true })) },
    () => {
      const { original, replay, reason } = row.value ?? {};
      return [
        original &&
          replay &&
          !isGone(original) &&
          h(
            "div.bar-of-steps",
            h("span.grow"),
            h("a.button", { href: link("/traces/compare", { calls: `${original.call_id},${replay.call_id}` }) }, icon("columns"), "Compare the calls"),
          ),
        original && answerCard("Recorded", original),
        replay && answerCard("New", replay),
        reason && h("p.dim", reason),
        replay &&
          original.answer != null &&
          replay.answer != null &&
          card("Difference", null, diffView(original.answer, replay.answer, { names: ["recorded", "new"] })),
      ];
    },
  );
}

function answerCard(heading, answer) {
  if (isGone(answer)) return card(heading, null, GONE);
  return card(
    `${heading}: ${answer.model ?? "no model"}`,
    h("a.ref", { href: link(path`/calls/${answer.call_id}`) }, "Open the call"),
    answer.exception ? h("p.worse", oneLine(answer.exception, 2000)) : null,
    valueView(answer.answer ?? answer.output),
    facts([
      ...leaves(answer.scores).map(([name, value]) => [
        name,
        value === true ? h("span.better", "true") : value === false ? h("span.worse", "false") : lineText(value, 300),
      ]),
      ["Latency", answer.latency_ms == null ? "" : duration(answer.latency_ms / 1000)],
      ["Tokens", int(answer.total_tokens)],
      ["Cost", money(answer.total_cost)],
    ]),
  );
}
