// Replays: stored chats answered again by another model, prompt or other parameters.
import { lineText } from "../lib/line.js";
import { computed, h, onCleanup, untrack } from "../lib/dom.js";
import { resource } from "../lib/data.js";
import { ago, int, nameOf } from "../lib/format.js";
import { empty } from "../lib/panels.js";
import { button, dot, header, loaded, segments, timeNode, title } from "../lib/parts.js";
import { go, link, path, projectId, query, setQuery } from "../lib/router.js";
import { keyText, serverAddress } from "../lib/setup.js";
import { pager, table } from "../lib/table.js";
import { newReplay } from "./replays_new.js";

const PAUSE = 2000;
const PAGE = 100;

/** The list of replays. */
export default function Replays() {
  title("Replays");
  const states = () => ({ open: ["queued", "running"], failed: ["failed", "cancelled"] })[query("state")] ?? null;
  const offset = () => Number(query("page") ?? 0) * PAGE;
  const state = resource(() => ["/replays/query", { states: states() ?? undefined, limit: PAGE, offset: offset() }]);
  const rows = () => state.data.value?.replays ?? [];
  const timer = setInterval(() => {
    if (!document.hidden && rows().some(isOpen)) state.reload();
  }, PAUSE);
  onCleanup(() => clearInterval(timer));
  const create = async () => {
    const made = await newReplay();
    if (made) go(link(path`/replays/${made.id}`));
  };
  const isEmpty = computed(() => state.data.value !== null && !rows().length && !query("state") && !query("page"));
  return h(
    "div.page",
    header({
      title: "Replays",
      extra: () => (rows().length ? h("span.count", int(rows().length)) : null),
      actions: button("New replay", create, { kind: "primary", iconName: "replay", needs: "write" }),
    }),
    () =>
      isEmpty.value
        ? h("div.scroll", { tabindex: 0, role: "region", "aria-label": "Content" }, empty(teaching(create)))
        : untrack(() => list(state, rows)),
  );
}

const isOpen = (replay) => replay.state === "queued" || replay.state === "running";

/** What a replay is called: its name, else what it changes. */
export const replayName = (replay) => replay.name || changesOf(replay.request) || "replay";

/** What a replay changes, in a line. */
export function changesOf({ model, prompt, params }) {
  const given = Object.entries(params ?? {})
    .filter(([, value]) => value != null)
    .map(([name, value]) => `${name} ${lineText(value, 30)}`);
  return [model && nameOf(model), prompt && `prompt ${nameOf(prompt)}`, ...given].filter(Boolean).join(", ");
}

function list(state, rows) {
  const columns = [
    { key: "state", label: "State", render: stateOf },
    {
      key: "name",
      label: "Name",
      render: (replay) =>
        h("a", { href: link(path`/replays/${replay.id}`), title: replayName(replay), dir: "auto" }, replayName(replay)),
    },
    {
      key: "changes",
      label: "Changed",
      render: (replay) =>
        h("span", { title: changesOf(replay.request) }, changesOf(replay.request) || h("span.faint", "nothing (asked again)")),
    },
    { key: "selected", label: "Chats", number: true, render: (replay) => int(replay.counts.selected) },
    { key: "replayed", label: "Replayed", number: true, render: (replay) => int(replay.counts.replayed) },
    {
      key: "failed",
      label: "Failed",
      number: true,
      render: (replay) => h("span", { class: replay.counts.failed ? "worse" : "faint" }, int(replay.counts.failed)),
    },
    {
      key: "skipped",
      label: "Skipped",
      number: true,
      title: "Calls without a chat request",
      render: (replay) => h("span", { class: replay.counts.skipped ? "" : "faint" }, int(replay.counts.skipped)),
    },
    {
      key: "scored",
      label: "Scorers",
      number: true,
      render: (replay) => replay.request.scorer_refs?.length || h("span.faint", "0"),
    },
    {
      key: "created",
      label: "Started",
      number: true,
      render: (replay) => timeNode(replay.created_at, ago),
    },
  ];
  const page = () => Number(query("page") ?? 0);
  return [
    h(
      "div.bar-of-tools",
      segments(
        "State",
        [
          ["", "All"],
          ["open", "Running"],
          ["failed", "Failed"],
        ],
        () => query("state") ?? "",
        (value) => setQuery({ state: value, page: null }),
      ),
    ),
    h(
      "div.tablebox",
      { tabindex: 0, role: "region", "aria-label": "Replays" },
      loaded(state, () => null),
      h("div", { hidden: () => Boolean(state.error.value) }, table({
        label: "Replays",
        columns: () => columns,
        rows,
        key: (replay) => replay.id,
        href: (replay) => link(path`/replays/${replay.id}`),
      })),
      () => (state.data.value && !rows().length ? empty({ title: "No replay here" }) : null),
    ),
    () =>
      page() || rows().length === PAGE
        ? pager(
            `Page ${page() + 1}`,
            () => (page() ? () => setQuery({ page: page() - 1 || null }, false) : null),
            () => (rows().length < PAGE ? null : () => setQuery({ page: page() + 1 }, false)),
          )
        : null,
  ];
}

/** The state of a replay, with its progress while it runs. */
export function stateOf({ state, counts, error }) {
  const done = counts.selected - counts.waiting;
  if (state === "running" && counts.selected) {
    return h(
      "span.progress",
      h(
        "span",
        {
          role: "progressbar",
          "aria-label": "Chats done",
          "aria-valuenow": done,
          "aria-valuemin": 0,
          "aria-valuemax": counts.selected,
        },
        h("i", { style: { width: `${(done / counts.selected) * 100}%` } }),
      ),
      h("span", `${done} / ${counts.selected}`),
    );
  }
  const status = state === "succeeded" ? "success" : state;
  return h("span.replaystate", { title: error }, dot(status), h("span.dim", state === "succeeded" ? "done" : state));
}

const teaching = (create) => ({
  title: "Ask the same questions again",
  text: "A replay sends the newest chats that match a filter to another model, prompt or adapter step, or with other parameters, and shows both answers side by side. Start one here, or from a shell:",
  code: [
    `curl -s ${serverAddress()}/replays/create -H 'content-type: application/json' \\`,
    `  -H 'authorization: Bearer ${keyText()}' -d '{`,
    `  "project_id": "${projectId()}", "filter": {"op_names": ["weave.completions_create"]}, "limit": 20,`,
    '  "model": "heddle-tiny", "name": "try the small model"}\'',
  ].join("\n"),
  action: button("New replay", create, { kind: "primary", iconName: "replay", needs: "write" }),
});
