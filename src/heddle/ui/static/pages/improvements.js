// Improvements: weak calls that became training, a gate, a promotion and a watch.
import { computed, h, onCleanup, untrack } from "../lib/dom.js";
import { resource } from "../lib/data.js";
import { ago, duration, int, number, when } from "../lib/format.js";
import { empty } from "../lib/panels.js";
import { button, dot, header, loaded, timeNode, title } from "../lib/parts.js";
import { go, link, path, projectId } from "../lib/router.js";
import { serverAddress } from "../lib/setup.js";
import { table } from "../lib/table.js";

const PAUSE = 2000;

/** The list of improvements. */
export default function Improvements() {
  title("Improvements");
  const state = resource(() => ["/improvements/query", {}]);
  const rows = () => state.data.value?.improvements ?? [];
  const timer = setInterval(() => {
    if (!document.hidden && rows().some(isOpen)) state.reload();
  }, PAUSE);
  onCleanup(() => clearInterval(timer));
  const create = async () => {
    const { newImprovement } = await import("./improvements_new.js");
    const made = await newImprovement();
    if (made) go(link(path`/improvements/${made.id}`));
  };
  const isEmpty = computed(() => state.data.value !== null && !rows().length);
  return h(
    "div.page",
    header({
      title: "Improvements",
      extra: () => (rows().length ? h("span.count", int(rows().length)) : null),
      actions: button("New improvement", create, { kind: "primary", iconName: "add", needs: "write" }),
    }),
    () =>
      isEmpty.value
        ? h("div.scroll", { tabindex: 0, role: "region", "aria-label": "Content" }, empty(teaching(create)))
        : untrack(() => list(state, rows)),
  );
}

/** Whether there is more to come. */
export const isOpen = ({ state }) => ["queued", "running", "watching"].includes(state);

const WORDS = { promoted: "promoted", refused: "refused by the gate", rolled_back: "rolled back" };
const SHAPES = { queued: "waiting", running: "running", watching: "running", failed: "error", cancelled: "cancelled" };

/** Where an improvement stands, in a word. */
export function stateOf({ state, outcome, error, reason }) {
  const bad = outcome === "refused" || outcome === "rolled_back";
  const shape = SHAPES[state] ?? (bad ? "error" : "success");
  const words = state === "watching" ? "promoted, watched" : outcome && state !== "cancelled" ? WORDS[outcome] : state;
  return h("span.improvestate", { title: error ?? reason }, dot(shape), h("span.dim", words));
}

/** What a step of the timeline came to; {} before it has begun. */
export const resultOf = (improvement, name) => improvement.steps.find((step) => step.name === name)?.result ?? {};

/** A score before and after, as far as they are known. */
export function beforeAfter(improvement, set) {
  const [before, after] = [resultOf(improvement, "baseline")[set], resultOf(improvement, "gate")[set]];
  if (!before) return "";
  return after ? `${number(before.score)} → ${number(after.score)}` : number(before.score);
}

const COLUMNS = [
  { key: "state", label: "State", render: stateOf },
  {
    key: "name",
    label: "Improvement",
    render: (row) =>
      h("a", { href: link(path`/improvements/${row.id}`), dir: "auto" }, row.name ?? `${row.model}, ${when(row.created_at)}`),
  },
  { key: "model", label: "Model", render: (row) => row.model },
  { key: "held", label: "Held out", number: true, render: (row) => beforeAfter(row, "held_out") },
  { key: "general", label: "General", number: true, render: (row) => beforeAfter(row, "general") },
  { key: "spent", label: "CPU time", number: true, render: (row) => duration(row.spent_seconds) },
  {
    key: "created",
    label: "Started",
    number: true,
    render: (row) => timeNode(row.created_at, ago),
  },
];

function list(state, rows) {
  return h(
    "div.tablebox",
    { tabindex: 0, role: "region", "aria-label": "Improvements" },
    loaded(state, () => null),
    h("div", { hidden: () => Boolean(state.error.value) }, table({
      label: "Improvements",
      columns: () => COLUMNS,
      rows,
      key: (row) => row.id,
      href: (row) => link(path`/improvements/${row.id}`),
    })),
  );
}

const teaching = (create) => ({
  title: "Train a model on its weak calls",
  text:
    "An improvement takes calls that scored low or failed, trains the model on part of their chats with a scorer as the " +
    "reward, and compares it with the previous policy on the rest and on a general set. A better one is promoted, and rolled back " +
    "if a monitor's scores drop. Start one here, or from a shell:",
  code: [
    `heddle improve start MODEL --server ${serverAddress()} --project ${projectId()} \\`,
    "  --monitor MONITOR --below 0.5 --scorer SCORER --general EVALUATION --budget 600",
  ].join("\n"),
  action: button("New improvement", create, { kind: "primary", iconName: "add", needs: "write" }),
});
