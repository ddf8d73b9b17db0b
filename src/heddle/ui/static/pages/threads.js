// Conversations of the project: threads of calls, conversations of agents, and the agents themselves.
import { computed, h } from "../lib/dom.js";
import { lines, resource } from "../lib/data.js";
import { ago, compact, duration, int, money, plural } from "../lib/format.js";
import { valueLine } from "../lib/line.js";
import { plainText } from "../lib/messages.js";
import { problemText } from "../lib/problem.js";
import { empty } from "../lib/panels.js";
import { loaded, page, searchBox, segments, timeNode, title } from "../lib/parts.js";
import { go, here, link, path, projectId, query, setQuery } from "../lib/router.js";
import { keyHint, serverAddress } from "../lib/setup.js";
import { pager, table } from "../lib/table.js";
import { callsLink } from "../lib/filters.js";
import { threadsAddress } from "../lib/turns.js";
import { agentsView, conversationsView } from "./threads_agents.js";

const PAGE = 50;
const VIEWS = [
  ["threads", "Threads"],
  ["conversations", "Agent conversations"],
  ["agents", "Agents"],
];
const PATHS = { threads: "/threads", conversations: "/agents/conversations", agents: "/agents" };
const MADE = { threads: threadsView, conversations: conversationsView, agents: agentsView };

/** The page: which of the three lists is in the path. */
export default function Threads() {
  title("Threads");
  const root = link("");
  const at = here.peek().pathname.slice(root.length).replace(/\/$/, "");
  const view = VIEWS.find(([name]) => PATHS[name] === at)?.[0] ?? "threads";
  return page(
    { title: "Threads" },
    [
      h(
        "div.bar-of-tools",
        segments(
          "Kind",
          VIEWS,
          () => view,
          (name) => go(link(PATHS[name])),
        ),
        h("span.grow"),
        view !== "agents" &&
          searchBox(view === "threads" ? "Search threads by name" : "Search what was said", () => query("search") ?? "",
            (text) => setQuery({ search: text, page: null }), { pause: 250 }),
      ),
      MADE[view](),
    ],
    { fixed: true },
  );
}

function order() {
  const [key, direction] = (query("sort") ?? "active.down").split(".");
  return { key, descending: direction !== "up" };
}

function sortBy(key) {
  const before = order();
  const descending = before.key === key ? !before.descending : key !== "thread";
  setQuery({ sort: `${key}.${descending ? "down" : "up"}`, page: null }, false);
}

const pageNumber = () => Math.max(1, Number(query("page")) || 1);

function threadsView() {
  const state = resource(() => {
    const { key, descending } = order();
    const asked = {
      sort: key,
      descending: String(descending),
      search: query("search") ?? "",
      limit: String(PAGE),
      offset: String((pageNumber() - 1) * PAGE),
    };
    return threadsAddress(asked);
  });
  const rows = () => state.data.value?.threads ?? [];
  const last = resource(() => (rows().length ? rows().map((row) => row.last_turn) : null), lastWords);
  const columns = threadColumns((row) => last.data.value?.[row.last_turn] ?? "");
  const found = () => state.data.value?.found ?? 0;
  const turn = (by) => () => setQuery({ page: pageNumber() + by === 1 ? null : pageNumber() + by }, false);
  const list = h(
    "div.tablebox.threadlist",
    { tabindex: 0, role: "region", "aria-label": "Threads" },
    table({
      resizable: true,
      columns: () => columns,
      rows,
      key: (row) => row.thread_id,
      label: "Threads",
      order,
      onsort: sortBy,
      href: (row) => link(path`/threads/${row.thread_id}`),
      busy: () => state.busy.value,
    }),
  );
  const shown = loaded(state, () => null);
  const isEmpty = computed(() => Boolean(state.data.value) && !state.data.value.total);
  const hasNone = computed(() => Boolean(state.data.value) && !rows().length);
  return [
    shown,
    () =>
      isEmpty.value
        ? noThreads()
        : hasNone.value
          ? nothingFound()
          : state.data.value && [
              list,
              pager(
                () => rangeOf(found(), rows().length),
                () => (pageNumber() > 1 ? turn(-1) : null),
                () => (pageNumber() * PAGE < found() ? turn(1) : null),
              ),
            ],
  ];
}

const rangeOf = (found, count) =>
  found <= PAGE
    ? plural(found, "thread")
    : `${int((pageNumber() - 1) * PAGE + 1)} to ${int((pageNumber() - 1) * PAGE + count)} of ${plural(found, "thread")}`;

/** A number of a thread as the way to its calls whose tokens count. */
const counted = (row, text) => callsLink(text, "Calls whose tokens are counted", { preset: "all" }, { thread: row.thread_id, used: "" });

/** The last that was said in the last turns, by call id. */
async function lastWords(ids, abort) {
  const calls = await lines(
    "/calls/stream_query",
    { filter: { call_ids: ids }, columns: ["exception"], include_conversation: true },
    undefined,
    abort,
  );
  return Object.fromEntries(calls.map((call) => [call.id, wordsOf(call)]));
}

function wordsOf(call) {
  const said = call.conversation.choices[0]?.messages.at(-1);
  return said ? plainText(said) || said.parts[0]?.content : problemText(call.exception);
}

const threadColumns = (last) => [
  {
    key: "thread",
    label: "Thread",
    sort: true,
    width: "24%",
    render: (row) =>
      h("a.one-line", { href: link(path`/threads/${row.thread_id}`), title: row.thread_id, dir: "auto" }, row.thread_id),
  },
  {
    key: "last",
    label: "Last message",
    render: (row) => valueLine(last(row), { kind: "dim" }),
  },
  {
    key: "turns",
    label: "Turns",
    width: "112px",
    sort: true,
    number: true,
    render: (row) => [row.errors ? h("span.badge.error", `${int(row.errors)} failed`) : null, " ", int(row.turns)],
  },
  {
    key: "duration",
    label: "Time",
    width: "84px",
    sort: true,
    number: true,
    title: "All turns together",
    render: (row) => duration(row.seconds),
  },
  { key: "tokens", label: "Tokens", width: "76px", number: true, render: (row) => (row.tokens ? counted(row, compact(row.tokens)) : "") },
  { key: "cost", label: "Cost", width: "88px", number: true, render: (row) => row.dollars == null ? "" : counted(row, money(row.dollars)) },
  { key: "started", label: "Started", width: "136px", sort: true, number: true, render: (row) => timeNode(row.started_at) },
  {
    key: "active",
    label: "Last active",
    width: "132px",
    sort: true,
    number: true,
    render: (row) => timeNode(row.active_at, ago),
  },
];

const nothingFound = () =>
  empty({ title: "No thread with this name", text: "The search covers the names of threads; part of a name is enough." });

function noThreads() {
  return empty({
    title: "No threads yet",
    text: `Calls made inside weave.thread("…") belong to one conversation; its outermost calls are the turns. ${keyHint()}`,
    code: [
      "import os, weave",
      `os.environ["WANDB_BASE_URL"] = "${serverAddress()}"`,
      `weave.init("${projectId()}")`,
      "",
      "@weave.op",
      "def answer(question):",
      "    return question[::-1]",
      "",
      'with weave.thread("first-conversation"):',
      '    answer("Hello")',
    ].join("\n"),
    action: h("p", "It then appears here with its turns, tokens and cost. Open a turn to see its trace."),
  });
}
